"""Tutorial 2: from a quantized ONNX model to an integer executable with ONNX Runtime's results.

    python tutorials/02_onnx.py

The model is bundled: a small CNN for 8×8 digits, quantized statically by ONNX Runtime's tool to QDQ form (uint8
activations, int8 weights with one scale per channel). Models from PyTorch's exporter, QLinear* operators and the
com.microsoft operators work the same way.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_qdq.onnx"

# 1. Import. A QDQ model says dequantize → float operator → quantize. The importer turns that into integer operators,
#    folds away the exporters' shape arithmetic, and notes what stays in float, with the reason.

module = qnn_ext.from_onnx(MODEL)
print("input: ", module.inputs[0])
print("output:", module.outputs[0])
print("in float:", [f"{note.operator}: {note.reason}" for note in module.notes] or "nothing")

# 2. Build and run. Inputs and outputs are what the model declares: here real values, pixel / 16.

engine = qnn_ext.build(module, num_threads=1)
with np.load(DATA / "digits_test.npz") as digits:
    images, labels = digits["x"][:, None, None].astype(np.float32) / 16, digits["y"]  # (450, 1, 1, 8, 8)

logits = np.stack([engine(image) for image in images])
accuracy = np.mean(logits.argmax(-1)[:, 0] == labels)
print(f"accuracy on {len(labels)} held-out digits: {100 * accuracy:.2f} %")
assert accuracy > 0.98

# 3. Compare with ONNX Runtime. Both quantize x to rint(x / scale) + zero point, multiply integers and scale the sums in
#    float32, in the same order: the results are bit-identical. On an x86 CPU without VNNI, ONNX Runtime's sums overflow
#    16 bits unless it is asked for precision.

options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")
session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
reference = np.stack([session.run(None, {module.inputs[0].name: image})[0] for image in images])
print(f"{np.mean(logits == reference):.2%} of the logits are ONNX Runtime's, bit for bit")
assert (logits == reference).mean() > 0.99

# 4. Trust. The interpreter computes the imported module operator by operator in NumPy, again with the same bits.

oracle = qnn_ext.Interpreter(module)
for image in images[:5]:
    np.testing.assert_array_equal(engine(image), oracle(image))
print("equal to the interpreter bit for bit")

# 5. Symbolic dimensions. `shapes` fixes them, by input or by the dimension's name. The batch may stay symbolic: the
#    importer proves that the model treats its samples independently, and the program takes any number of them.

proto = onnx.load(MODEL)
for value in (*proto.graph.input, *proto.graph.output):
    value.type.tensor_type.shape.dim[0].dim_param = "N"
for node in proto.graph.node:  # the exporter wrote the batch size 1 into the shape of a reshape: take what is left
    if node.op_type == "Reshape":
        target = next(tensor for tensor in proto.graph.initializer if tensor.name == node.input[1])
        dims = onnx.numpy_helper.to_array(target).copy()
        dims[0] = -1
        target.CopyFrom(onnx.numpy_helper.from_array(dims, target.name))

batched = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1)
print("input: ", batched.inputs[0])
np.testing.assert_array_equal(batched(images[:7, 0]), logits[:7, 0])
print("fixed: ", qnn_ext.from_onnx(proto, shapes={"N": 4}).inputs[0])

# 6. Keep. One file holds everything; it loads without the frontend and without the onnx package.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.qnn"
    engine.save(path)
    np.testing.assert_array_equal(qnn_ext.load(path)(images[0]), logits[0])
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
