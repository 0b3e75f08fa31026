"""Tutorial 15: serve many requests at once.

    python tutorials/15_serve.py

One engine runs one request at a time, on one thread or on several. Where many requests wait, engines of one thread
each, side by side, do more of them per second, because no thread waits for another. A `Pool` is that: clones of an
engine that share its code and weights, and a queue in front of them.

All engines of a process share its cores: a call gets no more threads than there are cores without another call. Where
other processes are busy, an engine notices that fewer threads are faster, and takes those.
"""

import asyncio
from pathlib import Path

import numpy as np

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
engine = qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), num_threads=1)
with np.load(DATA / "digits_test.npz") as stored:
    images = np.rint(stored["x"][:, None, :, :, None] / 16 * 255 - 128).astype(np.int8)
    labels = stored["y"]
name, scores = engine.inputs[0].name, engine.outputs[0].name

# 1. `submit` returns a future at once: do something else, and ask for the result when it is needed.

future = engine.submit({name: images[0]})
print(f"the first digit is {future.result()[scores].argmax()}")

# 2. A pool runs as many requests at a time as it has streams. A stream costs the memory of the feature maps only.

with qnn_ext.Pool(engine, streams=2) as pool:
    futures = [pool.submit({name: image}) for image in images]
    found = [int(future.result()[scores].argmax()) for future in futures]
    print(f"{np.mean(found == labels):.1%} right, {pool.streams} × {engine.memory.feature_maps} bytes of feature maps")

    # 3. `map` takes requests from any iterator, also an endless one, and gives results in the same order.

    again = [int(outputs[scores].argmax()) for outputs in pool.map({name: image} for image in images)]
    assert again == found

    # 4. In asyncio, await the future.

    async def classify(image: np.ndarray) -> int:
        outputs = await pool.submit({name: image})
        return int(outputs[scores].argmax())

    async def main() -> list[int]:
        return await asyncio.gather(*map(classify, images[:20]))

    assert asyncio.run(main()) == found[:20]

    # 5. How many requests per second? The same as `qnn-ext bench digits.qnn --threads 1 --streams 2`.

    print(pool.throughput(seconds=0.5))

# 6. Models with states keep one sequence each: clone the engine for every sequence.

stream = qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_lstm_int8.tflite"), num_threads=1)
spec = stream.inputs[0]
other = stream.clone()
first = stream(np.zeros(spec.shape, spec.dtype))
assert np.array_equal(other(np.zeros(spec.shape, spec.dtype)), first)  # the same start
