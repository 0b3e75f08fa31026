"""One float module that computes an annotated model with any of its tensors quantized, and shows its inner tensors.

Each observed tensor x becomes x or dequantize(quantize(x)), chosen at run time by its site's switch: analysis compiles
this once to run the float model, the whole simulation, and every layer quantized alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tvm import relax

from .. import op as qnn
from ..module import QnnModule, TensorSpec
from ..op.base import along_axis, call_attributes, constant, definition_of, shape_of
from ..op.loop import results_of
from ..op.observe import OBSERVE, observed_sites
from ..passes.rewrite import Rebuild
from ..qparams import QParams
from .annotate import Site, sites
from .annotate.loop_products import observed_in_loops
from .config import QConfig
from .ranges import Range, integer_range
from .realize import site_qparams

SWITCHES = "switches"


@dataclass(frozen=True)
class Observed:
    """A site, the QParams of its range, and the name of the variable it observes, None for a constant."""

    site: Site
    qparams: QParams
    tensor: str | None

    @cached_property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer used."""
        return integer_range(self.site.dtype, self.site.bits, self.site.symmetric)

    @property
    def ends(self) -> tuple[float, float]:
        """The real values of the smallest and the largest integer; if there are several scales, the widest."""
        scale = np.asarray(self.qparams.scale, np.float64)
        low, high = ((limit - self.qparams.zero_point) * scale for limit in self.limits)
        return float(np.min(low)), float(np.max(high))

    def simulate(self, array: np.ndarray) -> np.ndarray:
        """The real values that the quantized `array` stands for."""
        return self.qparams.dequantize(np.clip(self.qparams.quantize(array), *self.limits))

    def saturated(self, array: np.ndarray) -> int:
        """How many values lie more than half a step outside the range of the integers."""
        axis = -1 if self.qparams.axis is None else self.qparams.axis
        scale, zero_point = (along_axis(p, axis, array.ndim) for p in (self.qparams.scale, self.qparams.zero_point))
        steps = array / scale + zero_point
        low, high = self.limits
        return int(np.count_nonzero((steps < low - 0.5) | (steps > high + 0.5)))


def observations(
    annotated: QnnModule, ranges: Mapping[str, Range], config: QConfig, loops: bool = False
) -> list[Observed]:
    """Every site of a module, in order of computation, and after them those in loops if these are wanted too.

    ranges: site → range

    Raises QuantizationError.
    """
    return Observers(annotated, loops).observations(ranges, config)


class Observers:
    """The sites of a module, for one table of ranges after another."""

    def __init__(self, annotated: QnnModule, loops: bool = False) -> None:
        """loops: whether those in loops are wanted too"""
        self._sites = sites(annotated)
        calls = {site: call for site, (call, _) in observed_sites(annotated.ir).items()}
        if loops:
            calls.update((attributes["site"], call) for call, attributes in observed_in_loops(annotated.ir))
        self._tensors = {
            site.name: None if site.value is not None else str(calls[site.name].args[0].name)
            for site in self._sites
            if site.name in calls
        }

    def observations(self, ranges: Mapping[str, Range], config: QConfig) -> list[Observed]:
        """As the function `observations`."""
        qparams = site_qparams(self._sites, ranges, config)
        return [
            Observed(site, qparams[site.name], self._tensors[site.name])
            for site in self._sites
            if site.name in self._tensors
        ]


@dataclass(frozen=True)
class Switchable:
    """A module whose last input, `switches` (sites,) bool, says which tensors are quantized; without sites it has none.
    States stay behind the inputs.

    module:  its outputs are the model's, then the tensors named in `tensors`
    sites:   in the order of the switches
    tensors: variables of the annotated module
    """

    module: QnnModule
    sites: tuple[Observed, ...]
    tensors: tuple[str, ...]


def switchable(annotated: QnnModule, observed: Sequence[Observed], tensors: Sequence[str]) -> Switchable:
    """The module that computes `annotated` with switches, and also returns the variables named in `tensors`."""
    by_site = {site.site.name: site for site in observed}
    function = annotated.ir["main"]
    switches = relax.Var(SWITCHES, relax.TensorType((len(observed),), "bool"))
    new = Rebuild(function)
    emit = new.builder.emit
    shown: dict[str, Any] = {str(param.name): param for param in function.params}
    inputs_end = len(annotated.inputs)
    inner = [switches] if observed else []
    params = [*function.params[:inputs_end], *inner, *function.params[inputs_end:]]
    with new.main(params):
        on = _split(switches, list(by_site), emit)
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if definition_of(value) is OBSERVE:
                name = str(call_attributes(value)["site"])
                data = value.args[0]
                value = _switched(data, by_site[name], on[name], emit) if name in by_site else data
            shown[str(binding.var.name)] = new.bind(binding.var, value)
        results = [new.substituted(result) for result in results_of(function)]
        count = len(annotated.outputs)
        tensors_shown = [_own(shown[name], emit) for name in tensors]
        new.result = relax.Tuple([*results[:count], *tensors_shown, *results[count:]])
    inputs = [replace(spec, dynamic_batch=False) for spec in annotated.inputs]
    outputs = [replace(spec, dynamic_batch=False) for spec in annotated.outputs]
    module = replace(
        annotated,
        ir=new.live_module(),
        inputs=(*inputs, *([TensorSpec(SWITCHES, (len(observed),), "bool")] if observed else [])),
        outputs=(
            *outputs,
            *(
                TensorSpec(f"tensor {i}", shape_of(shown[name]), str(shown[name].ty.dtype))
                for i, name in enumerate(tensors)
            ),
        ),
        notes=(),
    )
    return Switchable(module, tuple(observed), tuple(tensors))


def _split(switches: relax.Var, sites: Sequence[str], emit: Callable[[Any], Any]) -> dict[str, Any]:
    """Site → its switch, of shape (1,)."""
    return {
        site: emit(relax.op.strided_slice(switches, axes=[0], begin=[i], end=[i + 1])) for i, site in enumerate(sites)
    }


def _own(expr: Any, emit: Callable[[Any], Any]) -> Any:
    """A copy: a compiled function cannot return inputs and constants as results."""
    return emit(relax.op.add(expr, constant(np.zeros((), str(expr.ty.dtype)))))


def _switched(x: Any, site: Observed, on: Any, emit: Callable[[Any], Any]) -> Any:
    """where(on, dequantize(quantize(x)), x)"""
    value, qparams = site.site.value, site.qparams
    if value is not None:
        return relax.op.where(on, constant(site.simulate(value)), constant(value))
    parameters = (constant(qparams.scale), constant(qparams.zero_point))
    axis = -1 if qparams.axis is None else qparams.axis
    integers = emit(qnn.quantize(x, *parameters, axis=axis, out_dtype=qparams.dtype))
    integers = emit(relax.op.clip(integers, *site.limits))
    return relax.op.where(on, emit(qnn.dequantize(integers, *parameters, axis=axis)), x)
