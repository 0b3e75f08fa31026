"""Float convolutions over two dimensions in quantized ONNX models, added up in the blocks of ONNX Runtime's MLAS.

    conv2d(x, w)  →  conv2d(x₁, w₁) + conv2d(x₂, w₂) + …

over blocks of channels: as many as a vector has lanes; 128 for a kernel of one element, which is a product of
matrices; and single channels where there are fewer than a vector has lanes, as of images. Within a block, each sum is
one chain of fused multiply-adds over the rows of the kernel, its columns, and the channels: see `float_products`. What
is quantized afterwards then has ONNX Runtime's bits.

    conv2d(x, w) + bias + y  →  conv2d(x₁, w₁) + y + conv2d(x₂, w₂) + … + bias

if y is another tensor that MLAS holds in such blocks: it is in the result's place before the convolution begins.

Convolutions that Winograd's algorithm computes faster keep this order if they are few among a model's products, such as
layers that a quantizer was told to skip. Where they are many, a model is one of floats: there speed counts, and some
quantized value a step off is no more than their own last bits.

Groups of channels that are no blocks, and those whose channels MLAS cannot move into blocks, are expanded to products
of matrices, as convolutions over one dimension are: see `expanded_convolutions`. They too if they are few.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from ..numerics.mlas import LINE
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from ..op.macs import macs_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..targets.features import backend_of
from ..topi_int8.refusal import lacking
from .blocked_sums import asks_for_blocks
from .expanded_convolutions import expanded, is_expanded
from .layout.forms import static_shape
from .rewrite import Emit, bindings_of, consumers, op_name, rewrite, total_of, variables_of, with_main
from .winograd import IN_ORDER, gains_in_float

_LEAST_LANES = 8  # of vectors for which MLAS has such kernels
_MOVED = 4  # channels that MLAS moves into blocks together
_FEW = 0.25  # of a model's multiply-accumulates
_STEPS = (4, 3)  # products that the kernels here take in one step: a run of others is filled up with zeros


def blocked_convolutions(mod: IRModule, target: Target) -> IRModule:
    """`mod` with these convolutions as sums of blocks, if it asks for them."""
    lanes = _lanes(target)
    if lanes < _LEAST_LANES or not asks_for_blocks(mod, target):
        return mod
    bindings = bindings_of(mod["main"])
    faster = [binding for binding in bindings if gains_in_float(binding.value)]
    all_in_order = _macs(faster) <= _FEW * _macs(bindings)
    without = set() if all_in_order else {binding.var for binding in faster}
    held = _held_in_blocks(bindings, lanes, without)
    others = [one for one in bindings if one.var not in held and one.var not in without and is_expanded(one.value)]
    to_expand = {one.var for one in others} if _macs(others) <= _FEW * _macs(bindings) else set()
    if not to_expand and not any(op_name(one.value) == "nn.conv2d" for one in bindings if one.var in held):
        return mod
    readers, old = consumers(mod["main"], bindings), iter(bindings)
    sums: dict[Any, list[relax.Expr]] = {}  # what nothing else reads -> its terms

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        binding = next(old)
        if op_name(expr) == "add":
            terms = _with_summand(expr.args, binding.value.args, sums, held)
        elif op_name(expr) == "nn.conv2d" and binding.var in held:
            terms = _blocks(expr, lanes, emit) or [emit(expr)]
        elif binding.var in to_expand:
            return expanded(expr, emit)
        else:
            return None
        if terms is None:
            return None
        total = total_of(terms, emit)
        if len(readers[binding.var]) == 1:
            sums[total] = terms
        return total

    blocked = rewrite(mod, rule)
    return with_main(blocked, blocked["main"].with_attr(IN_ORDER, True)) if all_in_order else blocked


def _lanes(target: Target) -> int:
    """Floats in the widest vector that the target's CPU multiplies and adds with one rounding."""
    backend = backend_of(target)
    found = [one.registers.lanes(32) for one in backend.float_products if lacking(target, one) is None]
    return 0 if backend.grid else max(found, default=0)


def _held_in_blocks(bindings: Sequence[relax.VarBinding], lanes: int, without: Collection[Any]) -> set[Any]:
    """The variables that MLAS holds with a vector of channels side by side: convolutions, and what only depends on
    them, but not on a row or a column. without: convolutions to leave out"""
    held: set[Any] = set()
    for binding in bindings:
        value = binding.value
        if op_name(value) == "nn.conv2d":
            found = _is_convolved_in_blocks(value, lanes) and binding.var not in without
        elif not op_name(value) or traits_of(value).kind not in (Kind.POINTWISE, Kind.JOIN, Kind.SELECTION):
            found = False
        else:
            read = variables_of(value)
            found = bool(read) and all(one in held for one in read)
        if found:
            held.add(binding.var)
    return held


