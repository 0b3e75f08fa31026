"""Products between dequantized tensors: integers after the pass, the model's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.op.base import constant

from .qdq import RNG, Case, Graph, check, run, together

R = relax.op
LINE = RNG.normal(size=(2, 6, 17)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 6, 9, 8)).astype(np.float32)
VOLUME = RNG.normal(size=(1, 6, 5, 6, 4)).astype(np.float32)
ROWS = RNG.normal(size=(2, 5, 12)).astype(np.float32)
IN = {"uint8": (0.03137, 120), "int8": (0.0291, -5), "int16": (1.37e-4, 7), "uint16": (1.31e-4, 30000)}
OUT = {"uint8": (0.0529, 3), "int8": (0.0529, -128), "int16": (3.7e-4, 0), "uint16": (3.1e-4, 33000)}


def integers(shape, dtype="int8"):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def weight_of(g: Graph, shape, axis, dtype="int8", zero_points=False):
    """A dequantized weight with a scale for each index of `axis`, or a single one for None."""
    size = () if axis is None else (shape[axis],)
    scales = RNG.uniform(0.01, 0.02, size).astype(np.float32)
    zero = RNG.integers(-9, 9, size) if zero_points else np.zeros(size)
    return g.dq(integers(shape, dtype), scales, zero.astype(np.int32), axis or 0)


def convolution(source, shape, dtype="uint8", reciprocal=True, zero_points=False, axis=0, **geometry) -> Case:
    def model(g: Graph, x):
        operator = (R.nn.conv1d, R.nn.conv2d, R.nn.conv3d)[source.ndim - 3]
        a = g.qdq(x, *IN[dtype], dtype, reciprocal)
        y = g.emit(operator(a, weight_of(g, shape, axis, zero_points=zero_points), **geometry))
        bias = RNG.normal(size=(1, shape[0]) + (1,) * (source.ndim - 2)).astype(np.float32)
        y = g.emit(R.nn.relu(g.emit(R.add(y, constant(bias)))))
        return g.q(y, *OUT[dtype], dtype, reciprocal)

    return model, [source]


def transposed(source, shape, groups=1, **geometry) -> Case:
    def model(g: Graph, x):
        operator = (R.nn.conv1d_transpose, R.nn.conv2d_transpose, R.nn.conv3d_transpose)[source.ndim - 3]
        y = operator(g.qdq(x, *IN["uint8"]), weight_of(g, shape, 1), groups=groups, **geometry)
        return g.q(g.emit(y), *OUT["uint8"])

    return model, [source]


def quantized_channels(g: Graph, x, zero_points, dtype="uint8"):
    """Data quantized with a scale for each channel."""
    channels = tuple(x.ty.shape)[1]
    zeros = constant(np.broadcast_to(np.int32(zero_points), int(channels)))
    scales = constant(RNG.uniform(0.02, 0.04, int(channels)).astype(np.float32))
    q = g.emit(qnn.quantize(x, scales, zeros, axis=1, out_dtype=dtype, reciprocal=True))
    return g.emit(qnn.dequantize(q, scales, zeros, axis=1))


def one_scale_and_zero_points(g: Graph, x):
    """Zero points in a vector, all of them equal, and one scale."""
    scale, zeros = constant(np.float32(0.03)), constant(np.full(6, 3, np.int32))
    q = g.emit(qnn.quantize(x, scale, zeros, axis=1, out_dtype="uint8", reciprocal=True))
    y = R.nn.conv2d(g.emit(qnn.dequantize(q, scale, zeros, axis=1)), weight_of(g, (12, 1, 3, 3), 0), groups=6)
    return g.q(g.emit(y), *OUT["uint8"], "uint8", True)


def scales_of_channels(source, shape, axis=0, dtype="uint8", zero_points=0, groups=6, **geometry) -> Case:
    """A convolution of channels that have scales of their own, as NNCF quantizes depthwise ones."""

    def model(g: Graph, x):
        operator = (R.nn.conv1d, R.nn.conv2d, R.nn.conv3d)[source.ndim - 3]
        y = operator(quantized_channels(g, x, zero_points, dtype), weight_of(g, shape, axis), groups=groups, **geometry)
        bias = RNG.normal(size=(1, shape[0]) + (1,) * (source.ndim - 2)).astype(np.float32)
        return g.q(g.emit(R.add(g.emit(y), constant(bias))), *OUT[dtype], dtype, True)

    return model, [source]


def matmul(x_shape, y_shape, dtype="uint8") -> Case:
    """Both operands computed at run time."""

    def model(g: Graph, x, y):
        product = g.emit(R.matmul(g.qdq(x, *IN[dtype], dtype), g.qdq(y, 0.021, -3, "int8")))
        return g.q(product, 0.1037, 0, "int8")

    return model, [RNG.normal(size=shape).astype(np.float32) for shape in (x_shape, y_shape)]


def dense(dtype="uint8", weight_dtype="int8", reciprocal=False) -> Case:
    """As PyTorch writes it: weights (N, K), transposed in the graph; a float bias; the result is not quantized."""

    def model(g: Graph, x):
        w = g.emit(R.permute_dims(weight_of(g, (7, 12), 0, weight_dtype)))
        y = g.emit(R.matmul(g.qdq(x, *IN[dtype], dtype, reciprocal), w))
        return g.emit(R.add(y, constant(RNG.normal(size=7).astype(np.float32))))

    return model, [ROWS]


def residual(g: Graph, x):
    """Two convolutions that meet in an addition with no quantize between."""
    a = g.qdq(x, *IN["uint8"], reciprocal=True)
    one, two = (g.emit(R.nn.conv2d(a, weight_of(g, (8, 6, 1, 1), 0))) for _ in range(2))
    return g.q(g.emit(R.nn.relu(g.emit(R.add(one, two)))), *OUT["uint8"], reciprocal=True)


def rows_with_scales(g: Graph, x):
    """The constant is the left operand, with a scale for each of its rows."""
    w = weight_of(g, (7, 5), 0)
    return g.q(g.emit(R.matmul(w, g.qdq(x, *IN["uint8"]))), *OUT["uint8"])


def folded_weight(g: Graph, x):
    """The model quantizes its float weights itself."""
    w = g.emit(R.permute_dims(constant(RNG.normal(size=(7, 12)).astype(np.float32))))
    w = g.qdq(w, 0.02, 0, "int8")
    return g.q(g.emit(R.matmul(g.qdq(x, *IN["uint8"]), w)), *OUT["uint8"])


def dynamic(g: Graph, x):
    """Scale and zero point computed at run time from the data."""
    low, high = g.emit(R.min(x)), g.emit(R.max(x))
    span = g.emit(R.subtract(high, low))
    scale = g.emit(R.divide(span, constant(np.float32(255))))
    zero = g.emit(R.round(g.emit(R.divide(g.emit(R.negative(low)), scale))))
    zero = g.emit(R.astype(zero, "int32"))
    q = g.emit(qnn.quantize(x, scale, zero, out_dtype="uint8"))
    a = g.emit(qnn.dequantize(q, scale, zero))
    return g.emit(R.matmul(a, weight_of(g, (12, 7), 1)))


CASES: dict[str, Case] = {
    **{f"conv2d-{d}-{r}": convolution(IMAGE, (8, 6, 3, 3), d, r, padding=(1, 1)) for d in IN for r in (False, True)},
    "conv2d-zero-points": convolution(IMAGE, (8, 6, 3, 3), zero_points=True, padding=(1, 0, 2, 1)),
    "conv2d-per-tensor": convolution(IMAGE, (8, 6, 3, 3), axis=None, strides=(2, 1), dilation=(1, 2)),
    "conv2d-depthwise": convolution(IMAGE, (6, 1, 3, 3), groups=6, padding=(1, 1)),
    "depthwise-scales": scales_of_channels(IMAGE, (6, 1, 3, 3), padding=(1, 1)),
    "depthwise-scales-twice": scales_of_channels(IMAGE, (12, 1, 3, 3), axis=None, zero_points=7, strides=(2, 2)),
    "depthwise-zero-points": (one_scale_and_zero_points, [IMAGE]),
    "depthwise-scales-1d": scales_of_channels(LINE, (6, 1, 3), dtype="int8", zero_points=-3, padding=1),
    "depthwise-scales-3d": scales_of_channels(VOLUME, (6, 1, 2, 3, 3), dtype="int8"),
    "conv2d-groups": convolution(IMAGE, (8, 3, 3, 3), groups=2),
    "conv1d": convolution(LINE, (8, 6, 3), strides=2, padding=1),
    "conv3d": convolution(VOLUME, (8, 6, 2, 3, 3), padding=(1, 1, 1)),
    "conv1d_transpose": transposed(LINE, (6, 5, 3), strides=2),
    "conv2d_transpose": transposed(IMAGE, (6, 5, 3, 3), strides=(2, 2), padding=(1, 1), output_padding=(1, 1)),
    "conv2d_transpose-groups": transposed(IMAGE, (6, 4, 3, 3), groups=2, strides=(2, 2)),
    "conv3d_transpose": transposed(VOLUME, (6, 5, 2, 2, 2), strides=(2, 2, 2)),
    "matmul-2d": matmul((5, 12), (12, 7)),
    "matmul-3d": matmul((3, 5, 12), (3, 12, 7), "int8"),
    "matmul-4d": matmul((2, 3, 5, 12), (2, 3, 12, 7)),
    "matmul-broadcast": matmul((2, 3, 5, 12), (12, 7)),
    "matmul-vectors": matmul((12,), (3, 12, 7)),
    **{f"dense-{d}-{r}": dense(d, reciprocal=r) for d in IN for r in (False, True)},
    "dense-uint8-weight": dense(weight_dtype="uint8"),
    "residual": (residual, [IMAGE]),
    "rows-with-scales": (rows_with_scales, [ROWS]),
    "folded-weight": (folded_weight, [ROWS]),
    "dynamic": (dynamic, [ROWS]),
}


@pytest.mark.parametrize("name", CASES)
def test_product(name):
    function, inputs = CASES[name]
    # a float sum is off by 1e-7 of itself, which 16 bits see more often; a bias between ONNX's quantize operators is
    # rounded to units of the accumulator, as ONNX Runtime does
    outcome = check(
        function,
        *inputs,
        compiled=False,
        share=0.02 if "int16" in name or ("conv2d-" in name and "False" in name) else 1e-3,
    )
    assert not outcome.notes
    left = [operator for operator in outcome.operators if operator.startswith("nn.conv") or operator == "matmul"]
    assert not left
    assert {"qnn.conv2d", "qnn.conv2d_transpose", "qnn.dense", "qnn.batch_matmul"} & set(outcome.operators)


def test_kernels():
    function, inputs = together(CASES.values())
    run(function, *inputs)


@pytest.mark.parametrize("bias_scale", [1.0, 1.0000001])
def test_integer_bias_stays_in_the_accumulator(bias_scale):
    """ONNX: rint(f32(acc + bias) · f32(f32(s_x·s_w) / s_y)) + z_y, whatever the last bits of the bias's scale."""
    weight, scales = integers((8, 6, 3, 3)), RNG.uniform(0.01, 0.02, 8).astype(np.float32)
    bias, (scale, zero), (out_scale, out_zero) = RNG.integers(-9000, 9000, 8), IN["uint8"], OUT["uint8"]

    def model(g: Graph, x):
        y = g.emit(R.nn.conv2d(g.dq(x, scale, zero), g.dq(weight, scales, np.zeros(8), 0)))
        b = g.dq(bias.astype(np.int32), scales * np.float32(scale * bias_scale), np.zeros(8), 0)
        return g.q(g.emit(R.add(y, g.emit(R.reshape(b, (1, 8, 1, 1))))), out_scale, out_zero)

    data = integers((2, 6, 9, 8), "uint8")
    outcome = check(model, data, share=5e-3)
    assert outcome.operators.count("qnn.requantize") == 1 and not outcome.floats()
    x = np.lib.stride_tricks.sliding_window_view(data.astype(np.int64) - zero, (3, 3), axis=(2, 3))
    acc = np.einsum("ncyxij,ocij->noyx", x, weight.astype(np.int64)) + bias.reshape(1, 8, 1, 1)
    multiplier = (np.float32(scale) * scales).astype(np.float32) / np.float32(out_scale)
    real = acc.astype(np.float32) * multiplier.reshape(1, 8, 1, 1)
    np.testing.assert_array_equal(outcome.got[0], np.clip(np.rint(real) + out_zero, 0, 255))


