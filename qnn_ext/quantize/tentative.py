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
from ..op.base import call_attributes, constant, constant_value, definition_of, shape_of
from ..op.observe import OBSERVE
from ..passes.bodies import everywhere, with_bodies
from ..passes.rewrite import Emit, Rule, rewrite
from .switchable import Observed


def tentative(
    annotated: QnnModule,
    quantized: Mapping[str, Observed],
    exact: Mapping[str, np.ndarray] | None = None,
    marked: bool = False,
    constants: dict[str, list[Any]] | None = None,
) -> QnnModule:
    """`annotated` with the sites in `quantized` quantized as these say, and the others in float.

    exact:     the values of weights that are not quantized, if `annotated` has rounded ones
    marked:    whether observers stay, each on its tensor before that is quantized
    constants: gets those of each quantized site, whose values are its `settings_of`

    An activation x becomes scale · clip(rint(x / scale), low − zero point, high − zero point) in float32, which differs
    from integers only where their arithmetic rounds otherwise: biases and sums are exact.
    """
    rule = _rule(quantized, exact or {}, marked, constants)
    return replace(annotated, ir=everywhere(annotated.ir, lambda mod: rewrite(mod, rule)))


def with_quantized_loops(annotated: QnnModule, quantized: Mapping[str, Observed]) -> QnnModule:
    """`annotated` with the sites in loops quantized as these say; those outside are observed as before."""
    rule = _rule(quantized, {})
    return replace(annotated, ir=with_bodies(annotated.ir, partial(everywhere, change=lambda mod: rewrite(mod, rule))))


def _rule(
    quantized: Mapping[str, Observed],
    exact: Mapping[str, np.ndarray],
    marked: bool = False,
    constants: dict[str, list[Any]] | None = None,
) -> Rule:
    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if definition_of(value) is not OBSERVE:
            return None
        site = str(call_attributes(value)["site"])
        if site in exact and site not in quantized:
            return constant(exact[site])
        data = value.args[0]
        made: list[Any] = []
        observed = emit(value) if marked and isinstance(data, relax.Var) else data
        result = _value(observed, quantized.get(site), emit, made)
        if constants is not None and made and site in quantized:
            constants[site] = made
        return result

    return rule


def settings_of(found: Observed, on: bool = True) -> list[np.ndarray]:
    """The values of a site's constants, in their order, if it is quantized, or if it is not."""
    if found.site.value is not None:
        return [found.simulate(found.site.value) if on else found.site.value]
    return [np.full(1, value, np.float32) for value in (*_steps(found), on)]


def _value(x: Any, found: Observed | None, emit: Emit, made: list[Any]) -> Any:
    """x, or what its integers stand for; `made` gets the constants."""

    def setting(array: np.ndarray) -> Any:
        made.append(constant(array))
        return made[-1]

    if found is not None and found.site.value is not None:
        return setting(*settings_of(found))
    value = constant_value(x)
    if value is not None:
        return constant(value)  # of this site alone, as quantized ones are: layers may share a weight
    if not shape_of(x):
        return x
    off = [np.full(1, value, np.float32) for value in (1, 0, 0, False)]
    step, low, high, on = map(setting, off if found is None else settings_of(found))
    rounded = emit(relax.op.round(emit(relax.op.divide(x, step))))
    clipped = emit(relax.op.minimum(emit(relax.op.maximum(rounded, low)), high))
    chosen = emit(relax.op.greater(on, constant(np.float32(0))))
    return relax.op.where(chosen, emit(relax.op.multiply(clipped, step)), x)


def _steps(found: Observed) -> tuple[float, float, float]:
    """The scale, and the integers' ends less the zero point."""
    low, high = found.limits
    zero_point = int(found.qparams.zero_point)
    return float(found.qparams.scale), float(low - zero_point), float(high - zero_point)
