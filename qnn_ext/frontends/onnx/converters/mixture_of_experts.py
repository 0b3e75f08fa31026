"""Mixtures of experts of com.microsoft: MoE, and QMoE with weights of 2, 4 and 8 bits.

Each token goes through the k feed-forward networks that a router gives the highest scores, and the results are added up
with weights. Experts that no token has chosen are not computed; the others compute all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics.packed import WIDTHS, pack, packed_bytes, unpack
from ....op import compound
from ....op.base import constant, shape_of
from ...loops import loop
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, float_function, number, over, plus, times
from .microsoft_nbits import DTYPES, INT8_ACTIVATIONS, BlockedWeight, finite, of_int8

Product = Callable[[int, relax.Expr], relax.Expr]
"""(expert, rows) -> rows · its weightᵀ + its bias"""

_UNSUPPORTED = {"use_sparse_mixer": 0, "swiglu_limit_after_activation": 0, "quant_type": "int"}


@converter("MoE", domain=MICROSOFT)
def mixture(node: Node) -> relax.Expr:
    """Experts of floats. The weights of the chosen ones are their softmax: among all experts or, with
    normalize_routing_weights, among the chosen."""
    layers = [_of_floats(node, 2, 3), _of_floats(node, 4, 5), _of_floats(node, 6, 7) if node.has_input(6) else None]
    logits = cast(node, node.input(1), "float32")
    chosen = _chosen(node, logits)
    if node.attribute("normalize_routing_weights", 0):
        gates = _softmax_of(node, logits, chosen)
    else:
        gates = times(node, node.emit(relax.op.nn.softmax(logits, -1)), cast(node, chosen, "float32"))
    return _mixed(node, layers, chosen, gates, len(node.constant(2)))


@converter("QMoE", domain=MICROSOFT)
def quantized_mixture(node: Node) -> relax.Expr:
    """Experts of packed integers, (q − zero point) · scale for each row, or block of a row. The weights of the chosen
    ones are the softmax among them, or come from an input of their own.

    As in ONNX Runtime's CPU kernels, 8-bit weights in blocks are multiplied by int8 activations, and 4-bit ones with
    accuracy_level 4; all others by floats.
    """
    layers = [
        _of_integers(node, 2, 11, "fc1"),
        _of_integers(node, 5, 12, "fc2"),
        _of_integers(node, 8, 13, "fc3") if node.has_input(8) else None,
    ]
    scores = cast(node, node.input(1), "float32")
    chosen = _chosen(node, scores)
    if node.has_input(14):
        gates = times(node, cast(node, node.input(14), "float32"), cast(node, chosen, "float32"))
        if node.attribute("normalize_routing_weights", 0):
            gates = over(node, gates, node.emit(relax.op.sum(gates, -1, True)))
    else:
        gates = _softmax_of(node, scores, chosen)
    return _mixed(node, layers, chosen, gates, len(node.constant(2)))


# ---- routing -----------------------------------------------------------------------------------------------------


def _chosen(node: Node, scores: relax.Expr) -> relax.Expr:
    """Which experts each token goes through, (tokens, experts): those with the k highest scores, of equal ones the last
    experts."""
    for name, usual in _UNSUPPORTED.items():
        if node.attribute(name, usual) != usual:
            raise node.unsupported(
                f"{name} = {node.attribute(name)!r}, which ONNX Runtime's CPU kernels do not implement"
            )
    shape, count = node.shape(1), int(node.attribute("k", 1))
    if len(shape) != 2 or shape[0] != math.prod(node.shape(0)[:-1]) or not 1 <= count <= shape[1]:
        raise node.malformed(f"scores of shape {shape} do not match tokens of shape {node.shape(0)} and k = {count}")
    last = shape[1] - 1
    backwards = node.emit(relax.op.take(scores, constant(np.arange(last, -1, -1)), 1))
    places = node.emit(relax.op.topk(backwards, count, -1, ret_type="indices", dtype="int32"))
    columns = compound.reshape(places, (shape[0], count, 1), node.emit)
    hits = node.emit(relax.op.equal(columns, constant(np.arange(last, -1, -1, dtype=np.int32))))
    return node.emit(relax.op.greater(node.emit(relax.op.max(cast(node, hits, "int8"), 1)), constant(np.int8(0))))


def _softmax_of(node: Node, scores: relax.Expr, chosen: relax.Expr) -> relax.Expr:
    """The softmax among the chosen experts, 0 for all others."""
    return node.emit(relax.op.nn.softmax(node.emit(relax.op.where(chosen, scores, number(-np.inf))), -1))


def _mixed(node: Node, layers: list[Any], chosen: relax.Expr, gates: relax.Expr, experts: int) -> relax.Expr:
    """Σ gate · fc2(activation(fc1(x))) over the experts."""
    first, second, linear = layers
    shape = node.shape(0)
    rows = cast(node, compound.reshape(node.input(0), (math.prod(shape[:-1]), shape[-1]), node.emit), "float32")
    if shape_of(chosen)[1] != experts:
        raise node.malformed(f"scores of {shape_of(chosen)[1]} experts, whose weights are those of {experts}")
    total: relax.Expr = constant(np.zeros(shape_of(rows), np.float32))
    for expert in range(experts):
        own = [node.emit(relax.op.strided_slice(one, [1], [expert], [expert + 1])) for one in (chosen, gates)]
        used = node.emit(relax.op.max(cast(node, own[0], "int8")))

        def add(states: list[relax.Expr], _: Any, expert: int = expert, gate: relax.Expr = own[1]) -> Any:
            gated = linear(expert, rows) if linear else None
            inner = _activated(node, first(expert, rows), gated)
            return constant(np.bool_(False)), [plus(node, states[0], times(node, gate, second(expert, inner)))], []

        going = node.emit(relax.op.greater(used, constant(np.int8(0))))
        (total,), _ = loop(node, add, [total], [], 1, condition=going)
    return cast(node, compound.reshape(total, shape, node.emit), node.dtype(0))


# ---- activations -------------------------------------------------------------------------------------------------


def _activated(node: Node, x: relax.Expr, linear: relax.Expr | None) -> relax.Expr:
    """The activation of fc1's result, times that of fc3 where there is one."""
    name, fusion = node.attribute("activation_type", "relu"), node.attribute("swiglu_fusion", 0)
    if name == "swiglu":
        if fusion not in (1, 2) and linear is None:
            raise node.malformed("swiglu needs fc3, or swiglu_fusion 1 or 2")
        if linear is None:
            width = shape_of(x)[1]
            starts, step = ((0, 1), 2) if fusion == 1 else ((0, width // 2), 1)
            x, linear = (
                node.emit(relax.op.strided_slice(x, [1], [start], [width if step == 2 else start + width // 2], [step]))
                for start in starts
            )
        return _swiglu(node, x, linear)
    functions: dict[str, Callable[[relax.Expr], relax.Expr]] = {
        "relu": relax.op.nn.relu,
        "gelu": relax.op.nn.gelu_tanh,
        "silu": relax.op.nn.silu,
        "identity": lambda value: value,
    }
    if name not in functions:
        raise node.unsupported(f"activation_type {name!r}; known are {', '.join([*functions, 'swiglu'])}")
    result = node.emit(functions[name](x))
    return result if linear is None else times(node, result, linear)


def _swiglu(node: Node, gate: relax.Expr, linear: relax.Expr) -> relax.Expr:
    """G · sigmoid(alpha · G) · (L + beta), with G at most the limit and L within it."""
    alpha, beta = (
        float(node.attribute(f"activation_{name}", usual)) for name, usual in (("alpha", 1.0), ("beta", 0.0))
    )
    limit = float(node.attribute("swiglu_limit", math.inf))
    if limit != math.inf:
        gate = node.emit(relax.op.minimum(gate, number(limit)))
        linear = node.emit(relax.op.clip(linear, -limit, limit))
    scaled = gate if alpha == 1 else times(node, gate, number(alpha))
    silu = times(node, gate, node.emit(float_function("logistic")(scaled)))
    return times(node, silu, plus(node, linear, number(beta)) if beta else linear)


# ---- products ----------------------------------------------------------------------------------------------------


def _of_floats(node: Node, weight: int, bias: int) -> Product:
    weights = node.constant(weight)
    if weights.ndim != 3:
        raise node.malformed(f"input {weight} must be the weights of all experts, found shape {weights.shape}")

    def product(expert: int, rows: relax.Expr) -> relax.Expr:
        transposed = np.ascontiguousarray(weights[expert].T.astype(np.float32))
        return _biased(node, node.emit(relax.op.matmul(rows, constant(transposed))), bias, expert)

    return product


def _of_integers(node: Node, weight: int, zero_point: int, name: str) -> Product:
    """Weights, scales and biases are three inputs from `weight` on."""
    bits, block = node.attribute(f"{name}_expert_weight_bits", node.attribute("expert_weight_bits", 4)), 0
    if bits not in DTYPES or node.attribute("weights_prepacked", -1) == 1:
        raise node.unsupported(f"weights of {bits} bits, or weights_prepacked = 1")
    packed, scales, dtype = node.constant(weight), node.constant(weight + 1), DTYPES[bits]
    if packed.dtype != np.uint8 or packed.ndim != 3:
        raise node.malformed(
            f"input {weight} must be uint8 weights of all experts, found {packed.dtype} {packed.shape}"
        )
    experts, columns, depth = *packed.shape[:2], packed.shape[2] * 8 // bits
    block = int(node.attribute("block_size", 0)) or depth
    groups = -(-depth // block)
    if scales.size != experts * columns * groups:
        raise node.malformed(
            f"input {weight + 1} must have scales for {experts} × {columns} rows of {groups} blocks, found shape "
            f"{scales.shape}"
        )
    scales = finite(node, scales, "scales").reshape(experts, columns, groups)
    zeros = _zero_points(node, zero_point, (experts, columns, groups), dtype, block < depth)
    level = node.attribute("accuracy_level", 0) == INT8_ACTIVATIONS
    of_integers = bool(node.attribute("block_size", 0)) and (bits == 8 or (bits == 4 and level))

    def product(expert: int, rows: relax.Expr) -> relax.Expr:
        if shape_of(rows)[1] != depth:
            raise node.malformed(f"{name} has weights for {depth} columns, found {shape_of(rows)[1]}")
        zero = zeros[expert] if zeros.ndim else zeros
        held = BlockedWeight(packed[expert], scales[expert], zero, dtype, block)
        if of_integers:
            result = of_int8(node, rows, held)
        else:
            result = node.emit(qnn.blockwise_dense(rows, *held.parts, dtype, block))
        return _biased(node, result, weight + 2, expert)

    if not of_integers:
        node.note(f"the activations of {name} are floats: they are multiplied by {bits}-bit weights in float32")
    return product


def _zero_points(node: Node, index: int, shape: tuple[int, int, int], dtype: str, blocked: bool) -> np.ndarray:
    """Packed along the blocks of each row; without blocks ONNX packs those of all rows together."""
    if not node.has_input(index):
        return np.asarray(1 << (WIDTHS[dtype] - 1), np.int32)
    experts, columns, groups = shape
    given = node.constant(index)
    blocked = blocked or given.ndim == 3
    expected = experts * (columns * packed_bytes(groups, dtype) if blocked else packed_bytes(columns, dtype))
    if given.dtype != np.uint8 or given.size != expected:
        raise node.malformed(f"input {index}, zero points, must be {expected} bytes, found {given.dtype} {given.shape}")
    if blocked:
        return given.reshape(experts, columns, -1)
    return pack(unpack(given.reshape(experts, -1), dtype, columns)[..., None], dtype)


def _biased(node: Node, product: relax.Expr, index: int, expert: int) -> relax.Expr:
    if not node.has_input(index):
        return product
    return plus(node, product, constant(node.constant(index)[expert].astype(np.float32)))