def test_float_bias_and_reciprocal():
    """PyTorch: rint((f32(acc)·f32(s_x·s_w) + bias) · f32(1 / s_y)) + z_y."""
    weight, scales = integers((12, 7)), RNG.uniform(0.01, 0.02, 7).astype(np.float32)
    bias, (scale, zero), (out_scale, out_zero) = RNG.normal(size=7).astype(np.float32), IN["uint8"], OUT["uint8"]

    def model(g: Graph, x):
        y = g.emit(R.matmul(g.dq(x, scale, zero), g.dq(weight, scales, np.zeros(7), 1)))
        return g.q(g.emit(R.add(y, constant(bias))), out_scale, out_zero, reciprocal=True)

    data = integers((50, 12), "uint8")
    outcome = check(model, data)
    acc = (data.astype(np.int64) - zero) @ weight.astype(np.int64)
    real = acc.astype(np.float32) * (np.float32(scale) * scales) + bias
    expected = np.rint(real * (np.float32(1) / np.float32(out_scale))) + out_zero
    np.testing.assert_array_equal(outcome.got[0], np.clip(expected, 0, 255))


# ---- what has to stay in float, and why ---------------------------------------------------------------------------


def float_cases() -> dict[str, tuple[Case, str]]:
    def scales_along(axis):
        def model(g: Graph, x):
            return g.emit(R.matmul(g.qdq(x, *IN["uint8"]), weight_of(g, (12, 7), axis)))

        return model, [ROWS]

    def one_side(g: Graph, x):
        return g.emit(R.matmul(g.qdq(x, *IN["uint8"]), constant(integers((12, 7)).astype(np.float32))))

    def wide(g: Graph, x):
        return g.emit(R.matmul(g.qdq(x, *IN["uint8"]), g.dq(integers((12, 7), "int16").astype(np.int32), 1e-4, 0)))

    def scaled(scale):
        def model(g: Graph, x):
            return g.emit(R.matmul(g.dq(g.q(x, 0.1, 3), scale, 3), g.dq(integers((12, 7)), scale, 0)))

        return model, [ROWS]

    mixed = "its data has scales along axis 1, so the sum would mix scales"
    beyond = "the product of its scales is out of the range of normal float32 numbers"
    return {
        "tiny scales": (scaled(1e-20), beyond),
        "huge scales": (scaled(1e20), beyond),
        "sum over scales": (scales_along(0), "its weight has scales along axis 0, not one per output channel"),
        "groups of channels": (scales_of_channels(IMAGE, (6, 2, 3, 3), groups=3), mixed),
        "one group": (scales_of_channels(IMAGE, (6, 6, 1, 1), groups=1), mixed),
        "zero points": (scales_of_channels(IMAGE, (6, 1, 3, 3), zero_points=[0, 1, 2, 3, 4, 5]), mixed),
        "one side": ((one_side, [ROWS]), "the model does not quantize both of its operands"),
        "int32": ((wide, [ROWS]), "its operands are uint8 and int32; products need 8 or 16 bits"),
    }


