"""REDUCE_WINDOW, DILATE and their STABLEHLO forms: windows over any dimensions, elements between elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from .... import limits
from ....op.base import constant, shape_of
from ..integers import require_dtype, same_dtype
from ..node import Node
from ..registry import converter
from .padding import pad_constant
from .shape import block, check_elements, reshape

Combine = Callable[[relax.Expr, relax.Expr], relax.Expr]

COMBINED: dict[str, Combine] = {
    "ADD": relax.op.add,
    "MUL": relax.op.multiply,
    "MINIMUM": relax.op.minimum,
    "MAXIMUM": relax.op.maximum,
    "ALL": relax.op.logical_and,
    "ANY": relax.op.logical_or,
}
_STABLEHLO = {
    "STABLEHLO_ADD": "ADD",
    "STABLEHLO_MULTIPLY": "MUL",
    "STABLEHLO_MINIMUM": "MINIMUM",
    "STABLEHLO_MAXIMUM": "MAXIMUM",
    "STABLEHLO_AND": "ALL",
}
NUMBERS = ("float32", "int8", "int16", "int32", "int64", "uint8", "bool")


def body_function(node: Node, option: str) -> str:
    """What a subgraph of two operands and one operator computes, as a name in COMBINED; "UPDATE" for the second operand
    itself. Raises UnsupportedOperatorError for any other subgraph."""
    graphs, index = node.assembly.model.subgraphs, int(node.options[option])
    if not 0 < index < len(graphs):
        raise node.malformed(f"there is no subgraph {index}")
    graph = graphs[index]
    operators = graph.operators
    if len(graph.inputs) == 2 and len(graph.outputs) == 1:
        if not operators and graph.outputs == graph.inputs[1:]:
            return "UPDATE"
        if len(operators) == 1 and sorted(operators[0].inputs) == sorted(graph.inputs):
            name = _STABLEHLO.get(operators[0].name, operators[0].name.replace("LOGICAL_AND", "ALL"))
            if name in COMBINED:
                return name
    names = ", ".join(operator.name for operator in operators) or "none"
    raise node.unsupported(f"a subgraph with the operators {names}; it must be one of {', '.join(COMBINED)}")


# ---- elements between elements -----------------------------------------------------------------------------------


def dilated(node: Node, data: relax.Expr, factors: Sequence[int], value: float) -> relax.Expr:
    """`factor` − 1 elements with a value between any two along each axis."""
    for axis, factor in enumerate(factors):
        shape = shape_of(data)
        if factor == 1 or shape[axis] < 2:
            continue
        check_elements(node, (*shape, factor))
        data = reshape(node, data, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        pairs = [(0, factor - 1) if number == axis + 1 else (0, 0) for number in range(len(shape) + 1)]
        data = pad_constant(node, data, pairs, value)
        data = reshape(node, data, (*shape[:axis], shape[axis] * factor, *shape[axis + 1 :]))
        data = block(node, data, [axis], [0], [(shape[axis] - 1) * factor + 1], [1])
    return data


def padded_or_cut(node: Node, data: relax.Expr, pairs: Sequence[tuple[int, int]], value: float) -> relax.Expr:
    """Elements with a value before and after those of each axis; a negative number of them cuts elements off."""
    data = pad_constant(node, data, [(max(low, 0), max(high, 0)) for low, high in pairs], value)
    shape = shape_of(data)
    begin = [max(-low, 0) for low, _ in pairs]
    end = [size + min(high, 0) for size, (_, high) in zip(shape, pairs, strict=True)]
    if any(first > last for first, last in zip(begin, end, strict=True)):
        raise node.malformed(f"{pairs} cut more than there is of shape {shape}")
    return block(node, data, range(len(shape)), begin, end, [1] * len(shape))


def fill_value(node: Node, index: int) -> float:
    """The constant scalar that fills new elements."""
    same_dtype(node, 0, index)
    value = node.constant(index)
    if value.size != 1:
        raise node.malformed(f"the fill value has shape {value.shape}")
    return value.reshape(()).item()


@converter("DILATE", max_version=1)
def convert_dilate(node: Node) -> relax.Expr:
    """Elements of a value between those of the data, as many as a vector of factors says."""
    require_dtype(node, node.dtype(), *NUMBERS)
    factors = node.integers(1)
    if len(factors) != len(node.shape(0)) or min(factors, default=1) < 1:
        raise node.malformed(f"factors {factors} for data of shape {node.shape(0)}")
    return dilated(node, node.input(0), factors, fill_value(node, 2))


@converter("STABLEHLO_PAD", max_version=1)
def convert_stablehlo_pad(node: Node) -> relax.Expr:
    """Elements of a value between, before and after those of the data."""
    rank = len(node.shape(0))
    low, high, between = (list(node.options[name]) for name in _PADDING)
    if not len(low) == len(high) == len(between) == rank or min(between, default=0) < 0:
        raise node.malformed(f"{low}, {high} and {between} elements for data of shape {node.shape(0)}")
    require_dtype(node, node.dtype(), *NUMBERS)
    value = fill_value(node, 1)
    data = dilated(node, node.input(0), [count + 1 for count in between], value)
    return padded_or_cut(node, data, list(zip(low, high, strict=True)), value)


_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


# ---- windows -----------------------------------------------------------------------------------------------------


def reduced_windows(
    node: Node,
    data: relax.Expr,
    combine: Combine,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> relax.Expr:
    """All elements of each window combined, without padding: one axis after the other, over runs of 1, 2, 4, …
    elements, of which two that overlap as little as possible make the window."""
    rank = len(shape_of(data))
    if not len(window) == len(strides) == len(dilations) == rank or min(*window, *strides, *dilations, 1) < 1:
        raise node.malformed(f"window {window}, strides {strides}, dilations {dilations} for shape {shape_of(data)}")
    for axis in range(rank):
        data = _reduced_along(node, data, combine, axis, window[axis], strides[axis], dilations[axis])
    return data


def _reduced_along(
    node: Node, data: relax.Expr, combine: Combine, axis: int, window: int, stride: int, dilation: int
) -> relax.Expr:
    size = shape_of(data)[axis]
    limits.check("padding", window, f"{node.label}: a window of {window}")
    count = max(size - (window - 1) * dilation, 0)

    def part(expr: relax.Expr, first: int, length: int) -> relax.Expr:
        return block(node, expr, [axis], [first], [first + length], [1])

    if not count:
        return part(data, 0, 0)
    found, done, run, width = None, 0, data, 1  # `run` combines `width` elements, `found` the first `done` of a window
    while True:
        if window & width:
            piece = part(run, done * dilation, count)
            found = piece if found is None else node.emit(combine(found, piece))
            done += width
        if done == window:
            break
        length = shape_of(run)[axis] - width * dilation
        run = node.emit(combine(part(run, 0, length), part(run, width * dilation, length)))
        width *= 2
    assert found is not None
    return block(node, found, [axis], [0], [count], [stride])


def _with_start(node: Node, result: relax.Expr, combine: Combine, start: float) -> relax.Expr:
    """The start value combined with each result; the result itself where that changes nothing."""
    dtype = str(result.ty.dtype)
    neutral = {
        relax.op.add: 0,
        relax.op.multiply: 1,
        relax.op.maximum: -math.inf,
        relax.op.minimum: math.inf,
        relax.op.logical_and: True,
        relax.op.logical_or: False,
    }[combine]
    if start == neutral:
        return result
    return node.emit(combine(constant(np.array(start, dtype)), result))


@converter("STABLEHLO_REDUCE_WINDOW", max_version=1)
def convert_stablehlo_reduce_window(node: Node) -> relax.Expr:
    """A start value combined with the elements of each window, over dilated and padded data."""
    shape, options = node.shape(0), node.options
    rank = len(shape)
    if node.input_count != 2:
        raise node.unsupported(f"{node.input_count // 2} tensors at once; supported: one")
    require_dtype(node, node.dtype(), *NUMBERS)
    combine = COMBINED.get(body_function(node, "body_subgraph_index"))
    if combine is None:
        raise node.unsupported("a body that returns an operand")
    ones = (1,) * rank
    between, strides, dilations = (
        list(options[name]) or list(ones) for name in ("base_dilations", "window_strides", "window_dilations")
    )
    padding = list(options["padding"]) or [0] * (2 * rank)
    if len(between) != rank or len(padding) != 2 * rank or min(between, default=1) < 1:
        raise node.malformed(f"padding {padding} and dilations {between} for data of shape {shape}")
    start = fill_value(node, 1)
    data = dilated(node, node.input(0), between, start)
    data = padded_or_cut(node, data, list(zip(padding[::2], padding[1::2], strict=True)), start)
    result = reduced_windows(node, data, combine, list(options["window_dimensions"]), strides, dilations)
    return _with_start(node, result, combine, start)


@converter("REDUCE_WINDOW", max_version=1)
def convert_reduce_window(node: Node) -> relax.Expr:
    """A start value combined with the elements of each window."""
    require_dtype(node, node.dtype(), *NUMBERS)
    name = node.options["reduce_function"]
    if name not in COMBINED:
        raise node.unsupported(f"reduction {name}")
    window, strides, dilations = (node.integers(index) for index in (2, 3, 4))
    result = reduced_windows(node, node.input(0), COMBINED[name], window, strides, dilations)
    return _with_start(node, result, COMBINED[name], fill_value(node, 1))
