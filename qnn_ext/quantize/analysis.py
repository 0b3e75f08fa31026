"""How much accuracy quantization costs and where: the error of each tensor and layer, and of each layer quantized
alone.

Measured on data, in simulation (float with quantization errors). SQNR is 10·log₁₀(Σ x² / Σ (x − y)²) in dB over all
values: 6 dB are one bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiling.build import compile_module
from ..module import QnnModule
from ..op.base import call_attributes, definition_of
from ..op.observe import OBSERVE, observed_sites
from ..passes.rewrite import bindings_of, variables_of
from ..running.engine import Engine
from .annotate.families import Family, family_of
from .config import QConfig
from .dataset import batches
from .measurable import measurable
from .ranges import Range
from .shards import batch_named
from .switchable import Observed, Switchable, observations, switchable
from .tentative import with_quantized_loops

HISTOGRAM_BINS = 128


@dataclass(frozen=True)
class Fidelity:
    """How close a tensor is to its reference.

    sqnr: dB, infinite when equal; cosine: similarity of both as vectors; largest: max |x − y|
    """

    sqnr: float
    cosine: float
    largest: float


class FidelityMeter:
    """Accumulates the Fidelity of a tensor over many batches."""

    def __init__(self) -> None:
        self._xx = self._yy = self._xy = self._noise = self._largest = 0.0

    def add(self, expected: np.ndarray, found: np.ndarray) -> None:
        """Add one batch: the reference values and the actual ones."""
        x, y = (np.asarray(array, np.float64).reshape(-1) for array in (expected, found))
        self._xx += float(x @ x)
        self._yy += float(y @ y)
        self._xy += float(x @ y)
        difference = x - y
        self._noise += float(difference @ difference)
        self._largest = max(self._largest, float(np.abs(difference).max(initial=0.0)))

    @property
    def result(self) -> Fidelity:
        return Fidelity(to_decibel(self._xx, self._noise), self._cosine(), self._largest)

    def _cosine(self) -> float:
        norm = np.sqrt(self._xx * self._yy)
        return float(self._xy / norm) if norm else float(self._xx == self._yy)


def to_decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal else float("-inf")


def fidelity(expected: np.ndarray, found: np.ndarray) -> Fidelity:
    """The Fidelity of one array."""
    meter = FidelityMeter()
    meter.add(expected, found)
    return meter.result


@dataclass(frozen=True)
class SiteReport:
    """One quantized tensor.

    low, high:  the real values of the smallest and the largest integer; if there are several scales, the widest
    fidelity:   of the quantized tensor, against the float one
    saturated:  share of values outside low … high
    counts, edges: histogram of the float values, one more edge than counts
    """

    site: str
    layer: str
    role: str
    dtype: str
    bits: int
    low: float
    high: float
    fidelity: Fidelity
    saturated: float
    counts: np.ndarray
    edges: np.ndarray


@dataclass(frozen=True)
class LayerReport:
    """One layer.

    together: Fidelity of the layer's result when the whole model is quantized
    alone:    Fidelity of the model's first output when this layer alone is quantized
    """

    layer: str
    operator: str
    together: Fidelity
    alone: Fidelity


@dataclass(frozen=True)
class Analysis:
    """How much accuracy quantization costs.

    sites, layers: in order of computation; those in loops are not among them
    outputs:       model output → its Fidelity when the whole model is quantized, the loops too
    samples:       number of batches it was measured on
    """

    sites: tuple[SiteReport, ...]
    layers: tuple[LayerReport, ...]
    outputs: Mapping[str, Fidelity]
    samples: int

    @property
    def ranking(self) -> list[LayerReport]:
        """The layers, sorted by how much each costs when quantized alone, most first: candidates to skip."""
        return sorted(self.layers, key=lambda layer: layer.alone.sqnr)


def analyze(
    annotated: QnnModule,
    ranges: Mapping[str, Range],
    dataset: Any,
    config: QConfig | None = None,
    samples: int = 64,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> Analysis:
    """Measure how much accuracy quantizing `annotated` with these ranges costs.

    annotated: float, with qnn.observe where `realize` would quantize
    ranges:    site → range, a CalibrationTable
    dataset:   as `quantize` takes it; the first `samples` batches of it are used
    progress:  called with what is being done and the share of all work that was done before. The errors of the outputs
               are known early, and then part of that text

    Raises QuantizationError when nothing is annotated, ranges are missing or the data set is empty.
    """
    annotated = measurable(annotated)
    everything = observations(annotated, ranges, config or QConfig(), loops=True)
    outside = observed_sites(annotated.ir)
    observed = [one for one in everything if one.site.name in outside]
    in_loops = {one.site.name: one for one in everything if one.site.name not in outside}
    layers = quantized_layers(annotated, observed)
    shown = list(
        dict.fromkeys([*(layer.result for layer in layers), *(site.tensor for site in observed if site.tensor)])
    )
    data = list(itertools.islice(batches(dataset, annotated.inputs), samples))
    program = switchable(annotated, observed, shown)
    whole = switchable(with_quantized_loops(annotated, in_loops), observed, shown) if in_loops else program
    return _Measurement(program, whole, layers, [spec.name for spec in annotated.outputs]).run(data, progress)


# ---- layers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer: the variable of its result, where that is computed, and the sites it reads."""

    name: str
    operator: str
    result: str
    position: int
    sites: frozenset[str]


