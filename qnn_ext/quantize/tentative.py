"""A float module that computes an annotated one with some of its tensors quantized, in any number of bits.

Whether a tensor is quantized, and how, is in constants: inside `shared_engines` all these modules are one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.base import call_attributes, constant, definition_of, shape_of
from ..op.observe import OBSERVE
from ..passes.bodies import everywhere, with_bodies
from ..passes.rewrite import Emit, Rule, rewrite
from .switchable import Observed


def tentative(
    annotated: QnnModule,
    quantized: Mapping[str, Observed],
    exact: Mapping[str, np.ndarray] | None = None,
    marked: bool = False,
) -> QnnModule:
    """`annotated` with the sites in `quantized` quantized as these say, and the others in float.

    exact:  the values of weights that are not quantized, if `annotated` has rounded ones
    marked: whether observers stay, each on its tensor before that is quantized

    An activation x becomes scale · clip(rint(x / scale), low − zero point, high − zero point) in float32, which differs
    from integers only where their arithmetic rounds otherwise: biases and sums are exact.
    """

    rule = _rule(quantized, exact or {}, marked)
    return replace(annotated, ir=everywhere(annotated.ir, lambda mod: rewrite(mod, rule)))


def with_quantized_loops(annotated: QnnModule, quantized: Mapping[str, Observed]) -> QnnModule:
    """`annotated` with the sites in loops quantized as these say; those outside are observed as before."""
    rule = _rule(quantized, {}, False)
    return replace(annotated, ir=with_bodies(annotated.ir, partial(everywhere, change=lambda mod: rewrite(mod, rule))))


def _rule(quantized: Mapping[str, Observed], exact: Mapping[str, np.ndarray], marked: bool) -> Rule:
    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if definition_of(value) is not OBSERVE:
            return None
        site = str(call_attributes(value)["site"])
        if site in exact and site not in quantized:
            return constant(exact[site])
        data = value.args[0]
        return _value(emit(value) if marked and isinstance(data, relax.Var) else data, quantized.get(site), emit)

    return rule


def _value(x: Any, found: Observed | None, emit: Emit) -> Any:
    if found is not None and found.site.value is not None:
        return constant(found.simulate(found.site.value))
    if not isinstance(x, relax.Var) or not shape_of(x):
        return x
    scale, low, high = (1.0, 0.0, 0.0) if found is None else _steps(found)
    step = constant(np.full(1, scale, np.float32))
    rounded = emit(relax.op.round(emit(relax.op.divide(x, step))))
    clipped = emit(relax.op.maximum(rounded, constant(np.full(1, low, np.float32))))
    clipped = emit(relax.op.minimum(clipped, constant(np.full(1, high, np.float32))))
    on = emit(relax.op.greater(constant(np.full(1, found is not None, np.float32)), constant(np.float32(0))))
    return relax.op.where(on, emit(relax.op.multiply(clipped, step)), x)


def _steps(found: Observed) -> tuple[float, float, float]:
    """The scale, and the integers' ends less the zero point."""
    low, high = found.limits
    zero_point = int(found.qparams.zero_point)
    return float(found.qparams.scale), float(low - zero_point), float(high - zero_point)
