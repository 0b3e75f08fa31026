"""Tutorial 5: a model quantized by MXNet, on a machine without MXNet.

    python tutorials/05_mxnet.py

MXNet is retired (last release 1.9.1, Python 3.8), but its models are not. The bundled one is a small CNN for 8×8 digits
that MXNet trained and quantized: `scripts/digits_mxnet.py`. Any model from `quantize_net_v2` or `quantize_model_mkldnn`
works the same way, as do float models of the Gluon zoo.
"""

from pathlib import Path

import numpy as np

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
SYMBOL, PARAMS = DATA / "digits_mxnet-symbol.json", DATA / "digits_mxnet-0000.params"
SHAPES = {"data": (1, 1, 8, 8)}

# MXNet's outputs for 16 held-out digits: "y" from the quantized model, "y_fp32" from the float one.
with np.load(DATA / "digits_mxnet_io.npz") as recorded:
    images, answers, float_answers = (recorded[key] for key in ("x", "y", "y_fp32"))

# 1. Import. A symbol does not contain its input's shape, so we give it. Input and output are float32: the model itself
#    quantizes and dequantizes. Weights become integers now; MXNet does that when it loads the model.

module = qnn_ext.from_mxnet(SYMBOL, PARAMS, shapes=SHAPES)
print("input: ", module.inputs[0])
print("output:", module.outputs[0])

# 2. Build and run.

engine = qnn_ext.build(module, num_threads=1)
with np.load(DATA / "digits_test.npz") as digits:
    pixels, labels = digits["x"], digits["y"]
predictions = [engine(image).argmax() for image in pixels[:, None, None].astype(np.float32) / 16]
accuracy = np.mean(predictions == labels)
print(f"accuracy on {len(labels)} held-out digits: {100 * accuracy:.2f} %")
assert accuracy > 0.98

# 3. Compare. sum_mode="mxnet" gives MXNet's numbers bit for bit.


def outputs(sum_mode: str) -> np.ndarray:
    """The compiled model's outputs for the recorded images."""
    program = qnn_ext.build(qnn_ext.from_mxnet(SYMBOL, PARAMS, SHAPES, sum_mode=sum_mode), num_threads=1)
    return np.stack([program(image) for image in images])


exact, intended = outputs("mxnet"), outputs("intended")
np.testing.assert_array_equal(exact, answers)
print(f"sum_mode='mxnet': all {answers.size} outputs equal MXNet's")

# 4. Choose. Why is that not the default? Where a convolution ends in a residual sum, MXNet adds in place: the result
#    goes into the buffer of the sum's other operand. If that is int8 and the result, after a relu, uint8, then
#    everything above 127 of 255 is clipped, half of the range that calibration found. sum_mode="intended" adds in
#    float32 and saturates to the result's own dtype. It is what the calibration meant, and much nearer to the float
#    model.


def noise(values: np.ndarray) -> float:
    """Signal-to-quantization-noise ratio in dB; higher is better."""
    return 10 * np.log10(np.sum(float_answers**2) / np.sum((float_answers - values) ** 2))


print(f"against the float model: mxnet {noise(exact):.1f} dB, intended {noise(intended):.1f} dB")
assert noise(intended) > noise(exact)
