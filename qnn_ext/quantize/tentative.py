"""A float module that computes an annotated one with some of its tensors quantized, in any number of bits.

Whether a tensor is quantized, and how, is in constants: inside `shared_engines` all these modules are one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import QnnModule
from ..op.base import call_attributes, constant, constant_value, definition_of, shape_of
from ..op.observe import OBSERVE
from ..passes.bodies import everywhere, with_bodies
from ..passes.rewrite import Emit, op_name, rewrite
from .accumulators import Accumulators
from .annotate.families import is_integer_resize
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
    constants: gets those of each site, whose values are its `settings_of` if it is quantized

    An activation x becomes scale · clip(rint(x / scale), low − zero point, high − zero point) in float32, and a bias
    behind a product of quantized tensors a multiple of its accumulator's unit, as in integers: an error of a hundredth
    of a step sends as many values to another integer, and behind some layers no value has the error of its integer.
    What differs from integers is what they compute in other ways: functions as tables, interpolation.
    """
    return replace(annotated, ir=everywhere(annotated.ir, _Tentative(quantized, exact or {}, marked, constants).of))


def with_quantized_loops(annotated: QnnModule, quantized: Mapping[str, Observed]) -> QnnModule:
    """`annotated` with the sites in loops quantized as these say; those outside are observed as before."""
    return replace(annotated, ir=with_bodies(annotated.ir, partial(everywhere, change=_Tentative(quantized, {}).of)))


class _Tentative:
    def __init__(
        self,
        quantized: Mapping[str, Observed],
        exact: Mapping[str, np.ndarray],
        marked: bool = False,
        constants: dict[str, list[Any]] | None = None,
    ) -> None:
        self._quantized, self._exact, self._marked, self._constants = quantized, exact, marked, constants

    def of(self, mod: IRModule) -> IRModule:
        accumulators = Accumulators()

        def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
            if definition_of(value) is OBSERVE:
                return self._site(value, emit, accumulators)
            if op_name(value) == "add":
                return self._bias(value, accumulators)
            return None if is_integer_resize(value) else accumulators.rule(value, emit)

        return rewrite(mod, rule)

    def _site(self, call: relax.Call, emit: Emit, accumulators: Accumulators) -> relax.Expr:
        site = str(call_attributes(call)["site"])
        found = self._quantized.get(site)
        if site in self._exact and found is None:
            exact = constant(self._exact[site])
            self._note(site, [exact])
            return exact
        data = call.args[0]
        made: list[Any] = []
        observed = emit(call) if self._marked and isinstance(data, relax.Var) else data
        result = _value(observed, found, emit, made)
        self._note(site, made)
        if found is None:
            return result
        if isinstance(result, relax.Call):
            result = emit(result)
        accumulators.quantized[result] = found.qparams
        return result

    def _note(self, site: str, made: list[Any]) -> None:
        if self._constants is not None and made:
            self._constants[site] = made

    def _bias(self, call: relax.Call, accumulators: Accumulators) -> relax.Expr | None:
        """With a constant of its own, rounded or not, so that both are one program."""
        for operand, other in (call.args, reversed(call.args)):
            exact = constant_value(other)
            if exact is not None and isinstance(operand, relax.Var):
                bias = accumulators.bias(call)
                values = exact if bias is None else bias.values
                return relax.op.add(
                    operand, constant(values.reshape(exact.shape) if values.size == exact.size else values)
                )
        return None


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
        return setting(value)  # of this site alone, as quantized ones are: layers may share a weight
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
