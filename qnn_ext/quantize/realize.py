"""Realize: every `R.qnn.observe` becomes quantize and dequantize with the QParams of its range, then integers.

Between the two the module is a QDQ graph, the simulation: it computes in float exactly what the integers will compute.
Weights become integer constants, biases int32 in the units of their accumulator; `passes.qdq_to_integer` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..module import FloatNote, QnnModule
from ..op.arguments import data_of
from ..op.base import constant, shape_of
from ..op.compound import permute
from ..op.observe import OBSERVE
from ..op.relax_table import traits_named
from ..passes.bodies import everywhere
from ..passes.qdq_to_integer import qdq_to_integer
from ..passes.rewrite import Emit, op_name, rewrite
from ..qparams import QParams
from .accumulators import Accumulators
from .annotate import Site, sites
from .annotate.families import is_integer_resize
from .config import QConfig, plain_operator
from .cubics import with_cubics
from .partition import partition_conversions
from .ranges import Range, integer_range, qparams_of
from .rounding import set_rounding, with_reciprocals
from .short_filters import short_filters
from .table import CalibrationTable


def realize(annotated: QnnModule, table: Mapping[str, Range], config: QConfig) -> QnnModule:
    """`annotated` computing with integers, or simulating them in float if `config.do_simulation`.

    table: the range of every site. Raises QuantizationError when one is missing or does not fit its site.
    """
    simulation = simulate(annotated, table, config)
    return simulation if config.do_simulation else to_integers(simulation, config)


def to_integers(simulation: QnnModule, config: QConfig) -> QnnModule:
    """The integer module that a simulation stands for, rounded and partitioned as the configuration says."""
    mod, notes = qdq_to_integer(with_cubics(simulation.ir))
    rounded = set_rounding(mod, config.rounding, config.round_for_shift)
    mod = short_filters(everywhere(rounded, with_reciprocals))
    realized = replace(simulation, ir=mod, notes=(*simulation.notes, *(_explained(note, config) for note in notes)))
    return realized if config.partition_conversions == "disabled" else partition_conversions(realized, config)


def _explained(note: FloatNote, config: QConfig) -> FloatNote:
    """The note of an operator that is in float because the configuration says so."""
    if traits_named(note.operator).product is not None:
        return replace(note, reason="the qconfig keeps this layer in float")
    words = f"_{plain_operator(note.operator)}_"
    function = next((name for name in config.float_functions if f"_{name}_" in words), None)
    return note if function is None else replace(note, reason=f"the qconfig keeps {function} in float")


def simulate(annotated: QnnModule, table: Mapping[str, Range], config: QConfig) -> QnnModule:
    """`annotated` as a QDQ graph: float operators between `qnn.quantize` and `qnn.dequantize`."""
    found = sites(annotated)
    parameters = site_qparams(found, table, config)
    named = {site.name: site for site in found}

    def simulated(mod: IRModule) -> IRModule:
        return _Simulation(named, parameters).of(mod)

    return replace(annotated, ir=everywhere(annotated.ir, simulated))


def site_qparams(found: list[Site], table: Mapping[str, Range], config: QConfig) -> dict[str, QParams]:
    """The QParams of every site. Raises QuantizationError when a range is missing or does not fit."""
    (table if isinstance(table, CalibrationTable) else CalibrationTable(table)).check(site.name for site in found)
    return {
        site.name: qparams_of(
            table[site.name], site.dtype, site.bits, site.symmetric, config.power_of_two, site.axis, site.name
        )
        for site in found
    }


class _Simulation:
    """One walk: replaces sites, and rounds biases."""

    def __init__(self, found: Mapping[str, Site], parameters: Mapping[str, QParams]) -> None:
        self._sites = found
        self._parameters = parameters
        self._accumulators = Accumulators()

    def of(self, mod: IRModule) -> IRModule:
        """The walk."""
        return rewrite(mod, self._rule)

    def _rule(self, value: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(value)
        if name == OBSERVE.relax_op.name.removeprefix("relax."):
            return self._site(value, emit)
        if is_integer_resize(value):
            return self._resized(value, emit)
        if name == "add":
            return self._bias(value, emit)
        return self._accumulators.rule(value, emit)

    def _site(self, call: relax.Call, emit: Emit) -> relax.Expr:
        site = self._sites[str(call.attrs["site"])]
        parameters = self._parameters[site.name]
        low, high = (bound.astype(np.float32) for bound in _bounds(site, parameters))
        axis = -1 if parameters.axis is None else parameters.axis
        scale, zero_point = constant(parameters.scale), constant(parameters.zero_point)
        if site.value is not None:
            integers: Any = constant(quantized_weight(site, parameters))
        else:
            real = data_of(call)
            if site.bits < np.iinfo(site.dtype).bits:
                real = emit(relax.op.clip(real, float(low), float(high)))
            integers = emit(qnn.quantize(real, scale, zero_point, axis=axis, out_dtype=site.dtype))
        var = emit(qnn.dequantize(integers, scale, zero_point, axis=axis))
        self._accumulators.quantized[var] = parameters
        return var

    def _resized(self, call: relax.Call, emit: Emit) -> relax.Expr | None:
        """Interpolation of the integers, each result rounded to an integer."""
        data, size = call.args
        parameters = self._accumulators.quantized.get(data)
        layout, ndim = str(call.attrs.layout), len(shape_of(data))
        if parameters is None or parameters.per_channel or sorted(layout) != sorted("NCHW") or ndim != 4:
            return None
        scale, zero_point = constant(parameters.scale), constant(parameters.zero_point)
        mode = str(call.attrs.coordinate_transformation_mode)
        integers = emit(qnn.quantize(data, scale, zero_point, out_dtype=parameters.dtype))
        integers = permute(integers, [layout.index(axis) for axis in "NHWC"], emit)
        out_size = tuple(int(n) for n in size.values)
        resized = qnn.resize_bilinear(integers, out_size, mode == "align_corners", mode == "half_pixel")  # type: ignore[arg-type]
        resized = permute(emit(resized), ["NHWC".index(axis) for axis in layout], emit)
        var = emit(qnn.dequantize(resized, scale, zero_point))
        self._accumulators.quantized[var] = parameters
        return var

    def _bias(self, call: relax.Call, emit: Emit) -> relax.Expr | None:
        bias = self._accumulators.bias(call)
        if bias is None:
            return None
        scale = constant(bias.scale.reshape(-1) if bias.scale.size > 1 else bias.scale.reshape(()))
        real = emit(qnn.dequantize(constant(bias.steps), scale, constant(np.int32(0)), axis=bias.axis))
        return relax.op.add(bias.product, real)


def quantized_weight(site: Site, parameters: QParams) -> np.ndarray:
    """The integers of a weight, in the shape of its site."""
    assert site.value is not None
    low, high = integer_range(site.dtype, site.bits, site.symmetric)
    return np.clip(parameters.quantize(site.value), low, high).astype(site.dtype)


def _bounds(site: Site, parameters: QParams) -> tuple[np.ndarray, np.ndarray]:
    """The real values of the smallest and the largest integer that `bits` allows."""
    low, high = (np.asarray(q, np.int64) for q in integer_range(site.dtype, site.bits, site.symmetric))
    scale = parameters.scale.astype(np.float64)
    return (low - parameters.zero_point) * scale, (high - parameters.zero_point) * scale
