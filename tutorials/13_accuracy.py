"""Tutorial 13: as accurate as required, with as many multiply-accumulates in 8 bits as possible.

    python tutorials/13_accuracy.py

The model is the bundled CNN for 8×8 digits in float; the numbers of the first call depend on the CPU's 8-bit dtype.
"""

import tempfile
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext import evaluation, quantize
from qnn_ext.compiling.coverage import coverage

DATA = Path(qnn_ext.__file__).parent / "data"

model = qnn_ext.from_onnx(DATA / "digits_cnn_float32.onnx", shapes={"image": (50, 1, 8, 8)})
with np.load(DATA / "digits_calibration.npz") as stored:
    images = stored["image"][:100]  # training images, to calibrate on and to measure on
with np.load(DATA / "digits_test.npz") as stored:
    held_out, labels = stored["x"][:, None].astype(np.float32) / 16, stored["y"]


def report(found: quantize.Controlled) -> None:
    """What was tried: what was measured on integers in full, of the others how many."""
    for trial in found.report.trials:
        if trial.compiled:
            print(f"  {trial.summary}: {'enough' if trial.reached else 'not enough'}")
    print(f"  {len(found.report.trials)} trials")


# 1. A signal-to-noise ratio of the outputs, in dB. Settings of 8-bit quantization are tried first: calibrators,
#    equalization, SmoothQuant, rounding of weights (GPTQ, AdaRound), bias correction. Here they are enough. Trials are
#    simulations of the whole model by one compiled program; the result is accepted by what its integers compute. Every
#    fourth image does not calibrate: the goal must be reached on these as well.

found = quantize.control_accuracy(model, dataset=images, min_sqnr=37)
print("37 dB:")
report(found)
assert found.report.chosen.share > 0.9

# 2. Where they are not, layers move to 16 bits (16-bit activations times 8-bit weights) or to float: always the one
#    that removes most noise from the outputs for its multiply-accumulates. Fields that the configuration sets are not
#    searched. A work folder keeps each measurement as soon as it is known: after Ctrl-C or a crash, the same call goes
#    on where it was, and one that is complete measures nothing again.

config = quantize.QConfig(calibrate_mode="mse", equalize=True, weight_rounding="gptq", bias_correction=True)
with tempfile.TemporaryDirectory() as work:
    found = quantize.control_accuracy(model, dataset=images, config=config, min_sqnr=40, work=work)
    again = quantize.control_accuracy(model, dataset=images, config=config, min_sqnr=40, work=work)
print("40 dB:")
report(found)
assert again.config == found.config and all(trial.repeated for trial in again.report.trials)
for layer, values in found.config.overrides.items():
    print(f"  {layer}: {values['precision']}")

# 3. Usually a task has a better measure than decibels: a function of the model, higher for a better one, and how much
#    of it may be lost. It calls the model like an engine, and gets simulations, integers and once the float model.


def accuracy(run) -> float:
    """Share of the held-out digits classified correctly, in percent."""
    answers = [run(held_out[start : start + 50]).argmax(1) for start in range(0, 450, 50)]
    return 100 * float(np.mean(np.concatenate(answers) == labels))


integers = quantize.quantize(model, dataset=images, metric=accuracy, max_drop=0.3)
share = coverage(integers).share_in_8_bits
print(f"accuracy {accuracy(qnn_ext.build(integers, num_threads=1)):.2f} %, {100 * share:.0f} % in 8 bits")

# 4. If no setting is accurate enough, the error names the best one and has the report of what was tried.

try:
    quantize.control_accuracy(model, dataset=images, config=config, min_sqnr=200, keep="int16")
except qnn_ext.AccuracyError as error:
    print(error)

# 5. What 8 bits cost and save, against the model's own framework and a build in float. A metric of your own takes the
#    place of top-1 and top-5: `metric=` a function of all outputs and all labels.

path = DATA / "digits_cnn_float32.onnx"
one_by_one = qnn_ext.from_onnx(path)
runtime = evaluation.onnx_runtime(path)
compared = qnn_ext.accuracy(one_by_one, held_out, labels, framework=runtime, calibration=images, num_threads=1)
for column in compared.columns:
    print(f"{column.title}: {column.missing or column.metrics}")
assert compared["int8"].metrics["top-1"] > 0.98

memory = evaluation.memory_split(one_by_one, "rpi4", num_threads=1)
print(f"rpi4: weights {memory.float32.weights} → {memory.int8.weights} bytes")
print(f"rpi4: feature maps {memory.float32.feature_maps} → {memory.int8.feature_maps} bytes")

# 6. The command line:
#    qnn-ext quantize model.onnx --data calibration.npz --min-sqnr 30 --work trials/ --report report/
#    qnn-ext quantize model.onnx --data calibration.npz --validation others.npz --metric task.py:accuracy --max-drop 0.3
#    qnn-ext accuracy model.onnx --data photos/ --calibration training/    photos in a folder for each class
#    qnn-ext memory model.onnx --target avx512_vnni,rpi4
