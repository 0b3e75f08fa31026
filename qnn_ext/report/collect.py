"""All that a page says about one model, as JSON values: collected here, shown by the page."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..building import build
from ..compiling.build import TargetLike
from ..evaluation.comparison import SHARES, accuracy
from ..evaluation.labels import Labels
from ..evaluation.samples import Samples
from ..module import QnnModule
from ..quantize.analysis import Analysis, analyze
from ..quantize.compare import compare
from ..quantize.config import QConfig, resolve_config
from ..quantize.dataset import ImageFolder
from ..quantize.stages import Stages, is_quantized, stages
from ..running.engine import Engine
from ..running.model import Variant, target_name
from ..running.names import short_names
from ..targets.families import backend_described
from .graph import Json, compiled_graph, imported_graph, sanitized
from .layers import layer_rows, peak_tensors, totals
from .machine import Machine, measure


@dataclass(frozen=True)
class Request:
    """What is measured for a page.

    profile:   whether to time the model and its kernels here, and to measure what this machine's CPU can reach
    data:      real values to measure errors on, as `quantize` takes them; a float model is quantized with them
    labels, classes, label_offset: the right answers, as `qnn_ext.accuracy` takes them; by default those in the data
    config:    how a float model is quantized
    floating:  the float version of a quantized model, to measure its error against
    normalize: how pixels become values, see `qnn_ext.images`
    samples:   how many batches errors are measured on
    """

    profile: bool = False
    data: Any = None
    labels: Any = None
    classes: Any = None
    label_offset: int = 0
    config: QConfig | None = None
    floating: QnnModule | None = None
    normalize: str = "auto"
    samples: int = 32

    @property
    def dataset(self) -> Any:
        """The data as `quantize` takes them."""
        is_path = isinstance(self.data, (str, os.PathLike))
        return ImageFolder(Path(self.data), self.normalize) if is_path and self.normalize != "auto" else self.data


def model_report(
    model: QnnModule | Engine,
    request: Request,
    name: str = "",
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
) -> Json:
    """Everything about a module, which is built for the targets, or about an engine.

    A float module is quantized if there are data, or built as it is. Raises what `build`, `quantize` and
    `qnn_ext.accuracy` raise.
    """
    module = model if isinstance(model, QnnModule) else None
    floating, error = request.floating, None
    if module is not None and request.data is not None and not is_quantized(module):
        floating = module
        config = resolve_config(request.config)
        done = stages(module, None, request.dataset, config)
        module = done.result
        error = analysis_data(_analyzed(done, config, request), config)
    if isinstance(model, Engine):
        engine = model
    else:
        assert module is not None
        engine = build(module, target, num_threads)
    if error is None and floating is not None and request.data is not None:
        error = _compared(floating, module or engine, request)
    return build_report(engine, module, error, _accuracy(engine, floating, request), name, request.profile)


def build_report(
    engine: Engine,
    module: QnnModule | None = None,
    error: Json | None = None,
    accuracy: Json | None = None,
    name: str = "",
    profile: bool = False,
) -> Json:
    """Everything about an engine and the module it was built from, with what was measured of its errors before."""
    report: Json = {
        "name": name or engine.source_name,
        "source": Path(engine.source_name).name,
        "threads": engine.num_threads,
        "inputs": list(map(str, engine.inputs)),
        "outputs": list(map(str, engine.outputs)),
        "notes": [asdict(note) for note in engine.notes],
        "graph": imported_graph(module, engine.kernels) if module is not None else None,
        "error": error,
        "accuracy": accuracy,
    }
    report["variants"] = [_variant(one, engine, report, profile) for one in engine.compiled]
    report["short"] = short_names(_names(report))
    return report


def _names(report: Json) -> Iterator[str]:
    """All names that the page shows."""
    for graph in (report["graph"], *(one["graph"] for one in report["variants"])):
        yield from (node["name"] for node in (graph or {"nodes": []})["nodes"] if "part_of" not in node)
    for kind in ("layers", "sites"):
        yield from (one["name"] for one in (report["error"] or {kind: []})[kind])


def _variant(variant: Variant, engine: Engine, report: Json, profile: bool) -> Json:
    measured = profile and variant.target == engine.target
    times = engine.profile() if measured else []
    is_cpu = not backend_described(variant.target).grid
    size = variant.memory.weights + variant.memory.feature_maps
    machine = _machine(engine.num_threads, size) if measured and is_cpu else None
    reasons = {sanitized(note["node"]): note["reason"] for note in report["notes"]}
    rows = layer_rows(variant.kernels, reasons, times, machine)
    peak, tensors = peak_tensors(variant.kernels)
    timing = engine.time() if measured else None
    return {
        "target": target_name(variant.target),
        "features": variant.features,
        "runs_here": variant.runs_here(),
        "fallback": variant.fallback,
        "memory": asdict(variant.memory),
        "graph": compiled_graph(variant, engine.inputs, engine.states, report["graph"]),
        "layers": rows,
        "totals": totals(rows),
        "latency": None if timing is None else {"median": timing.median, "best": timing.best},
        "machine": None if machine is None else asdict(machine),
        "peak": {"kernel": peak, "tensors": tensors},
    }


@cache
def _machine(threads: int, size: int) -> Machine:
    return measure(threads, max(size, 1))


# ---- error -------------------------------------------------------------------------------------------------------


def _analyzed(done: Stages, config: QConfig, request: Request) -> Analysis | None:
    """None for dynamic quantization, which has no ranges to judge."""
    if "annotate" not in done:
        return None
    return analyze(done["annotate"], done.table, request.dataset, config, request.samples)


def analysis_data(analysis: Analysis | None, config: QConfig | None = None) -> Json | None:
    """An analysis of quantization as JSON values, with its histograms; infinite SQNR, of equal tensors, is null."""
    if analysis is None:
        return None
    default = QConfig()
    names = [item.name for item in fields(QConfig) if item.name != "target"]
    changed = [] if config is None else [name for name in names if getattr(config, name) != getattr(default, name)]
    return {
        "samples": analysis.samples,
        "settings": [[name, str(getattr(config, name))] for name in changed],
        "outputs": [_fidelity(name, found) for name, found in analysis.outputs.items()],
        "layers": [
            {
                "name": layer.layer,
                "operator": layer.operator.removeprefix("qnn."),
                "alone": _decibel(layer.alone.sqnr),
                "together": _decibel(layer.together.sqnr),
                "cosine": layer.together.cosine,
            }
            for layer in analysis.layers
        ],
        "sites": [
            {
                "name": site.site,
                "role": site.role,
                "dtype": site.dtype if site.bits == 8 else f"{site.dtype}, {site.bits} bits",
                "low": site.low,
                "high": site.high,
                "sqnr": _decibel(site.fidelity.sqnr),
                "saturated": site.saturated,
                "counts": np.asarray(site.counts).tolist(),
                "edges": [float(site.edges[0]), float(site.edges[-1])],
            }
            for site in analysis.sites
        ],
    }


def _fidelity(name: str, found: Any) -> Json:
    return {"name": name, "sqnr": _decibel(found.sqnr), "cosine": found.cosine, "largest": found.largest}


def _decibel(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _compared(floating: QnnModule, other: QnnModule | Engine, request: Request) -> Json:
    """The error of a model that was quantized before, against its float version: no layer is quantized alone."""
    found = compare(floating, other, request.dataset, request.samples)
    return {
        "samples": found.samples,
        "settings": [],
        "outputs": [_fidelity(name, one.fidelity) for name, one in found.outputs.items()],
        "layers": [
            {"name": name, "operator": "", "alone": None, "together": _decibel(one.sqnr), "cosine": one.cosine}
            for name, one in found.tensors.items()
        ],
        "sites": [],
    }


def _accuracy(engine: Engine, floating: QnnModule | None, request: Request) -> Json | None:
    """Top-1 and top-5, if there are labels."""
    if request.data is None:
        return None
    given = Labels(request.labels, request.classes, request.label_offset, None)
    first = next(itertools.islice(Samples(request.data, engine.inputs, given, request.normalize, 1), 1), None)
    if first is None or first.label is None:
        return None
    found = accuracy(
        engine,
        request.data,
        request.labels,
        classes=request.classes,
        label_offset=request.label_offset,
        float_model=floating,
        normalize=request.normalize,
    )
    return {
        "samples": found.samples,
        "columns": [column.title for column in found.columns],
        "rows": [{"name": name, "share": name in SHARES, "values": values} for name, values in found.rows()],
    }
