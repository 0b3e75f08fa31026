"""Bounds of a range for each channel: factors behind a clipped product move in front of the clip, into its weights.

    f · clip(x·W + b, low, high)  =  min(max(x·(W·f) + b·f, low·f), high·f)        for factors f > 0

As the result of a product, what is clipped costs nothing to rescale: its integers are compared with a bound for each
channel. Behind the clip, the factors would keep the kernel's epilogue in float. ReLU alone takes its factors in front
in any case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import QnnModule
from ..op.arguments import data_of
from ..op.base import constant, constant_value
from ..op.relax_table import traits_of
from ..passes.rewrite import Emit, bindings_of, consumers, op_name, rewrite
from .channels import weight_of
from .fold import fold


def with_channel_bounds(module: QnnModule) -> QnnModule:
    """The same function, up to float32 rounding. Names of tensors are kept."""
    changed = _moved(module.ir)
    return module if changed is module.ir else fold(replace(module, ir=changed))


def _moved(mod: IRModule) -> IRModule:
    bindings = bindings_of(mod["main"])
    readers = consumers(mod["main"], bindings)
    calls = {binding.var: binding.value for binding in bindings}
    found = {data_of(call) for call in calls.values() if _scales_clipped_product(call, calls, readers)}
    old = iter(bindings)
    clips: dict[Any, relax.Call] = {}  # variable -> the clip that it is bound to

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if next(old).var in found:
            var = emit(expr)
            clips[var] = expr
            return var
        clip = clips.get(data_of(expr)) if op_name(expr) == "multiply" else None
        return None if clip is None else _bounded(clip, expr.args[1], emit)

    return rewrite(mod, rule)


def _scales_clipped_product(call: Any, calls: Mapping[Any, Any], readers: Mapping[Any, Any]) -> bool:
    """Whether it multiplies by positive factors what nothing else reads: a clipped product with constant weights, plus
    a bias."""
    factors = constant_value(call.args[1]) if op_name(call) == "multiply" else None
    if factors is None or not (factors > 0).all() or len(readers.get(data_of(call), ())) != 1:
        return False
    clip = calls.get(data_of(call))
    if not isinstance(clip, relax.Call) or traits_of(clip).clips is None:
        return False
    before = calls.get(data_of(clip))
    if before is not None and op_name(before) == "add" and constant_value(before.args[1]) is not None:
        before = calls.get(data_of(before))
    return before is not None and weight_of(before) is not None


def _bounded(clip: relax.Call, factors: relax.Expr, emit: Emit) -> relax.Expr:
    """What is clipped times factors, within the bounds times factors."""
    data, values = emit(relax.op.multiply(data_of(clip), factors)), constant_value(factors)
    bounds = traits_of(clip).clips
    assert bounds is not None and values is not None
    low, high = bounds(clip)
    if low == 0:
        data = emit(relax.op.nn.relu(data))
    elif math.isfinite(low):
        data = emit(relax.op.maximum(data, constant(np.float32(low) * values)))
    return relax.op.minimum(data, constant(np.float32(high) * values)) if math.isfinite(high) else data
