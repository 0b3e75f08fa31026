"""Dequantize → float operators → quantize, as QDQ models write quantized layers; moves of integers."""

from __future__ import annotations

import numpy as np

from ..builder import Value, beyond_int32
from ..rules import APPROXIMATION, FLOAT_STEPS, FUSED, HOSTILE, Rule, bounded
from ..values import LARGEST_INPUT
from .builder import BYTES, GENERATORS, MICROSOFT, OnnxBuilder, element
from .quantized import convolution, result, weight_dtype, windows

generates = GENERATORS.generates
INTEGERS = ("int8", "uint8", "int16", "uint16")
EVERY = (*BYTES, "int32", "int64", "float32")


def anything(b: OnnxBuilder, rank: tuple[int, ...] = (1, 2, 3, 4)) -> Value:
    """A tensor of any dtype, most often a quantized one."""
    if b.draw.chance(0.7):
        return b.take(BYTES, rank, quantized=True)
    return b.take(("float32", "int32", "int64"), rank)


@generates("QuantizeLinear")
def quantize(b: OnnxBuilder) -> None:
    """Also com.microsoft's operator of the same name."""
    x, dtype = b.take(("float32",)), b.draw.pick(INTEGERS)
    scale, zero = b.draw.scale(), b.draw.zero_point(dtype)
    domain = MICROSOFT if b.draw.chance(0.3) else ""
    inputs = [x, b.const(scale, "float32"), b.const(zero, dtype)]
    accident = b.undefined or beyond_int32(LARGEST_INPUT, scale)
    kept = scale if dtype in BYTES else None
    b.node("QuantizeLinear", inputs, x.shape, dtype, kept, zero, domain=domain, accident=accident)


@generates("DequantizeLinear")
def dequantize(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    b.node("DequantizeLinear", [x, *b.qparams(x)], x.shape, "float32", domain=MICROSOFT if b.draw.chance(0.3) else "")


def weight(b: OnnxBuilder, dtype: str, shape: tuple[int, ...], axis: int) -> tuple[Value, np.ndarray]:
    """A constant after a DequantizeLinear, sometimes per channel; and its scales."""
    per_channel = dtype == "int8" and b.draw.chance(0.5)
    count = shape[axis] if per_channel else 1
    scales = np.array([b.draw.scale(0.01) for _ in range(count)], np.float32)
    zeros = np.zeros(count, dtype)
    if not per_channel:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    names = [b.const(b.draw.weights(dtype, shape)), b.const(scales), b.const(zeros)]
    return b.node("DequantizeLinear", names, shape, "float32", axis=axis if per_channel else 0), scales


@generates("Conv", "ConvTranspose")
def conv(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    if name == "Conv":
        w_shape, shape, attributes = convolution(b, x)
    else:
        kernel, stride = [b.draw.between(1, 3), b.draw.between(1, 3)], [b.draw.between(1, 2), b.draw.between(1, 2)]
        w_shape = (x.shape[1], b.draw.extent(9), *kernel)
        size = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, kernel, strict=True)]
        shape, attributes = (x.shape[0], w_shape[1], *size), {"strides": stride}
    w, scales = weight(b, weight_dtype(b, x), w_shape, 0 if name == "Conv" else 1)
    depth = int(np.prod(w_shape[1:] if name == "Conv" else (w_shape[0], *w_shape[2:])))
    sums = b.sums(depth, real(x) * 255 * float(scales.max()))
    y = b.node(name, [b.dequantized(x), w], shape, "float32", accident=sums, steady=b.exact, island=True, **attributes)
    if b.draw.chance(0.4):
        y = b.node("Relu", [y], shape, "float32", island=True, keeps=True)
    b.quantized(y, x.dtype, result(b, x, scales, int(np.prod(w_shape[1:])))[0])


@generates("Gemm", "MatMul")
def matmul(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, rank=2 if name == "Gemm" else (2, 3, 4), quantized=True)
    columns = b.draw.extent()
    transposed = name == "Gemm" and b.draw.chance(0.5)
    w_shape = (columns, x.shape[-1]) if transposed else (x.shape[-1], columns)
    w, scales = weight(b, weight_dtype(b, x), w_shape, 0 if transposed else 1)
    options = {"transB": int(transposed)} if name == "Gemm" else {}
    sums = b.sums(x.shape[-1], real(x) * 255 * float(scales.max()))
    shape = (*x.shape[:-1], columns)
    y = b.node(name, [b.dequantized(x), w], shape, "float32", accident=sums, steady=b.exact, island=True, **options)
    b.quantized(y, x.dtype, result(b, x, scales, x.shape[-1])[0])


