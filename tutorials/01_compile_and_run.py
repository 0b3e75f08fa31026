"""Tutorial 1: from a quantized TFLite model to an integer executable, in Python and on the command line.

    python tutorials/01_compile_and_run.py

The model is bundled: a small CNN for 8×8 digits, quantized by the TFLite converter to int8 with one scale per channel.
Any quantized .tflite model works the same way.
"""

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pictures
from PIL import Image

import qnn_ext
from qnn_ext.images import load_image

HERE = Path(__file__).parent
DATA = Path(qnn_ext.__file__).parent / "data"

# 1. Import. The file becomes a module of `R.qnn.*` operators; weights stay integers, and every quantized tensor keeps
#    its scale and zero point. Anything that has to run in float would be listed in `module.notes`, with the reason.

module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
print("input: ", module.inputs[0])
print("output:", module.outputs[0])
print("in float:", [f"{note.operator}: {note.reason}" for note in module.notes] or "nothing")

# 2. Build. "native" is this machine's CPU; `target="x86-64"` would run on any x86 machine.

engine = qnn_ext.build(module, target="native", num_threads=1)
print(engine)

# 3. Run. Real values go in as integers: q = real / scale + zero point. The digits hold pixels 0 … 16, the model was
#    trained on pixel / 16.

with np.load(DATA / "digits_test.npz") as digits:
    pixels, labels = digits["x"], digits["y"]

images = module.inputs[0].qparams.quantize(pixels[:, None, :, :, None] / np.float32(16))  # (450, 1, 8, 8, 1)
predictions = np.array([engine(image).argmax() for image in images])
accuracy = np.mean(predictions == labels)
print(f"accuracy on {len(labels)} held-out digits: {100 * accuracy:.2f} %")
assert accuracy > 0.99

# What to look at: scans of handwriting at 8×8 pixels, bundled (optical recognition of handwritten digits, E. Alpaydin
# and C. Kaynak, UCI machine learning repository, CC BY 4.0), and what the network reads in them; orange where it is
# wrong.

errors = np.flatnonzero(predictions != labels)[:10]
shown = np.concatenate([errors, np.flatnonzero(predictions == labels)[: 30 - len(errors)]])
pictures.gallery(
    [pixels[i] for i in shown],
    [f"{predictions[i]}" if predictions[i] == labels[i] else f"{predictions[i]}, not {labels[i]}" for i in shown],
    wrong=[predictions[i] != labels[i] for i in shown],
)
for i in errors:
    print(f"reads {predictions[i]} where a {labels[i]} was written")

# 4. Trust. The interpreter computes the imported module operator by operator in NumPy, independent of passes and
#    kernels. The compiled program's results are bit-identical.

oracle = qnn_ext.Interpreter(module)
for image in images[:5]:
    np.testing.assert_array_equal(engine(image), oracle(image))
print("equal to the interpreter bit for bit")

# 5. A picture: resized to the input's size and converted with the input's scale and zero point.

picture = load_image(HERE / "digit.png", engine.inputs[0])
scores = engine.run([picture], dequantize=True)[engine.outputs[0].name].reshape(-1)
best = [int(index) for index in np.argsort(-scores)[:3]]
print("digit.png shows a", best[0], "| top classes:", ", ".join(f"{index} ({scores[index]:.3f})" for index in best))
original = np.asarray(Image.open(HERE / "digit.png").convert("L"))
pictures.gallery([255 - original, 255 - picture.astype(int)], ["the file", "the input"], columns=2)
pictures.bars([str(index) for index in range(10)], [float(score) for score in scores], "score of each digit")

# 6. Speed, as a whole and kernel by kernel.

print(engine.time())
profile = sorted(engine.profile(), key=lambda layer: -layer.seconds)
for layer in profile[:3]:
    print(f"  {layer.seconds * 1e6:6.2f} µs  {layer.kernel.operators}  ({layer.kernel.implementation})")
pictures.bars(
    [layer.kernel.operators for layer in profile], [layer.seconds * 1e9 for layer in profile], "nanoseconds a call"
)

# 7. Keep. One file holds everything; it loads without the frontend and refuses to run on a CPU that lacks the
#    instructions.

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
path = folder / "digits.qnn"
engine.save(path)
np.testing.assert_array_equal(qnn_ext.load(path)(picture), engine(picture))

# 8. The same on the command line.

for command in (
    ["qnn-ext", "compile", DATA / "digits_cnn_int8.tflite", "-o", path],
    ["qnn-ext", "run", path, "--input", HERE / "digit.png", "--labels", DATA / "digits_labels.txt", "--top", "3"],
    ["qnn-ext", "bench", path, "--threads", "1"],
):
    print("$", *command, flush=True)
    subprocess.run(command, check=True)

temporary.cleanup()
