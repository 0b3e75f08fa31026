"""Runs models in MXNet 1.9.1 for client.py, through messages on standard input and output; for Python 3.8:

    pip install mxnet==1.9.1 numpy==1.23.5

A message is its length in eight bytes and an .npz archive: "symbol", parameters as "arg:name" and "aux:name", inputs as
"trial/name". The answer holds outputs as "trial/index", or "error".
"""

import io
import os
import sys

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever MXNet prints

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402


def answer(message):
    """The outputs of every trial by name."""
    arrays = {key: message[key] for key in message.files}
    symbol = mx.sym.load_json(str(arrays["symbol"]))
    given = {
        kind: {k[4:]: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items() if k.startswith(kind + ":")}
        for kind in ("arg", "aux")
    }
    trials = sorted({key.split("/")[0] for key in arrays if "/" in key}, key=int)
    results = {}
    for trial in trials:  # each in its own executor: sums without calibration are wrong from the second call on
        inputs = {
            k.split("/")[1]: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items() if k.startswith(trial + "/")
        }
        executor = symbol.bind(mx.cpu(), {**given["arg"], **inputs}, aux_states=given["aux"], grad_req="null")
        for index, output in enumerate(executor.forward(is_train=False)):
            results[f"{trial}/{index}"] = output.asnumpy()
    return results


def main():
    while True:
        size = sys.stdin.buffer.read(8)
        if len(size) < 8:
            return
        with np.load(io.BytesIO(sys.stdin.buffer.read(int.from_bytes(size, "little")))) as message:
            try:
                results = answer(message)
            except Exception as error:  # MXNet rejects the model
                lines = str(error).strip().splitlines()
                results = {"error": np.array(lines[-1] if lines else type(error).__name__)}
        stream = io.BytesIO()
        np.savez(stream, **results)
        ANSWERS.write(len(stream.getvalue()).to_bytes(8, "little") + stream.getvalue())
        ANSWERS.flush()


main()
