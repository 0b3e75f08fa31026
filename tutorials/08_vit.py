"""Tutorial 8: a vision transformer in 8 bits, by the usual steps: annotate, calibrate, realize, tune, build.

    python tutorials/08_vit.py

The model is bundled: two encoder layers on the 16 patches of an 8×8 digit, in float32. Attention multiplies two
activations with each other (batch_matmul): both of these operands are quantized with ranges measured on data.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext import autotune, quantize
from qnn_ext.compiling.coverage import coverage
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.targets.names import make_target

DATA = Path(qnn_ext.__file__).parent / "data"
CALIBRATION = DATA / "digits_calibration.npz"

with np.load(DATA / "digits_test.npz") as stored:
    images, labels = stored["x"][:, None].astype(np.float32) / 16, stored["y"]  # 450 held-out digits, (450, 1, 8, 8)


def accuracy(engine) -> float:
    """Share of the held-out digits classified correctly, in percent."""
    return 100 * float(np.mean(engine(images).argmax(1) == labels))


def operators(module) -> Counter:
    """How often each operator occurs."""
    return Counter(op_name(binding.value) for binding in bindings_of(module.ir["main"]))


# 1. The float model: matrix products, softmax, layer normalization, GELU.

model = qnn_ext.from_onnx(DATA / "digits_transformer_float32.onnx")
in_float = accuracy(qnn_ext.build(model, num_threads=1))
print(f"float: {in_float:.2f} %, {operators(model)['matmul']} matrix products")

# 2. Annotate, calibrate, realize. Softmax and layer normalization stay float between the integer products
#    (float_functions); percentile ranges cut off the few outliers in a transformer's activations.

config = quantize.QConfig(calibrate_mode="percentile", percentile=99.99)
stages = quantize.stages(model, dataset=CALIBRATION, config=config)
for name, module in stages.items():
    count = operators(module)
    print(f"{name:10} {count['qnn.observe']:3} observers, {count['matmul']:3} float products, "
          f"{count['qnn.dense']:3} qnn.dense, {count['qnn.batch_matmul']:3} qnn.batch_matmul")  # fmt: skip

integers = stages.result
assert operators(integers)["qnn.batch_matmul"] == 4, "two attention products in each of two layers"
assert coverage(integers).share == 1

# 3. Tasks: the distinct integer products of the model on this target, each with the configurations its kernel can have.

target = make_target("native", num_threads=1)  # records count for the target they were measured on
tasks = autotune.extract_from_program(integers, target)
for task in tasks:
    print(f"  {task}")

# 4. Tune: measure a few configurations of one task; every candidate is checked against the oracle before its time
#    counts. `qnn-ext tune` does this for a whole model. Then build with the best ones in the log.

with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "tuning.jsonl"
    autotune.RandomTuner(tasks[0]).tune(2, callbacks=[autotune.log_to_file(log)])
    with autotune.apply_history_best(log):
        engine = qnn_ext.build(integers, target)

in_integers = accuracy(engine)
print(f"integers: {in_integers:.2f} %, {engine.time(number=50, repeat=3)}")
assert in_integers >= in_float - 0.5

# 5. Which calibrator? Each is one QConfig field away; `python -m benchmarks.quantization` prints the whole table. The
#    interpreter gives the compiled model's bits without compiling.

exact = qnn_ext.Interpreter(model)(images[:50])
for mode in ("minmax", "mse"):
    candidate = quantize.quantize(model, dataset=CALIBRATION, config=quantize.QConfig(calibrate_mode=mode))
    error = qnn_ext.Interpreter(candidate)(images[:50]) - exact
    print(f"{mode:10} {10 * np.log10(np.sum(exact**2) / np.sum(error**2)):.1f} dB")
