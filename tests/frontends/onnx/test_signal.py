"""Transforms, windows, reversed sequences, positions of maxima, norms and fused layers: against ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx

from .graphs import model, node, onnx, run_ort, value

RNG = np.random.default_rng(15)


def real(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def assert_close(proto, feed, tolerance=2e-6, compiled=False):
    """Within `tolerance` of the largest value; integers exactly."""
    module = from_onnx(proto)
    for runner in (qnn_ext.Interpreter(module), *([qnn_ext.build(module)] if compiled else [])):
        for found, expected in zip(runner.run(feed).values(), run_ort(proto, feed), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            if expected.dtype.kind == "f":
                bound = tolerance * max(float(np.abs(expected).max(initial=0)), 0.1)
                np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
            else:
                np.testing.assert_array_equal(found, expected)


def single(operator, inputs, known=(), opset=20, outputs=1, domain="", result=None, **attributes):
    """(model of one node, its feed). inputs: arrays, None for one that is left out; known: positions of constants"""
    names = ["" if array is None else f"x{k}" for k, array in enumerate(inputs)]
    given = {name: array for k, (name, array) in enumerate(zip(names, inputs, strict=True)) if name and k not in known}
    constants = {names[k]: inputs[k] for k in known}
    results = [onnx.helper.make_empty_tensor_value_info(f"y{k}") for k in range(outputs)]
    made = node(operator, names, [f"y{k}" for k in range(outputs)], operator, domain=domain, **attributes)
    values = [value(name, array.shape, array.dtype) for name, array in given.items()]
    if domain:
        results = [value("y0", result)]
    proto = model([made], values, results, constants, opset)
    return (proto if domain else onnx.shape_inference.infer_shapes(proto, data_prop=True)), given


@pytest.mark.parametrize("shape", [(2, 100), (2, 100, 1)], ids=str)
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("framing", ["window", "length", "both"])
def test_stft(shape, onesided, framing):
    window = None if framing == "length" else real(16)
    length = None if framing == "window" else np.int64(16)
    inputs = [real(*shape), np.int64(5), window, length]
    known = {k for k in (1, 2, 3) if inputs[k] is not None}
    proto, feed = single("STFT", inputs, known, 17, onesided=onesided)
    assert_close(proto, feed)


def test_stft_of_complex_signals_is_refused():
    proto, _ = single("STFT", [real(1, 32, 2), np.int64(4), real(8)], {1, 2}, 17, onesided=0)
    with pytest.raises(UnsupportedOperatorError, match=r"STFT.*complex signal"):
        from_onnx(proto)
    proto, _ = single("STFT", [real(1, 6, 1), np.int64(4), real(8)], {1, 2}, 17)
    with pytest.raises(ModelFormatError, match=r"STFT.*frames of 8"):
        from_onnx(proto)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, -2, 0])
@pytest.mark.parametrize("length", [None, 6, 13])
@pytest.mark.parametrize("mode", ["forward", "inverse", "onesided"])
def test_dft(parts, axis, length, mode):
    if mode == "onesided" and parts == 2:
        pytest.skip("refused")
    tolerance = 2e-5 if length == 13 else 2e-6  # ONNX Runtime takes a detour for other lengths than powers of two
    size = None if length is None else np.int64(length)
    attributes = {"inverse": int(mode == "inverse"), "onesided": int(mode == "onesided")}
    proto, feed = single(
        "DFT", [real(3, 8, 5, parts), size], {1} - ({1} if size is None else set()), 17, axis=axis, **attributes
    )
    assert_close(proto, feed, tolerance)
    inputs = [real(3, 8, 5, parts), size, np.int64(axis)]
    proto, feed = single("DFT", inputs, {k for k in (1, 2) if inputs[k] is not None}, 20, **attributes)
    assert_close(proto, feed, tolerance)


@pytest.mark.parametrize(("bins", "length"), [(9, None), (9, 16), (9, 17), (1, 1)])
def test_dft_inverse_from_one_side(bins, length):
    """torch.fft.irfft, as torch.export writes it: real values, from the half of the spectrum that has them all."""
    size = None if length is None else np.int64(length)
    known = {2} if length is None else {1, 2}
    inputs = [real(2, 3, bins, 2), size, np.int64(-2)]
    proto, feed = single("DFT", inputs, known, 20, inverse=1, onesided=1)
    assert_close(proto, feed, 2e-6)


def test_dft_from_one_side_refuses_other_lengths():
    inputs = [real(2, 3, 9, 2), np.int64(12), np.int64(-2)]
    proto, _ = single("DFT", inputs, {1, 2}, 20, inverse=1, onesided=1)
    with pytest.raises(UnsupportedOperatorError, match=r"DFT.*9 bins to 12 values, which have 7: cut or pad"):
        from_onnx(proto)


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 9, 400])
def test_windows(operator, periodic, size):
    if size == 1 and not periodic:
        pytest.skip("ONNX Runtime divides by zero")
    window = node(operator, ["n"], ["w"], operator, periodic=periodic)
    proto = model(
        [window, node("Mul", ["x", "w"], ["y"])],
        [value("x", (size,))],
        [value("y", (size,))],
        {"n": np.int64(size)},
        17,
    )
    assert_close(proto, {"x": np.ones(size, np.float32)}, 1e-6)


@pytest.mark.parametrize(
    "sizes", [(8, 64, 8000, 0.0, 4000.0), (20, 400, 16000, 60.0, 7600.0), (40, 64, 8000, 0.0, 4000.0)]
)
def test_mel_weights(sizes):
    count, length, rate, low, high = sizes
    constants = {
        "c": np.int64(count),
        "n": np.int64(length),
        "r": np.int64(rate),
        "a": np.float32(low),
        "b": np.float32(high),
    }
    nodes = [node("MelWeightMatrix", list(constants), ["w"]), node("MatMul", ["x", "w"], ["y"])]
    bins = length // 2 + 1
    proto = model(nodes, [value("x", (bins, bins))], [value("y", (bins, count))], constants, 17)
    assert_close(proto, {"x": np.eye(bins, dtype=np.float32)})


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int64])
@pytest.mark.parametrize("constant", [False, True])
def test_reverse_sequence(axes, dtype, constant):
    steps, batch = axes
    x = RNG.integers(-100, 100, (4, 3, 2)).astype(dtype)
    lengths = RNG.integers(1, x.shape[steps] + 1, x.shape[batch])
    known = {1} if constant else set()
    proto, feed = single("ReverseSequence", [x, lengths], known, 10, time_axis=steps, batch_axis=batch)
    assert_close(proto, feed)


def test_sequences_longer_than_the_data_are_an_error():
    proto, feed = single("ReverseSequence", [real(4, 2), np.array([4, 5])], (), 10)
    with pytest.raises(InputError, match="out of range"):
        qnn_ext.Interpreter(from_onnx(proto)).run(feed)


POOLS = [
    ((1, 2, 6, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    ((1, 2, 9, 9), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    ((2, 2, 11), {"kernel_shape": [3], "strides": [3]}),
    ((1, 2, 4, 5, 6), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8])
@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: str(pool[0]))
@pytest.mark.parametrize("order", [0, 1])
def test_positions_of_maxima(order, pool, dtype):
    """In row-major or column-major order of each image."""
    shape, attributes = pool
    x = RNG.permutation(int(np.prod(shape))).reshape(shape)
    x = (x - 40).astype(dtype) if dtype != np.float32 else (x - 40).astype(np.float32)
    proto, feed = single("MaxPool", [x], (), 12, 2, storage_order=order, **attributes)
    assert_close(proto, feed)


def test_maxima_go_back_to_their_positions():
    nodes = [
        node("MaxPool", ["x"], ["m", "i"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Relu", ["m"], ["r"]),
        node("MaxUnpool", ["r", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    proto = model(nodes, [value("x", (2, 3, 6, 8))], [value("y", (2, 3, 6, 8))], opset=12)
    assert_close(proto, {"x": real(2, 3, 6, 8)}, compiled=True)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 1])
def test_lp_normalization(p, axis):
    x = real(3, 4, 5)
    x[1] = 0
    proto, feed = single("LpNormalization", [x], (), 17, p=p, axis=axis)
    assert_close(proto, feed)


IMAGES = [
    ((1, 5, 5), [5, 5], [1, 5], {}),
    ((2, 12, 20), [5, 6], [2, 2], {}),
    ((1, 18, 9), [6, 6], [3, 3], {"strides": [2, 2], "pads": [1, 1, 0, 0]}),
    ((1, 8, 8), [6, 6], [2, 2], {"dilations": [2, 2], "strides": [3, 1]}),
]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: str(image[0]))
def test_col2im(image):
    shape, size, kernel, attributes = image
    proto, feed = single("Col2Im", [real(*shape), np.array(size), np.array(kernel)], {1, 2}, 18, **attributes)
    assert_close(proto, feed)


@pytest.mark.parametrize(
    "activation",
    [
        ("Relu", []),
        ("Sigmoid", []),
        ("Tanh", []),
        ("LeakyRelu", [0.1]),
        ("Clip", [-0.5, 1.5]),
        ("HardSigmoid", [0.25, 0.4]),
    ],
    ids=lambda pair: pair[0],
)
@pytest.mark.parametrize("summand", [False, True])
def test_fused_convolutions(activation, summand):
    name, parameters = activation
    inputs = [real(1, 3, 6, 6), real(4, 3, 3, 3), real(4), real(1, 4, 6, 6) if summand else None]
    attributes = {"activation": name, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if parameters:
        attributes["activation_params"] = parameters
    proto, feed = single(
        "FusedConv", inputs[: 4 if summand else 3], {1, 2}, domain="com.microsoft", result=(1, 4, 6, 6), **attributes
    )
    assert_close(proto, feed, 1e-5)


@pytest.mark.parametrize(
    "activation", [{"activation": "Relu"}, {"activation": "LeakyRelu", "activation_alpha": 0.1}], ids=str
)
def test_fused_products(activation):
    inputs = [real(3, 5), real(4, 5), real(4)]
    proto, feed = single(
        "FusedGemm", inputs, {1, 2}, domain="com.microsoft", result=(3, 4), transB=1, alpha=0.5, **activation
    )
    assert_close(proto, feed, 1e-5)
