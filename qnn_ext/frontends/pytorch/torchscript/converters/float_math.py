"""Float operators around the quantized ones: a useful set, in ordinary Relax. Others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .....op.base import constant, shape_of
from ....building import group_norm
from ....run_time import checked_divisor, checked_indices
from ...common import import_torch
from ...float16 import is_factor_of_float32
from ...norms import order_of, power, vector_norm
from ..formulas import f32, scalar
from ..node import Node
from ..registry import converter
from ..values import Traced, array_of, dtype_name


def operand(node: Node, name: str, dtype: str | None = None) -> relax.Expr:
    """An argument in the dtype of the result, or another; quantized tensors are refused, as PyTorch has no such
    kernel."""
    if node.qparams(name) is not None:
        raise node.unsupported("arithmetic on a quantized tensor outside torch.ops.quantized; use FloatFunctional")
    value, dtype = node.arguments[name], dtype or dtype_name(node.examples[0])
    if isinstance(value, (bool, int, float)):
        return constant(np.asarray(value).astype(dtype))
    return _cast(node, node.to_expr(value), dtype)


def _binary(function: Callable[..., Any], swap: bool = False) -> Callable[[Node], relax.Expr]:
    def convert(node: Node) -> relax.Expr:
        lhs, rhs = operand(node, "self"), operand(node, "other")
        alpha = node.get("alpha", 1)
        if alpha != 1:
            factor = constant(np.asarray(alpha).astype(dtype_name(node.examples[0])))
            scaled = node.emit(relax.op.multiply(lhs if swap else rhs, factor))
            lhs, rhs = (scaled, rhs) if swap else (lhs, scaled)
        node.note("float arithmetic between quantized layers")
        return function(rhs, lhs) if swap else function(lhs, rhs)

    return convert


converter("aten::add", "aten::add_")(_binary(relax.op.add))
converter("aten::sub", "aten::sub_")(_binary(relax.op.subtract))
converter("aten::rsub")(_binary(relax.op.subtract, swap=True))
converter("aten::maximum")(_binary(relax.op.maximum))
converter("aten::minimum")(_binary(relax.op.minimum))


@converter("aten::mul", "aten::mul_")
def _mul(node: Node) -> relax.Expr:
    node.note("float arithmetic between quantized layers")
    return _product(node, relax.op.multiply)


def _product(node: Node, function: Callable[..., relax.Expr]) -> relax.Expr:
    """`function` of both operands, in float32 where PyTorch does so, and rounded."""
    dtype, a, b = dtype_name(node.examples[0]), operand(node, "self"), operand(node, "other")
    if not is_factor_of_float32(dtype, b):
        return function(a, b)
    wide = function(operand(node, "self", "float32"), operand(node, "other", "float32"))
    return _cast(node, node.emit(wide), dtype)


@converter("aten::div", "aten::div_")
def _div(node: Node) -> relax.Expr:
    """a / b, also rounded down or towards zero."""
    node.note("float arithmetic between quantized layers")
    mode = node.get("rounding_mode")
    if mode is None:
        return _product(node, relax.op.divide)
    a, b = operand(node, "self"), operand(node, "other")
    if mode == "floor":
        return _floored(node, a, b)
    if not str(a.ty.dtype).startswith("float"):
        return relax.op.divide(a, checked_divisor(node.emit, b, node.kind))
    return relax.op.trunc(node.emit(relax.op.divide(a, b)))


@converter("aten::floor_divide")
def _floor_divide(node: Node) -> relax.Expr:
    node.note("float arithmetic between quantized layers")
    return _floored(node, operand(node, "self"), operand(node, "other"))


def _floored(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """⌊a / b⌋; integer divisors must not be zero."""
    return relax.op.floor_divide(a, checked_divisor(node.emit, b, node.kind))


@converter("aten::pow")
def _pow(node: Node) -> relax.Expr:
    exponent = node.raw("exponent")
    base = operand(node, "self")
    node.note("float arithmetic between quantized layers")
    if isinstance(exponent, (int, float)) and exponent == 2:
        return relax.op.multiply(base, base)
    return power(node.emit, base, operand(node, "exponent"))


def _comparison(function: Callable[..., Any]) -> Callable[[Node], relax.Expr]:
    """In the dtype that both operands promote to; quantized tensors are compared by their real values."""

    def convert(node: Node) -> relax.Expr:
        torch, names = import_torch(), ("self", "other")
        real = [node[name].dequantize() if node.qparams(name) is not None else node[name] for name in names]
        dtype = str(torch.result_type(*real)).removeprefix("torch.")
        return function(*(_cast(node, node.dequantized(name), dtype) for name in names))

    return convert


def _cast(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if str(value.ty.dtype) == dtype else node.emit(relax.op.astype(value, dtype))


for _name, _function in (
    ("eq", relax.op.equal), ("ne", relax.op.not_equal), ("lt", relax.op.less), ("le", relax.op.less_equal),
    ("gt", relax.op.greater), ("ge", relax.op.greater_equal),
):  # fmt: skip
    converter(f"aten::{_name}")(_comparison(_function))


@converter("aten::where")
def _where(node: Node) -> relax.Expr:
    return relax.op.where(node.expr("condition"), operand(node, "self"), operand(node, "other"))


@converter("aten::masked_fill", "aten::masked_fill_")
def _masked_fill(node: Node) -> relax.Expr:
    """A quantized tensor is filled with the value in its QParams."""
    if node.output is None:
        fill = operand(node, "value")
    elif isinstance(node.raw("value"), Traced):
        raise node.unsupported("filling a quantized tensor with a computed value")
    else:
        fill = constant(node.output.quantize(float(node["value"])))
    return relax.op.where(node.expr("mask"), fill, node.expr("self"))


# ---- matrix products ---------------------------------------------------------------------------------------------


@converter("aten::matmul", "aten::bmm", "aten::mm")
def _matmul(node: Node) -> relax.Expr:
    node.note("a matrix product that the model does not quantize")
    other = "mat2" if "mat2" in node.arguments else "other"
    return node.move(relax.op.matmul(operand(node, "self"), operand(node, other)))


@converter("aten::linear", constants=("weight", "bias"))
def _linear(node: Node) -> relax.Expr:
    node.note("a linear layer that the model does not quantize")
    return linear(node, operand(node, "input"), node["weight"], node["bias"])


def linear(node: Node, value: relax.Expr, weight: Any, bias: Any) -> relax.Expr:
    """x·Wᵀ + b with constant weights."""
    matrix = np.ascontiguousarray(array_of(weight).T)
    result = node.emit(relax.op.matmul(value, constant(matrix)))
    return result if bias is None else node.emit(relax.op.add(result, constant(array_of(bias))))


@converter("aten::addmm", takes=lambda arguments: arguments["beta"] == 1 == arguments["alpha"])
def _addmm(node: Node) -> relax.Expr:
    node.note("a linear layer that the model does not quantize")
    product = node.emit(relax.op.matmul(operand(node, "mat1"), operand(node, "mat2")))
    return relax.op.add(product, operand(node, "self"))


@converter("aten::scaled_dot_product_attention")
def _attention(node: Node) -> relax.Expr:
    """softmax(q·kᵀ·scale + mask)·v. With `enable_gqa`, several heads of q in a row share one of k and v."""
    emit, op = node.emit, relax.op
    if float(node["dropout_p"]):
        raise node.unsupported("attention with dropout; call model.eval() before exporting it")
    node.note("attention in float: scaled_dot_product_attention has no quantized kernel in PyTorch")
    query, key, value = (node.expr(name) for name in ("query", "key", "value"))
    depth, rank = shape_of(query)[-1], len(shape_of(query))
    if node.get("enable_gqa", False):
        times = shape_of(query)[-3] // shape_of(key)[-3]
        key, value = (emit(op.repeat(one, times, axis=rank - 3)) for one in (key, value))
    scale = node.get("scale") or 1 / np.sqrt(depth)
    swapped = emit(op.permute_dims(key, [*range(rank - 2), rank - 1, rank - 2]))
    scores = emit(op.matmul(emit(op.multiply(query, scalar(scale))), swapped))
    mask = node.get("attn_mask")
    if node["is_causal"]:
        rows, columns = shape_of(query)[-2], shape_of(key)[-2]
        shade = np.triu(np.full((rows, columns), -np.inf, f32), 1)
        scores = emit(op.add(scores, constant(shade)))
    elif mask is not None:
        given = node.expr("attn_mask")
        if str(given.ty.dtype) == "bool":
            given = emit(op.where(given, scalar(0.0), scalar(-np.inf)))
        scores = emit(op.add(scores, given))
    return op.matmul(emit(op.nn.softmax(scores, axis=-1)), value)


# ---- normalization -----------------------------------------------------------------------------------------------

_STATISTICS = ("weight", "bias", "running_mean", "running_var")


@converter("aten::softmax", "aten::log_softmax", "aten::_softmax", "aten::_log_softmax")
def _softmax(node: Node) -> relax.Expr:
    if node.qparams("self") is not None:
        raise node.unsupported("softmax of a quantized tensor by an aten operator; use torch.ao.nn.quantized.Softmax")
    node.note("softmax in float")
    function = relax.op.nn.log_softmax if "log" in node.kind else relax.op.nn.softmax
    return function(operand(node, "self"), axis=int(node["dim"]))


@converter("aten::layer_norm", constants=("weight", "bias"))
def _layer_norm(node: Node) -> relax.Expr:
    rank, dims = len(node.shape), len(node["normalized_shape"])
    shape = [int(size) for size in node["normalized_shape"]]
    node.note("layer normalization in float")
    gamma = np.ones(shape, f32) if node["weight"] is None else array_of(node["weight"])
    beta = np.zeros(shape, f32) if node["bias"] is None else array_of(node["bias"])
    return relax.op.nn.layer_norm(
        operand(node, "input"), constant(gamma), constant(beta), list(range(rank - dims, rank)), float(node["eps"])
    )


@converter("aten::group_norm", "aten::instance_norm", constants=_STATISTICS)
def _group_norm(node: Node) -> relax.Expr:
    """Over the channels of a group and all later axes; of instances: each channel is a group, or a model in eval mode
    tracked their statistics."""
    if node.kind == "aten::instance_norm" and not node["use_input_stats"]:
        return _tracked_norm(node)
    node.note("group normalization in float")
    channels = node.shape[1]
    groups = int(node["num_groups"]) if node.kind == "aten::group_norm" else channels
    gamma = np.ones(channels, f32) if node["weight"] is None else array_of(node["weight"])
    beta = np.zeros(channels, f32) if node["bias"] is None else array_of(node["bias"])
    data = operand(node, "input")
    return group_norm(node.emit, data, constant(gamma), constant(beta), groups, float(node["eps"]))


@converter("aten::batch_norm", constants=_STATISTICS)
def _batch_norm(node: Node) -> relax.Expr:
    if node["training"]:
        raise node.unsupported("batch normalization in training mode; call model.eval() before exporting it")
    return _tracked_norm(node)


def _tracked_norm(node: Node) -> relax.Expr:
    """With statistics that the model tracked in training."""
    node.note("a normalization with tracked statistics, in float")
    size = node.shape_of("input")[1]
    mean, variance = array_of(node["running_mean"]), array_of(node["running_var"])
    gamma = np.ones(size, f32) if node["weight"] is None else array_of(node["weight"])
    beta = np.zeros(size, f32) if node["bias"] is None else array_of(node["bias"])
    factor = gamma / np.sqrt(variance + f32(node["eps"]))
    column = (-1,) + (1,) * (len(node.shape) - 2)
    scaled = node.emit(relax.op.multiply(node.expr("input"), constant(factor.astype(f32).reshape(column))))
    return relax.op.add(scaled, constant((beta - mean * factor).astype(f32).reshape(column)))


@converter("aten::argmax", "aten::argmin")
def _extreme_position(node: Node) -> relax.Expr:
    """Of the first extreme; without `dim`, in the flattened tensor."""
    node.note("a search in float")
    data, axis, rank = node.expr("self"), node["dim"], max(len(node.shape_of("self")), 1)
    function = relax.op.argmax if node.kind == "aten::argmax" else relax.op.argmin
    if axis is None:
        flat = node.emit(relax.op.reshape(data, [-1]))
        return node.move(node.emit(function(flat, 0)))
    return function(data, int(axis) % rank, bool(node["keepdim"]))


@converter("aten::glu")
def _glu(node: Node) -> relax.Expr:
    """The first half times the sigmoid of the second."""
    node.note("a gated unit in float")
    data, axis = operand(node, "self"), int(node["dim"]) % len(node.shape_of("self"))
    size = node.shape[axis]
    value, gate = (
        node.emit(relax.op.strided_slice(data, axes=[axis], begin=[begin], end=[begin + size])) for begin in (0, size)
    )
    return relax.op.multiply(value, node.emit(relax.op.sigmoid(gate)))


@converter("aten::sum")
def _sum(node: Node) -> relax.Expr:
    node.note("a sum in float")
    rank = max(len(node.shape_of("self")), 1)
    axes = [int(axis) % rank for axis in node.get("dim") or range(rank)]
    return relax.op.sum(operand(node, "self"), axes, bool(node.get("keepdim", False)))


@converter("aten::linalg_vector_norm")
def _vector_norm(node: Node) -> relax.Expr:
    return _vector_norm_of(node, float(node["ord"]))


@converter("aten::linalg_norm", "aten::norm", "aten::frobenius_norm")
def _norm(node: Node) -> relax.Expr:
    order = node.get("p") if node.kind == "aten::norm" else node.get("ord")
    axes, rank = node.get("dim"), len(node.shape_of("self"))
    dims = None if axes is None else len(axes)
    found = order_of(order, 1 if node.kind == "aten::norm" else dims, rank)  # torch.norm takes all dims as one vector
    if found is None:
        raise node.unsupported(f"the matrix norm of order {order!r}; norms of vectors are supported")
    return _vector_norm_of(node, found)


def _vector_norm_of(node: Node, order: float) -> relax.Expr:
    node.note("a norm in float")
    rank = len(node.shape_of("self"))
    axes = [int(axis) % max(rank, 1) for axis in node.get("dim") or range(rank)]
    return vector_norm(node.emit, operand(node, "self"), order, axes, bool(node.get("keepdim", False)))


# ---- convolution and embedding -----------------------------------------------------------------------------------


_CONVOLUTIONS = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)
_TRANSPOSED = (relax.op.nn.conv1d_transpose, relax.op.nn.conv2d_transpose, relax.op.nn.conv3d_transpose)


@converter("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::_convolution", "aten::convolution",
           "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")  # fmt: skip
def _conv(node: Node) -> relax.Expr:
    rank = len(node.shape) - 2
    if rank not in (1, 2, 3) or isinstance(node["padding"], str):
        raise node.unsupported("this form of a float convolution; supported: a batch, 1 to 3 axes, padding in numbers")
    node.note("a convolution that the model does not quantize")
    names = ("stride", "padding", "dilation", "output_padding")
    given = {name: [int(v) for v in node.get(name) or [0]] for name in names}
    stride, padding, dilation, extra = (
        values * (1 if len(values) == rank else rank) for values in (given[name] for name in names)
    )
    transposed = node.get("transposed", False) or "transpose" in node.kind
    geometry = {"strides": stride, "padding": [*padding, *padding], "dilation": dilation, "groups": int(node["groups"])}
    if transposed:
        geometry["output_padding"] = extra
    function = (_TRANSPOSED if transposed else _CONVOLUTIONS)[rank - 1]
    result = node.emit(function(node.expr("input"), node.expr("weight"), **geometry))
    if node["bias"] is None:
        return result
    return relax.op.add(result, node.emit(relax.op.reshape(node.expr("bias"), (-1,) + (1,) * rank)))


@converter("aten::embedding")
def _embedding(node: Node) -> relax.Expr:
    indices = node.expr("indices")
    rows = checked_indices(node.emit, indices, node.shape_of("weight")[0], node.label)
    flat = node.emit(relax.op.reshape(rows, [-1]))
    return node.move(relax.op.take(node.expr("weight"), flat, axis=0, mode="clip"))