@generates("Add", "Sub", "Mul")
def arithmetic(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, quantized=True)
    y = b.take(BYTES, quantized=True, shape=x.shape) if b.draw.chance(0.7) else b.fresh(x.dtype, x.shape[-1:], True)
    assert x.scale is not None and y.scale is not None
    scale = b.scale(0.08) if name != "Mul" else x.scale * y.scale * 99 * b.draw.scale(1)
    largest = real(x) * real(y) if name == "Mul" else real(x) + real(y)
    accident = bounded(FUSED, 2.0**-22 * largest)
    total = b.node(name, [b.dequantized(x), b.dequantized(y)], x.shape, "float32", accident=accident, island=True)
    b.quantized(total, x.dtype, scale)


APPROXIMATED, STEPPED = bounded(APPROXIMATION, 2e-6, 2e-5), bounded(FLOAT_STEPS, 2e-6, 2e-6)
UNARY = {
    "Relu": None, "Clip": None, "Abs": None, "Neg": None, "Floor": None, "Sign": None, "Sigmoid": APPROXIMATED,
    "Tanh": APPROXIMATED, "Exp": APPROXIMATED, "Erf": APPROXIMATED, "LeakyRelu": STEPPED, "HardSigmoid": STEPPED,
    "HardSwish": STEPPED, "Elu": APPROXIMATED, "Softmax": APPROXIMATED,
}  # fmt: skip


@generates(*UNARY)
def unary(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, quantized=True)
    inputs: list[Value | str] = [b.dequantized(x)]
    if name == "Clip":
        inputs += [b.const(-1.0, "float32"), b.const(2.5, "float32")]
    y = b.node(name, inputs, x.shape, "float32", accident=UNARY[name], steady=name != "Softmax", island=True)
    b.quantized(y, x.dtype, b.draw.scale(0.02) if name in ("Sigmoid", "Tanh", "Softmax") else b.scale())


@generates("MaxPool", "AveragePool")
def pool(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    size, attributes = windows(b, x.shape[2:], dilate=False)
    y = b.node(
        name, [b.dequantized(x)], (*x.shape[:2], *size), "float32", **attributes,
        accident=None if name == "MaxPool" else mean(x), island=True,
    )  # fmt: skip
    b.quantized(y, x.dtype, x.scale or 1.0, x.zero)


@generates("GlobalAveragePool")
def global_pool(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    y = b.node("GlobalAveragePool", [b.dequantized(x)], (*x.shape[:2], 1, 1), "float32", accident=mean(x), island=True)
    b.quantized(y, x.dtype, x.scale or 1.0)


# ---- moves -------------------------------------------------------------------------------------------------------


def real(x: Value) -> float:
    """A bound on the real values of an 8-bit quantized tensor."""
    return 255 * (x.scale or 0.0)


def mean(x: Value) -> Rule:
    """The rule for averages over an image."""
    cells = int(np.prod(x.shape[2:])) + 2
    return bounded(FLOAT_STEPS, 2 * cells * 2.0**-24 * real(x))


def moved(b: OnnxBuilder, name: str, x: Value, shape: object, *constants: str, **attributes: object) -> None:
    """An operator whose result holds x's values."""
    b.node(name, [x, *constants], shape, x.dtype, x.scale, x.zero, keeps=True, **attributes)  # type: ignore[arg-type]


@generates("Identity", "Dropout")
def identity(b: OnnxBuilder, name: str) -> None:
    x = anything(b) if name == "Identity" else b.take(("float32",))
    moved(b, name, x, x.shape)


@generates("Flatten")
def flatten(b: OnnxBuilder) -> None:
    x = anything(b)
    axis = b.draw.between(0, len(x.shape))
    moved(b, "Flatten", x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))), axis=axis)


@generates("Reshape")
def reshape(b: OnnxBuilder) -> None:
    x = anything(b)
    shape = (x.shape[0], -1) if b.draw.chance(0.5) else tuple(reversed(x.shape))
    moved(b, "Reshape", x, np.empty(x.shape).reshape(shape).shape, b.const(shape, "int64"))


@generates("Transpose")
def transpose(b: OnnxBuilder) -> None:
    x = anything(b)
    order = [int(a) for a in b.draw.rng.permutation(len(x.shape))]
    moved(b, "Transpose", x, [x.shape[a] for a in order], perm=order)


@generates("Gather")
def gather(b: OnnxBuilder) -> None:
    """Indices, constant or from an input; they are out of range in hostile graphs only."""
    x = anything(b)
    axis, count = b.draw.between(0, len(x.shape) - 1), b.draw.between(1, 6)
    most = x.shape[axis]
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if b.draw.chance(0.5):
        moved(b, "Gather", x, shape, b.const(b.draw.rng.integers(-most, most, count), "int64"), axis=axis)
        return
    limits = (None, None) if b.recipe.hostile else (-most, most - 1)
    indices = b.fresh("int64", (count,), False, *limits)
    b.node("Gather", [x, indices], shape, x.dtype, x.scale, x.zero, axis=axis)