def _macs(bindings: Sequence[relax.VarBinding]) -> int:
    return sum(macs_of(binding.value) or 0 for binding in bindings)


def _is_convolved_in_blocks(call: relax.Call, lanes: int) -> bool:
    data, weight = factors_of(call)
    attrs, known, shape = call.attrs, constant_value(weight), static_shape(data)
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    if known is None or shape is None or layouts != ("NCHW", "OIHW", "NCHW"):
        return False
    if {str(one.ty.dtype) for one in (data, weight, call)} != {"float32"} or 0 in shape:
        return False
    groups, (results, channels) = int(attrs.groups), known.shape[:2]
    if groups == 1:
        return channels < lanes or known.shape[2:] == (1, 1) or channels % _MOVED == 0
    is_depthwise = channels == 1 and results == groups and groups % _MOVED == 0
    return is_depthwise or (channels % lanes == 0 and results // groups % lanes == 0)


def _with_summand(
    args: Sequence[relax.Expr], old: Sequence[relax.Expr], sums: Mapping[Any, list[relax.Expr]], held: Collection[Any]
) -> list[relax.Expr] | None:
    """The terms of the sum of a convolution and a bias or a tensor, in MLAS's order; None if it is none."""
    for place in (0, 1):
        terms, other = sums.get(args[place]), args[1 - place]
        if terms is None:
            continue
        if constant_value(other) is not None:
            return None if _has_bias(terms) else [*terms, other]
        if old[1 - place] in held and shape_of(other) == shape_of(terms[0]):
            return [terms[0], other, *terms[1:]]
    return None


def _has_bias(terms: Sequence[relax.Expr]) -> bool:
    return constant_value(terms[-1]) is not None


def _blocks(call: relax.Call, lanes: int, emit: Emit) -> list[relax.Expr] | None:
    """The convolution's blocks; None if it is one."""
    data, weight = factors_of(call)
    known, channels = constant_value(weight), shape_of(data)[1]
    assert known is not None
    is_matrix = known.shape[2:] == (1, 1)
    block = 1 if channels < lanes else LINE if is_matrix else lanes
    if int(call.attrs.groups) != 1 or block >= channels:
        return None
    convolved = _of_one_channel if block == 1 else _of_channels
    return [convolved(call, known, start, start + block, emit) for start in range(0, channels, block)]


def _of_channels(call: relax.Call, weight: np.ndarray, start: int, stop: int, emit: Emit) -> relax.Expr:
    data, attrs = factors_of(call)[0], call.attrs
    part = constant(np.ascontiguousarray(weight[:, start:stop]))
    block = emit(relax.op.strided_slice(data, [1], [start], [min(stop, shape_of(data)[1])]))
    return emit(relax.op.nn.conv2d(block, part, attrs.strides, attrs.padding, attrs.dilation))


def _of_one_channel(call: relax.Call, weight: np.ndarray, start: int, stop: int, emit: Emit) -> relax.Expr:
    """The convolution of one channel, with the columns of the kernel as channels: kernels take products in steps."""
    data, attrs = factors_of(call)[0], call.attrs
    (step_down, step), (spread_down, spread) = (list(map(int, values)) for values in (attrs.strides, attrs.dilation))
    top, left, bottom, right = map(int, attrs.padding)
    size = weight.shape[3]
    channel = emit(relax.op.strided_slice(data, [1], [start], [stop]))
    if top or left or bottom or right:
        channel = emit(relax.op.nn.pad(channel, [0, 0, 0, 0, top, bottom, left, right]))
    width = (shape_of(channel)[3] - (size - 1) * spread - 1) // step + 1
    columns = [
        emit(relax.op.strided_slice(channel, [3], [place], [place + (width - 1) * step + 1], [step]))
        for place in range(0, size * spread, spread)
    ]
    part = weight[:, start].transpose(0, 2, 1)[..., None]  # (O, columns, rows, 1)
    missing = min(-size % one for one in _STEPS)
    joined = emit(relax.op.concat(columns, 1)) if size > 1 else columns[0]
    if missing:
        joined = emit(relax.op.nn.pad(joined, [0, 0, 0, missing, 0, 0, 0, 0]))
        part = np.pad(part, [(0, 0), (0, missing), (0, 0), (0, 0)])
    kernel: Any = constant(np.ascontiguousarray(part))
    return emit(relax.op.nn.conv2d(joined, kernel, [step_down, 1], 0, [spread_down, 1]))
