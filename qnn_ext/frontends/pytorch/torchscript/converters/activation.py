"""Unary functions. On a quantized tensor each is a table of what PyTorch computes for all 256 integers.

PyTorch's QNNPACK clamp (relu6, hardtanh, clamp) scrambles channels-last tensors, as QNNPACK's convolutions produce:
this defect is not reproduced.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....numerics.reference import domain
from .....op.base import constant
from .....qparams import QParams
from ...common import import_torch
from ..formulas import VECTOR_LENGTH, scalar
from ..node import Node
from ..registry import converter
from ..values import array_of, plain
from .float_math import operand

# the name of the function's operand in the schemas below
_DATA = ("self", "qx", "input", "X")


@converter(
    "quantized::relu6", "quantized::leaky_relu", "quantized::hardswish", "quantized::elu", "quantized::celu",
    "quantized::sigmoid", "quantized::threshold", "quantized::clamp",
    "aten::relu", "aten::relu_", "aten::relu6", "aten::relu6_", "aten::hardtanh", "aten::hardtanh_", "aten::clamp",
    "aten::clamp_", "aten::clamp_min", "aten::clamp_min_", "aten::clamp_max", "aten::clamp_max_", "aten::sigmoid",
    "aten::sigmoid_", "aten::tanh", "aten::tanh_", "aten::hardsigmoid", "aten::hardsigmoid_", "aten::hardswish",
    "aten::hardswish_", "aten::elu", "aten::elu_", "aten::celu", "aten::leaky_relu", "aten::leaky_relu_", "aten::gelu",
    "aten::silu", "aten::silu_", "aten::threshold", "aten::threshold_", "aten::mish", "aten::softplus", "aten::exp",
    "aten::sqrt", "aten::rsqrt", "aten::neg", "aten::abs", "aten::erf", "aten::log", "aten::selu", "aten::reciprocal",
    "aten::sin", "aten::cos", "aten::square", "aten::log2", "aten::log10", "aten::log1p", "aten::expm1",
    constants=("min", "max"),
)  # fmt: skip
def _unary(node: Node) -> relax.Expr:
    name = next(name for name in _DATA if name in node.arguments)
    source = node.qparams(name)
    if source is None:
        return _in_float(node, operand(node, name))
    if source.dtype not in ("int8", "uint8"):
        raise node.unsupported(f"an activation function of {source.dtype}; only 8-bit ones are supported")
    return table_or_clip(node, node.expr(name), function_table(node, name, source), source.dtype)


def function_table(node: Node, name: str, source: QParams) -> np.ndarray:
    """The results of PyTorch's kernel for every integer value of the argument, all at once or, where it computes its
    elements one by one, a few at a time: it rounds midpoints differently then."""
    torch = import_torch()
    values = domain(source.dtype)
    pieces = np.split(values, 2 * len(values) // VECTOR_LENGTH) if _is_one_by_one(node, name) else [values]

    def results(piece: np.ndarray) -> np.ndarray:
        integers = torch.from_numpy(piece.copy())
        tensor = torch._make_per_tensor_quantized_tensor(integers, float(source.scale), int(source.zero_point))
        return array_of(node.run([tensor if key == name else plain(value) for key, value in node.arguments.items()]))

    return np.concatenate([results(piece) for piece in pieces])


def _is_one_by_one(node: Node, name: str) -> bool:
    """Whether PyTorch's loop takes no vectors: where fewer elements than one has follow each other in memory, of the
    argument and of the result. Leaky ReLU copies its argument. (The last elements of longer runs, which are taken one
    by one as well, are not told apart.)"""
    data, result = node[name], node.examples[0]
    if "leaky_relu" in node.kind:
        data = result
    run = 1
    for axis in sorted(range(data.dim()), key=result.stride):
        if data.shape[axis] > 1:
            if (data.stride(axis), result.stride(axis)) != (run, run):
                break
            run *= data.shape[axis]
    return run < VECTOR_LENGTH


def table_or_clip(node: Node, value: relax.Expr, table: np.ndarray, dtype: str) -> relax.Expr:
    """The table as an operator; one that only clips becomes a clip, which needs no table."""
    low, high = int(table.min()), int(table.max())
    if np.array_equal(table, np.clip(domain(dtype), low, high)):
        return node.emit(relax.op.clip(value, low, high))
    return node.emit(qnn.table(value, constant(table)))


# ---- in float ----------------------------------------------------------------------------------------------------


def _in_float(node: Node, x: relax.Expr) -> relax.Expr:
    """The float function for an operator's name, ignoring the underscore of in-place ones."""
    name = node.kind.split("::")[1].rstrip("_")
    emit, op = node.emit, relax.op
    if name in _BOUNDS:
        low, high = _BOUNDS[name](node)
        return op.clip(x, low, high)
    node.note("a float activation function between quantized layers")
    if name in _SIMPLE:
        return getattr(op, _SIMPLE[name])(x)
    if name == "gelu":
        return op.nn.gelu_tanh(x) if node.get("approximate", "none") == "tanh" else op.nn.gelu(x)
    if name == "silu":
        return op.nn.silu(x)
    if name in ("hardsigmoid", "hardswish"):
        shifted = emit(op.clip(emit(op.add(x, scalar(3))), 0.0, 6.0))
        factor = shifted if name == "hardsigmoid" else emit(op.multiply(x, shifted))
        return op.divide(factor, scalar(6))
    if name == "leaky_relu":
        return op.where(emit(op.less(x, scalar(0))), emit(op.multiply(x, scalar(node["negative_slope"]))), x)
    if name in ("elu", "celu", "selu"):
        return _exponential(node, name, x)
    if name == "softplus":
        beta = float(node["beta"])
        grown = emit(op.exp(emit(op.multiply(x, scalar(beta)))))
        smooth = emit(op.divide(emit(op.log(emit(op.add(grown, scalar(1))))), scalar(beta)))
        return op.where(emit(op.greater(x, scalar(float(node["threshold"]) / beta))), x, smooth)
    if name == "mish":
        soft = emit(op.log(emit(op.add(emit(op.exp(x)), scalar(1)))))
        return op.multiply(x, emit(op.tanh(soft)))
    if name == "threshold":
        above = emit(op.greater(x, scalar(node["threshold"])))
        return op.where(above, x, scalar(node["value"]))
    if name in ("log2", "log10", "log1p", "expm1"):
        wide = _composed(node, name, emit(op.astype(x, "float64")))
        return op.astype(wide, str(x.ty.dtype))
    if name == "reciprocal":
        return op.divide(scalar(1), x)
    raise node.unsupported("this function of a float tensor; keep it out of the exported module")