@pytest.mark.parametrize("name", float_cases())
def test_note(name):
    (function, inputs), reason = float_cases()[name]
    outcome = run(function, *inputs, compiled=False)
    assert [note.reason for note in outcome.notes] == [reason]
    assert sum(one in ("matmul", "nn.conv2d") for one in outcome.operators) == 1
    np.testing.assert_allclose(outcome.got[0], outcome.expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("before", ["input", "sum", "function"])
def test_floats_times_integer_weights(axis, before):
    """The weight stays packed, also where the floats come from integers that nothing quantizes again."""

    def model(g: Graph, x):
        if before == "sum":
            x = g.emit(R.matmul(g.qdq(x, *IN["uint8"]), weight_of(g, (12, 12), None)))
        elif before == "function":
            x = g.emit(R.sigmoid(g.qdq(x, *IN["uint8"])))
        return g.emit(R.matmul(x, weight_of(g, (12, 7), axis)))

    outcome = run(model, ROWS, compiled=False)
    assert outcome.operators.count("qnn.blockwise_dense") == 1 and "matmul" not in outcome.operators
    assert "its activations are floats" in outcome.notes[-1].reason
    np.testing.assert_allclose(outcome.got[0], outcome.expected[0], rtol=1e-5, atol=1e-4)


def test_constant_added_to_a_sum_is_no_bias():
    """The steps of a sum are those of its summands: too coarse for a constant."""

    def model(g: Graph, x):
        total = g.emit(R.sum(g.qdq(x, 0.5, 120), [-1]))
        return g.q(g.emit(R.add(total, constant(np.float32(0.2)))), 0.25, 100)

    check(model, ROWS, compiled=False)
