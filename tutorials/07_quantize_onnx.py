"""Tutorial 7: from a float ONNX model to an integer executable, stage by stage.

    python tutorials/07_quantize_onnx.py

The model is bundled: a small CNN for 8×8 digits as exported by PyTorch, including batch normalizations; so are 400
training images to calibrate on.
"""

import tempfile
from pathlib import Path

import numpy as np
import pictures

import qnn_ext
from qnn_ext import quantize
from qnn_ext.compiling.coverage import coverage

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_float32.onnx"

with np.load(DATA / "digits_test.npz") as stored:
    images, labels = stored["x"][:, None].astype(np.float32) / 16, stored["y"]  # 450 held-out digits, (450, 1, 8, 8)


def accuracy(engine) -> float:
    """Share of the held-out digits classified correctly, in percent."""
    return 100 * float(np.mean(engine(images).argmax(1) == labels))


# 1. The float model. It imports as ordinary Relax operators in float32, and builds and runs as such.

model = qnn_ext.from_onnx(MODEL)
in_float = accuracy(qnn_ext.build(model, num_threads=1))
print(f"float: {in_float:.2f} %")

# 2. A configuration says how to quantize. Fields have Relay's names, plus new ones; those not named keep their
#    default: int8 weights with one scale per channel, activations in the dtype that this CPU multiplies fastest.

config = quantize.QConfig(calibrate_mode="mse")

# 3. Fold: batch normalizations are folded into the weights. Each stage is a module that can be printed.

folded = quantize.fold(model, config)
print(f"fold: {len(model.script())} characters of TVMScript become {len(folded.script())}")

# 4. Annotate: R.qnn.observe, an identity, marks each tensor to be quantized. This is where skips and layers of
#    another precision take effect.

annotated = quantize.annotate(folded, config)
for site in quantize.sites(annotated)[:4]:
    print(f"  {site.role:10} {site.name}: {site.dtype}, {'one scale' if site.axis is None else 'a scale per channel'}")

# 5. Calibrate: the annotated module runs on data; each site gets a range. The table is JSON: save it, edit it, use it
#    again without data.

table = quantize.calibrate(annotated, DATA / "digits_calibration.npz", config)
print(f"calibrate: {len(table)} ranges, the input's is {table['image']}")

# 6. Realize: observers become quantize and dequantize, and these become integer operators.

integers = quantize.realize(annotated, table, config)
share = coverage(integers).share
print(f"realize: {100 * share:.0f} % of the multiply-accumulates in integers")
assert share == 1

engine = qnn_ext.build(integers, num_threads=1)
in_integers = accuracy(engine)
print(f"integers: {in_integers:.2f} %")
assert in_integers >= in_float - 0.5

# 7. The loss of accuracy, and where it arises: the error of each tensor and layer, and of each layer quantized alone.

analysis = quantize.analyze(annotated, table, DATA / "digits_calibration.npz", config, samples=8)
print(f"logits: {analysis.outputs['logits'].sqnr:.1f} dB")
worst = analysis.ranking[0]
print(f"costs most alone: {worst.layer}, {worst.alone.sqnr:.1f} dB")
for layer in analysis.layers:
    print(f"  {layer.layer:24} {layer.operator:12} alone {layer.alone.sqnr:5.1f} dB, all {layer.together.sqnr:5.1f} dB")

# What to look at: 6 dB are one bit. The shortest blue bar is the layer that costs most when it alone is quantized;
# orange is what is left at each layer when all are. Below, the values of the widest activation, on a logarithmic scale,
# and the range that its integers reach: what is outside is clipped, and a range that is too wide wastes steps.

pictures.bars(
    [layer.layer for layer in analysis.layers],
    [layer.alone.sqnr for layer in analysis.layers],
    "SQNR, dB",
    [layer.together.sqnr for layer in analysis.layers],
    ["the output, this layer alone quantized", "this layer's result, all quantized"],
)
widest = max((site for site in analysis.sites if site.counts.sum()), key=lambda site: site.high - site.low)
print(f"widest: {widest.site}, {widest.low:.3g} … {widest.high:.3g}, {100 * widest.saturated:.2f} % outside")
pictures.histogram(widest.counts, widest.edges, widest.low, widest.high, widest.site)

# 8. The same in one call, here with the table instead of data, and with that layer kept in float.

with quantize.qconfig(overrides={worst.layer: {"precision": "float32"}}):
    sites = [site.name for site in quantize.sites(quantize.annotate(folded, quantize.current_config()))]
    kept = quantize.CalibrationTable({name: table[name] for name in sites})
    mixed = qnn_ext.build(model, num_threads=1, table=kept)
print(f"with {worst.layer} in float: {accuracy(mixed):.2f} %")

# 9. No data at all: dynamic quantization finds the range of each activation at run time.

dynamic = quantize.quantize(model, config=quantize.QConfig(dynamic=True))
print(f"dynamic: {accuracy(qnn_ext.build(dynamic, num_threads=1)):.2f} %")

# 10. Keep. The command line does all of this: qnn-ext quantize model.onnx --data calibration.npz --report report/

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.qnn"
    engine.save(path)
    table.save(Path(folder) / "ranges.json")
    np.testing.assert_array_equal(qnn_ext.load(path)(images[:10]), engine(images[:10]))
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, the float model has {MODEL.stat().st_size / 1024:.0f}")