@generates("GatherElements")
def gather_elements(b: OnnxBuilder) -> None:
    x = anything(b)
    axis = b.draw.between(0, len(x.shape) - 1)
    shape = [b.draw.between(1, 6) if i == axis else b.draw.between(1, n) for i, n in enumerate(x.shape)]
    indices = b.draw.rng.integers(-x.shape[axis], x.shape[axis], shape)
    moved(b, "GatherElements", x, shape, b.const(indices, "int64"), axis=axis)


@generates("ReduceMax", "ReduceMin")
def extreme(b: OnnxBuilder, name: str) -> None:
    x = anything(b)
    axes = sorted(int(a) for a in b.draw.rng.permutation(len(x.shape))[: b.draw.between(1, len(x.shape))])
    kept = b.draw.chance(0.5)
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if kept or a not in axes]
    moved(b, name, x, shape, b.const(axes, "int64"), keepdims=int(kept))


@generates("Pad")
def pad(b: OnnxBuilder) -> None:
    x = anything(b)
    before, after = ([b.draw.between(0, 2) for _ in x.shape] for _ in range(2))
    shape = [n + p + q for n, p, q in zip(x.shape, before, after, strict=True)]
    value = b.draw.array(x.dtype, ())
    moved(b, "Pad", x, shape, b.const(before + after, "int64"), b.const(value))


@generates("Tile")
def tile(b: OnnxBuilder) -> None:
    x = b.take(("float32", "int32", "int64", *BYTES))
    times = [b.draw.pick([1, 1, 2, 3]) for _ in x.shape]
    moved(b, "Tile", x, [n * t for n, t in zip(x.shape, times, strict=True)], b.const(times, "int64"))


@generates("SpaceToDepth", "DepthToSpace")
def depth(b: OnnxBuilder, name: str) -> None:
    block, (n, c, h, w) = 2, (b.draw.between(1, 2), b.draw.extent(5), b.draw.extent(5), b.draw.extent(5))
    if name == "SpaceToDepth":
        x = b.take(("float32",), rank=4, shape=(n, c, h * block, w * block))
        moved(b, name, x, (n, c * block * block, h, w), blocksize=block)
    else:
        x = b.take(("float32",), rank=4, shape=(n, c * block * block, h, w))
        moved(b, name, x, (n, c, h * block, w * block), blocksize=block, mode=b.draw.pick(["DCR", "CRD"]))


@generates("Resize")
def resize(b: OnnxBuilder) -> None:
    x = b.take((*BYTES,), rank=4, quantized=True)
    sizes = (*x.shape[:2], b.draw.between(1, 9), b.draw.between(1, 9))
    coordinates = b.draw.pick(
        ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
    )
    nearest = b.draw.pick(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    b.node(
        "Resize", [x, "", "", b.const(sizes, "int64")], sizes, x.dtype, x.scale, x.zero, mode="nearest",
        coordinate_transformation_mode=coordinates, nearest_mode=nearest,
    )  # fmt: skip


@generates("Cast")
def cast(b: OnnxBuilder) -> None:
    """From float to integer only where C defines it, except in hostile graphs."""
    x = anything(b)
    dtype = b.draw.pick(["int8", "uint8", "int32", "int64", "float32", "bool"])
    narrow = x.dtype == "float32" and dtype != "bool"
    if narrow and not b.recipe.hostile:
        dtype = "bool"
        narrow = False
    b.node("Cast", [x], x.shape, dtype, accident=HOSTILE if narrow else None, to=element(dtype))


@generates("CumSum")
def cumsum(b: OnnxBuilder) -> None:
    x = b.take(("int32", "int64"))
    axis = b.const(b.draw.between(0, len(x.shape) - 1), "int64")
    options = {"exclusive": b.draw.between(0, 1), "reverse": b.draw.between(0, 1)}
    b.node("CumSum", [x, axis], x.shape, x.dtype, **options)


@generates("Shape", "Size")
def shape_(b: OnnxBuilder, name: str) -> None:
    x = anything(b)
    b.node(name, [x], (len(x.shape),) if name == "Shape" else (), "int64")


@generates("OneHot")
def one_hot(b: OnnxBuilder) -> None:
    x = b.take(("int64",), rank=(1, 2))
    b.node("OneHot", [x, b.const(5, "int64"), b.const([2, 7], "float32")], (*x.shape, 5), "float32", axis=-1)
