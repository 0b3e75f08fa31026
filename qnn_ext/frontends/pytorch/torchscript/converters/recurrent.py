"""LSTM, GRU and RNN: whole layers and single cells, in float, dynamically quantized, or with float16 weights."""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import relax

from .....errors import UnsupportedOperatorError
from ....recurrent import Function
from ....recurrent_layers import Options, Products, cell_of, float_products, run_float_layers, run_layers
from ...training import check_training
from ..dynamic import dynamic_linear
from ..formulas import rounded_product
from ..node import Node
from ..packed import unpack, unpack_weights
from ..registry import converter
from ..values import PackedData, plain
from .dynamic import HALF_NOTE, half_linear
from .sequences import packed_data, padded_with

_GATES_NOTE = "the gates of the recurrent layer are float in PyTorch, its products are integer"


@converter("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
def _layers(node: Node) -> list[Any]:
    """Layers in float."""
    options, (sequence, lengths) = _options(node), _sequence(node)
    parameters = [node.to_expr(value) for value in node.raw("params")]
    kind = node.kind.removeprefix("aten::")
    results = run_float_layers(
        node, kind, sequence, _states(node), parameters, bool(node["has_biases"]), options, lengths
    )
    return _packed_again(node, results, lengths)


@converter("aten::quantized_lstm", "aten::quantized_gru")
def _quantized_layers(node: Node) -> list[Any]:
    """Layers whose products are dynamically quantized, or have float16 weights: a quantized one with the input has one
    scale for all steps."""
    options, (sequence, lengths) = _options(node), _sequence(node)
    if lengths is not None:  # padding must not widen the range
        sequence = padded_with(node, sequence, lengths, 0.0)
    products = [_products(node, plain(parameters)) for parameters in node["params"]]
    kind = node.kind.removeprefix("aten::quantized_")
    times = partial(rounded_product, node)
    alone = lengths is not None
    results = run_layers(node, kind, sequence, _states(node), products, options, times, lengths, alone)
    return _packed_again(node, results, lengths)


def _options(node: Node) -> Options:
    check_training(node["train"], float(node["dropout"]))
    return Options(int(node["num_layers"]), bool(node["bidirectional"]), bool(node.get("batch_first", False)))


def _sequence(node: Node) -> tuple[relax.Expr, relax.Expr | None]:
    """The input, padded if it is packed, and the lengths of packed sequences."""
    if "data" not in node.arguments:
        return node.expr("input"), None
    data = packed_data(node)
    return data.expr, data.lengths


def _packed_again(node: Node, results: list[relax.Expr], lengths: relax.Expr | None) -> list[Any]:
    """The results, the first one as packed data if the sequences have lengths."""
    if lengths is None:
        return results
    return [PackedData(node.examples[0], results[0], lengths=lengths), *results[1:]]


def _states(node: Node) -> list[relax.Expr]:
    found = node.raw("hx")
    return [node.to_expr(value) for value in (found if isinstance(found, (list, tuple)) else [found])]


def _products(node: Node, parameters: Any) -> Products:
    """The products of a quantized cell from its packed parameters."""
    kind, _, _, numbers, packed = parameters.__getstate__()[0]
    if kind not in ("quantized_dynamic", "quantized_fp16"):
        raise UnsupportedOperatorError(
            f"recurrent cells of kind {kind} are not supported; supported: dynamic int8 and float16"
        )
    rows, columns = unpack(packed[1])[0].shape
    if rows != columns * (4 if node.kind == "aten::quantized_lstm" else 3):
        raise node.unsupported(
            "a layer with a projection (proj_size), which PyTorch's quantized one leaves out, so that it reads beyond "
            "its weights; quantize a layer without one"
        )
    reduce_range = bool(numbers[0]) if numbers else False
    return Products(*(_product(node, item, reduce_range) for item in packed))


def _product(node: Node, packed: Any, reduce_range: bool) -> Function:
    """The product with packed weights, of which those of float16 are unpacked as floats."""
    weight, bias = unpack(packed)
    if weight.is_quantized:
        node.note(_GATES_NOTE)
        return partial(dynamic_linear, node, weights=unpack_weights(weight, bias), reduce_range=reduce_range)
    node.note(HALF_NOTE)
    return partial(half_linear, node, weight=weight, bias=bias)


# ---- single cells ------------------------------------------------------------------------------------------------


@converter("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
def _cell(node: Node) -> relax.Expr | list[relax.Expr]:
    """One step in float."""
    weights = [node.expr(name) for name in ("w_ih", "w_hh")]
    biases = [None if node.get(name) is None else node.expr(name) for name in ("b_ih", "b_hh")]
    products = float_products(node, *weights, *biases)
    kind = node.kind.removeprefix("aten::").removesuffix("_cell")
    return _one_step(node, kind, products)


@converter(
    "quantized::quantized_lstm_cell_dynamic",
    "quantized::quantized_gru_cell_dynamic",
    "quantized::quantized_rnn_tanh_cell_dynamic",
    "quantized::quantized_rnn_relu_cell_dynamic",
)
def _quantized_cell(node: Node) -> relax.Expr | list[relax.Expr]:
    """One step whose products are dynamically quantized, to 7 bits, or have float16 weights; biases are packed with the
    weights."""
    products = Products(*(_product(node, node[name], True) for name in ("w_ih", "w_hh")))
    kind = node.kind.removeprefix("quantized::quantized_").removesuffix("_cell_dynamic")
    return _one_step(node, kind, products, rounded=True)


def _one_step(node: Node, kind: str, products: Products, rounded: bool = False) -> relax.Expr | list[relax.Expr]:
    if len(node.shape_of("input")) != 2:
        raise node.unsupported(f"an input of shape {node.shape_of('input')}; it must be (batch, depth)")
    cell = cell_of(node, kind, products, partial(rounded_product, node) if rounded else None)
    states = cell.step(products.inputs(node.expr("input")), _states(node))
    return states if kind == "lstm" else states[0]