_SIMPLE = {
    "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "sqrt": "sqrt", "rsqrt": "rsqrt", "neg": "negative",
    "abs": "abs", "erf": "erf", "log": "log", "sin": "sin", "cos": "cos", "square": "square",
}  # fmt: skip


def _composed(node: Node, name: str, x: relax.Expr) -> relax.Expr:
    """Functions that lose digits when they are composed in float32: x is float64."""
    emit, op, one = node.emit, relax.op, constant(np.float64(1))
    if name in ("log2", "log10"):
        return emit(op.divide(emit(op.log(x)), constant(np.log(np.float64(name.removeprefix("log"))))))
    result = op.log(emit(op.add(one, x))) if name == "log1p" else op.subtract(emit(op.exp(x)), one)
    is_small = emit(op.less(emit(op.abs(x)), constant(np.float64(1e-8))))  # x itself is as accurate as float32 there
    return emit(op.where(is_small, x, emit(result)))


def _limits(node: Node) -> tuple[float, float]:
    low, high = node.get("min"), node.get("max")
    return (-math.inf if low is None else float(low)), (math.inf if high is None else float(high))


_BOUNDS = {
    "relu": lambda node: (0.0, math.inf),
    "relu6": lambda node: (0.0, 6.0),
    "hardtanh": lambda node: (float(node["min_val"]), float(node["max_val"])),
    "clamp": _limits,
    "clamp_min": _limits,
    "clamp_max": _limits,
}


def _exponential(node: Node, name: str, x: relax.Expr) -> relax.Expr:
    """x for x > 0, a·(exp(x·b) − 1) otherwise, times c: ELU, CELU and SELU."""
    emit, op = node.emit, relax.op
    if name == "selu":
        alpha, scale, inner = 1.6732632423543772, 1.0507009873554805, 1.0
    else:
        alpha = float(node.get("alpha", 1.0))
        scale = float(node.get("scale", 1.0))
        inner = 1 / alpha if name == "celu" else float(node.get("input_scale", 1.0))
    below = emit(op.subtract(emit(op.exp(emit(op.multiply(x, scalar(inner))))), scalar(1)))
    curve = emit(op.multiply(below, scalar(alpha)))
    both = emit(op.where(emit(op.greater(x, scalar(0))), x, curve))
    return both if scale == 1 else op.multiply(both, scalar(scale))


# ---- PReLU -------------------------------------------------------------------------------------------------------


@converter("aten::prelu")
def _float_prelu(node: Node) -> relax.Expr:
    """x where positive, else slope · x; one slope, or one for each index of the second dimension."""
    if node.qparams("self") is not None:
        raise node.unsupported("a PReLU of a quantized tensor outside torch.ao.nn.quantized.PReLU")
    node.note("a float activation function between quantized layers")
    data, slopes = node.expr("self"), node.emit(relax.op.reshape(node.expr("weight"), [-1]))
    return relax.op.nn.prelu(data, slopes, 1 if len(node.shape_of("self")) > 1 else 0)


@converter("quantized::prelu")
def _prelu(node: Node) -> relax.Expr:
    """One table per channel of what PyTorch computes, concatenated."""
    source, channels = node.quantized("qx"), node.shape[1]
    if source.dtype not in ("int8", "uint8"):
        raise node.unsupported(f"an activation function of {source.dtype}; only 8-bit ones are supported")
    torch = import_torch()
    shape = (256, channels) + (1,) * (len(node.shape) - 2)
    values = np.broadcast_to(domain(source.dtype).reshape((-1,) + (1,) * (len(shape) - 1)), shape)
    tensor = torch._make_per_tensor_quantized_tensor(
        torch.from_numpy(values.copy()), float(source.scale), int(source.zero_point)
    )
    arguments = [tensor if key == "qx" else plain(value) for key, value in node.arguments.items()]
    tables = array_of(node.run(arguments)).reshape(256, channels).T
    first = int(domain(source.dtype)[0])
    begin = (np.arange(channels, dtype=np.int32) * 256 - first).reshape((-1,) + (1,) * (len(shape) - 2))
    index = node.emit(relax.op.add(node.emit(relax.op.astype(node.expr("qx"), "int32")), constant(begin)))
    flat = node.emit(relax.op.reshape(index, [-1]))
    return node.move(relax.op.take(constant(np.ascontiguousarray(tables).reshape(-1)), flat, axis=0, mode="clip"))
