"""Runs models in MXNet 1.9.1, for `mxnet.py`, which starts it; not a module of the package, but a program for a Python
3.8 with MXNet and without this package.

A message, on standard input, is its length in eight bytes and an .npz archive: "symbol", parameters as "arg:name" and
"aux:name" or "params", the path of a file of them, and inputs as "trial/name". Without a symbol the model is that of
the message before. The answer, on standard output, holds outputs as "trial/index", or "error". The end of the standard
input is its own end.
"""

import io
import os
import sys

ANSWERS = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # whatever MXNet prints

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

model = None


def read(arrays):
    """The model of a message: its symbol, arguments and auxiliary states."""
    if "params" in arrays:
        values = mx.nd.load(str(arrays["params"]))
    else:
        values = {k: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items() if k.startswith(("arg:", "aux:"))}
    kinds = [{k[4:]: v for k, v in values.items() if k.startswith(kind)} for kind in ("arg:", "aux:")]
    return (mx.sym.load_json(str(arrays["symbol"])), *kinds)


def unused(symbol, given):
    """Zeros for arguments that have no value, such as labels, which only training reads."""
    missing = [name for name in symbol.list_arguments() if name not in given]
    if not missing:
        return {}
    shapes, _, _ = symbol.infer_shape_partial(**{name: value.shape for name, value in given.items()})
    shapes = dict(zip(symbol.list_arguments(), shapes))  # noqa: B905 (Python 3.8 has no strict)
    return {name: mx.nd.zeros(shapes[name]) for name in missing}


def answer(message):
    """The outputs of every trial by name."""
    global model
    arrays = {key: message[key] for key in message.files}
    if "symbol" in arrays:
        model = read(arrays)
    symbol, arguments, states = model
    trials = sorted({key.split("/")[0] for key in arrays if "/" in key}, key=int)
    results = {}
    for trial in trials:  # each in its own executor: sums without calibration are wrong from the second call on
        inputs = {
            k.split("/")[1]: mx.nd.array(v, dtype=v.dtype) for k, v in arrays.items() if k.startswith(trial + "/")
        }
        given = {**arguments, **inputs}
        given.update(unused(symbol, given))
        executor = symbol.bind(mx.cpu(), given, aux_states=states, grad_req="null")
        for index, output in enumerate(executor.forward(is_train=False)):
            results[f"{trial}/{index}"] = output.asnumpy()
    return results


def main():
    while True:
        size = sys.stdin.buffer.read(8)
        if len(size) < 8:
            return
        content = io.BytesIO(sys.stdin.buffer.read(int.from_bytes(size, "little")))
        with np.load(content, allow_pickle=False) as message:
            try:
                results = answer(message)
            except Exception as error:  # MXNet rejects the model
                lines = str(error).strip().splitlines()
                results = {"error": np.array(lines[-1] if lines else type(error).__name__)}
        buffer = io.BytesIO()
        np.savez(buffer, **results)
        ANSWERS.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
        ANSWERS.flush()


main()
