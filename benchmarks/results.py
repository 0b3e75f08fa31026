"""What a run of the benchmark found, as values and as JSON."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from qnn_ext.processes.cores import default_threads

from .comparison import OURS, Comparison
from .compiling import Compiled
from .goals import goal_of
from .models import Model
from .turns import Times

_PACKAGES = ("qnn-ext", "apache-tvm", "ai-edge-litert", "onnxruntime", "openvino", "torch", "torchao")


@dataclass
class Machine:
    """The machine that the figures were measured on. By number of threads: peaks, operations per second by instruction;
    reads, bytes per second by place."""

    cpu: str
    cores: int
    versions: dict[str, str]
    peaks: dict[int, dict[str, float]] = field(default_factory=dict)
    reads: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Machine:
        """This machine, with nothing measured yet."""
        return cls(_cpu_name(), default_threads(), _versions())


@dataclass
class Result:
    """Everything about one model. error: why it does not import or build; float_error: the same for its float twin."""

    model: Model
    compiled: Compiled | None = None
    error: str | None = None
    float_error: str | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    def at(self, threads: int) -> Comparison | None:
        """The comparison on this many threads."""
        return next((found for found in self.comparisons if found.threads == threads), None)


def to_json(machine: Machine, results: list[Result]) -> dict[str, Any]:
    """Everything, including every turn."""
    return {"machine": asdict(machine), "models": [_model_json(result) for result in results]}


def _model_json(result: Result) -> dict[str, Any]:
    compiled, goal = result.compiled, goal_of(result.model.name)
    data: dict[str, Any] = {
        "model": result.model.name,
        "file": result.model.path.name,
        "bytes": result.model.bytes,
        "goal": asdict(goal),
        "error": result.error,
        "float_error": result.float_error,
        "comparisons": [_comparison_json(found) for found in result.comparisons],
    }
    if compiled:
        data |= {
            "import_seconds": compiled.import_seconds,
            "macs": compiled.macs,
            "integer_share": compiled.integer_share,
            "builds": {
                count: {"seconds": build.seconds, "bytes": build.bytes, "peak_bytes": build.peak_bytes}
                for count, build in compiled.builds.items()
            },
        }
    return data


def _comparison_json(found: Comparison) -> dict[str, Any]:
    return {
        "threads": found.threads,
        "times": {name: _times_json(times) for name, times in found.times.items()},
        "rivals": found.rivals,
        "best_rival": found.best_rival,
        "ratio": found.ratio(),
        "ratio_of_least": found.ratio(least=True),
        "of_peak": found.of_peak(),
        "peaks": found.peaks,
        "failures": found.failures,
        "memory": {name: asdict(memory) for name, memory in found.memory.items()},
        "agreement": found.agreement
        and {"with": found.reference, "equal": found.agreement[0], "largest": found.agreement[1]},
        "layers": [asdict(layer) for layer in found.layers],
    }


def _times_json(times: Times) -> dict[str, Any]:
    return {"median": times.median, "least": times.least, "quartiles": times.quartiles, "seconds": times.seconds}


def spread(found: Comparison) -> float | None:
    """How unsteady the machine was: the interquartile range of our turns, as a share of their median."""
    if OURS not in found.times:
        return None
    low, high = found.times[OURS].quartiles
    return (high - low) / found.times[OURS].median


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
