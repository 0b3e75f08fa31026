"""Tutorial 14: an operator that qnn_ext does not have, as a plugin.

    python tutorials/14_plugin.py

The plugin is deformable.py, beside this file: deformable convolution with its type rule, NumPy reference, kernel,
converters, and what `quantize` makes of it. Here it is imported; an installed package names it as an entry point, and
the first `from_onnx` loads it by itself.

The network is of the kind that restores videos (EDVR): features of two frames, those of the second aligned to the first
by a deformable convolution, both fused, then a pixel shuffle. It runs as one engine, in float and in integers.
"""

import tempfile
from pathlib import Path

import deformable  # noqa: F401  (registers everything in it)
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import qnn_ext
from qnn_ext import quantize
from qnn_ext.compiling.coverage import coverage

CHANNELS, SIZE = 16, 20
random = np.random.default_rng(0)


def edvr() -> onnx.ModelProto:
    """Two frames (1, 3, 20, 20) → one of twice the size; weights are random."""
    initializers, nodes = [], []

    def weights(*shape, scale=1.0):
        name = f"w{len(initializers)}"
        values = random.normal(scale=scale / np.sqrt(np.prod(shape[1:])), size=shape).astype(np.float32)
        initializers.append(onnx.numpy_helper.from_array(values, name))
        return name

    def add(operator, inputs, output, **attributes):
        nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def convolution(x, before, after, output, scale=1.4):
        return add("Conv", [x, weights(after, before, 3, 3, scale=scale), weights(after)], output, pads=[1, 1, 1, 1])

    def features(frame):
        first = add("Relu", [convolution(frame, 3, CHANNELS, f"{frame}_conv1")], f"{frame}_relu1")
        return add("Relu", [convolution(first, CHANNELS, CHANNELS, f"{frame}_conv2")], f"{frame}_relu2")

    one, two = features("reference"), features("neighbour")
    both = add("Concat", [one, two], "both", axis=1)
    guide = add("Relu", [convolution(both, 2 * CHANNELS, CHANNELS, "guide_conv")], "guide")
    offset = convolution(guide, CHANNELS, 4 * 18, "offset", scale=2.0)
    mask = add("Sigmoid", [convolution(guide, CHANNELS, 4 * 9, "mask_conv")], "mask")
    inputs = [two, weights(CHANNELS, CHANNELS, 3, 3, scale=1.4), offset, weights(CHANNELS), mask]
    aligned = add("DeformConv", inputs, "aligned", kernel_shape=[3, 3], pads=[1, 1, 1, 1], offset_group=4)
    fused = add("Concat", [one, aligned], "fused", axis=1)
    fused = add("Relu", [convolution(fused, 2 * CHANNELS, CHANNELS, "fusion_conv")], "fusion")
    large = add("DepthToSpace", [convolution(fused, CHANNELS, 12, "up_conv")], "frame", blocksize=2, mode="CRD")
    graph = helper.make_graph(
        nodes,
        "edvr",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, SIZE, SIZE])
            for name in ("reference", "neighbour")
        ],
        [helper.make_tensor_value_info(large, TensorProto.FLOAT, [1, 3, 2 * SIZE, 2 * SIZE])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def ratio(signal, other) -> float:
    """Signal to noise in dB."""
    return float(10 * np.log10(np.sum(signal**2) / np.sum((signal - other) ** 2)))


# In float: the same numbers as ONNX Runtime's, but for the order of sums.

model = edvr()
module = qnn_ext.from_onnx(model)
engine = qnn_ext.build(module, num_threads=1)
frames = [
    {name: random.random((1, 3, SIZE, SIZE), np.float32) for name in ("reference", "neighbour")} for _ in range(8)
]
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
(expected,) = session.run(None, frames[0])
result = engine.run(frames[0])["frame"]
print(f"float: {ratio(expected, result):.0f} dB from ONNX Runtime's result")
np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)

# In integers: all products, that of the deformable convolution among them; its gather reads and writes 8 bits.

integers = quantize.quantize(module, dataset=frames)
share = coverage(integers).share
assert share == 1 and "acme_columns" in integers.script()
engine = qnn_ext.build(integers, num_threads=1)
quantized = engine.run(frames[0])["frame"]
print(f"integers: {100 * share:.0f} % of the multiply-accumulates, {ratio(expected, quantized):.0f} dB")
assert ratio(expected, quantized) > 20

# Every bit is that of the NumPy references, whatever the values are: a kernel cannot read outside of its tensors.

oracle = qnn_ext.Interpreter(integers)
for scale in np.float32([1, 3e38, np.inf, np.nan]):
    wild = {name: frame * scale for name, frame in frames[0].items()}
    np.testing.assert_array_equal(engine.run(wild)["frame"], oracle.run(wild)["frame"])
print("equal to the interpreter bit for bit")

# One file holds it all. Running it needs neither the plugin nor TVM's compiler.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "edvr.qnn"
    engine.save(path)
    np.testing.assert_array_equal(qnn_ext.load(path).run(frames[0])["frame"], quantized)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