def quantized_layers(annotated: QnnModule, observed: Sequence[Observed]) -> list[QuantizedLayer]:
    """The layers that asked for a site, each with all quantized tensors that it reads, directly or through moves."""
    owners = {one.site.name: (one.site.layer, one.site.operator) for one in observed}
    carried: dict[Any, frozenset[str]] = {}
    found: dict[str, tuple[bool, QuantizedLayer]] = {}
    for position, binding in enumerate(bindings_of(annotated.ir["main"])):
        value = binding.value
        if definition_of(value) is OBSERVE:
            carried[binding.var] = frozenset({call_attributes(value)["site"]})
            continue
        read = frozenset().union(*(carried.get(operand, frozenset()) for operand in variables_of(value)))
        if family_of(value, ()) is Family.MOVE:
            carried[binding.var] = read
            continue
        is_product = family_of(value, ()) is Family.PRODUCT
        for name, operator in sorted({owners[site] for site in read}):
            if name not in found or (is_product and not found[name][0]):
                found[name] = is_product, QuantizedLayer(name, operator, str(binding.var.name), position, read)
    return sorted((layer for _, layer in found.values()), key=lambda layer: layer.position)


# ---- measuring ---------------------------------------------------------------------------------------------------


class _Measurement:
    """Runs the switchable program over the data and keeps count. whole: the same, with quantized loops"""

    def __init__(
        self, program: Switchable, whole: Switchable, layers: Sequence[QuantizedLayer], outputs: Sequence[str]
    ) -> None:
        self._program = program
        self._layers = layers
        self._outputs = outputs
        self._engine = compile_module(program.module)
        simulated = self._engine if whole is program else compile_module(whole.module)
        self._exact = _Stream(self._engine, self._switches(()))
        self._simulated = _Stream(simulated, self._switches([one.site.name for one in program.sites]))
        self._tensors = {name: len(outputs) + i for i, name in enumerate(program.tensors)}
        self._sites = {one.site.name: _SiteMeter(one) for one in program.sites}
        self._together = {layer.name: FidelityMeter() for layer in layers}
        self._alone = {layer.name: FidelityMeter() for layer in layers}
        self._whole = {name: FidelityMeter() for name in outputs}

    def run(self, data: Sequence[Sequence[np.ndarray]], progress: Callable[[str, float], None]) -> Analysis:
        """First what takes two runs for each batch, then each layer alone, which takes one for each batch and layer."""
        work = 2 + len(self._layers)
        exact: list[np.ndarray] = []
        for index, batch in enumerate(data):
            progress(f"all layers, batch {index + 1} of {len(data)}", 2 * index / len(data) / work)
            with batch_named(index):
                exact.append(self._measure(batch))
        found = ", ".join(f"{name} {meter.result.sqnr:.1f} dB" for name, meter in self._whole.items())
        for index, layer in enumerate(self._layers):
            progress(f"{found}; layer {index + 1} of {len(self._layers)} alone", (2 + index) / work)
            alone = _Stream(self._engine, self._switches(layer.sites))
            for batch, reference in zip(data, exact, strict=True):
                self._alone[layer.name].add(reference, alone.run(batch)[0])
        for meter in self._sites.values():
            if meter.value is not None:
                meter.add(meter.value)
        return Analysis(
            tuple(meter.report() for meter in self._sites.values()),
            tuple(
                LayerReport(
                    layer.name, layer.operator, self._together[layer.name].result, self._alone[layer.name].result
                )
                for layer in self._layers
            ),
            {name: meter.result for name, meter in self._whole.items()},
            len(data),
        )

    def _switches(self, on: Collection[str]) -> np.ndarray:
        return np.array([one.site.name in on for one in self._program.sites], bool)

    def _measure(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Measure a batch with all layers quantized; returns the exact first output."""
        exact = self._exact.run(batch)
        simulated = self._simulated.run(batch)
        for index, name in enumerate(self._outputs):
            self._whole[name].add(exact[index], simulated[index])
        for layer in self._layers:
            index = self._tensors[layer.result]
            self._together[layer.name].add(exact[index], simulated[index])
        for meter in self._sites.values():
            if meter.tensor is not None:
                meter.add(exact[self._tensors[meter.tensor]])
        return exact[0]


class _Stream:
    """The program over one batch after another with the same switches. A model's states are those that its batches
    before left with these switches; streams may take turns on one engine."""

    def __init__(self, engine: Engine, switches: np.ndarray) -> None:
        self._engine = engine
        self._switches = switches
        self._states = [state.initial for state in engine.states]

    def run(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        self._engine.set_states(self._states)
        switches = [self._switches] if self._switches.size else []  # a program without sites has no such input
        results = list(self._engine.run([*batch, *switches]).values())
        self._states = self._engine.state_values()
        return results


class _SiteMeter:
    """Error, saturation and histogram of one tensor. The histogram spans the first batch and the range, and a quarter
    more; values outside are counted in its end bins."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self.tensor, self.value = observed.tensor, observed.site.value
        self._fidelity = FidelityMeter()
        self._saturated = self._seen = 0
        self._edges: np.ndarray | None = None
        self._counts = np.zeros(HISTOGRAM_BINS, np.int64)

    def add(self, array: np.ndarray) -> None:
        self._fidelity.add(array, self._observed.simulate(array))
        self._saturated += self._observed.saturated(array)
        self._seen += array.size
        if self._edges is None:
            self._edges = self._span(array)
        clipped = np.clip(array, self._edges[0], self._edges[-1])
        self._counts += np.histogram(clipped, self._edges)[0]

    def _span(self, array: np.ndarray) -> np.ndarray:
        ends = self._observed.ends
        low, high = min(ends[0], float(array.min())), max(ends[1], float(array.max()))
        margin = 0.0 if self.value is not None else 0.25 * (high - low)
        return np.linspace(low - margin if low < 0 else low, high + margin, HISTOGRAM_BINS + 1)

    def report(self) -> SiteReport:
        site = self._observed.site
        assert self._edges is not None, "data sets are not empty"
        return SiteReport(
            site.name,
            site.layer,
            site.role,
            site.dtype,
            site.bits,
            *self._observed.ends,
            self._fidelity.result,
            self._saturated / self._seen,
            self._counts,
            self._edges,
        )
