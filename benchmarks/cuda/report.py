"""The results of a GPU run: as values, as JSON, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..turns import Times

BUILDS = ("qnn_ext", "qnn_ext CUDA graph", "qnn_ext float32", "qnn_ext float16")
"""What `compiling.FORMS` are called in tables."""


@dataclass
class Gemm:
    """A product of m × k by n × k int8 matrices: times by kernel, and reasons for missing ones."""

    m: int
    k: int
    n: int
    times: dict[str, Times] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.k * self.n


@dataclass
class Row:
    """A model at some batch size.

    exact:    share of the outputs that equal the CPU's, and the largest difference; None where there are none
    times:    by build or runtime
    failures: by build or runtime, why there is no time; "made" and "built" for earlier steps
    """

    network: str
    file: str
    batch: int
    macs: int = 0
    integer_share: float = 0.0
    build_seconds: float = 0.0
    exact: tuple[float, float] | None = None
    times: dict[str, Times] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """Whether an output differs from the CPU's."""
        return self.exact is not None and self.exact[0] < 1


@dataclass
class Report:
    """All of a run. peak: int8 operations per second of `instruction`; left_out: why peers are missing."""

    device: str
    architecture: str
    versions: dict[str, str]
    instruction: str = ""
    peak: float = 0.0
    gemms: list[Gemm] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_reached: list[str] = field(default_factory=list)


def agreement(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[float, float]:
    """The share of equal values, NaN equal to NaN, and the largest difference. Raises ValueError for other shapes."""
    if [value.shape for value in ours] != [value.shape for value in expected]:
        raise ValueError("outputs with different shapes from the CPU's")
    a, b = (np.concatenate([value.astype(np.float64).ravel() for value in values]) for values in (ours, expected))
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    if equal.all():
        return 1.0, 0.0
    return float(equal.mean()), float(np.abs(np.where(equal, 0.0, a - b)).max())


def to_json(report: Report) -> dict[str, Any]:
    """Everything, with what is derived from it."""
    data = asdict(report)
    for gemm, values in zip(report.gemms, data["gemms"], strict=True):
        values["of_peak"] = {name: share(gemm.operations, times, report.peak) for name, times in gemm.times.items()}
    for row, values in zip(report.rows, data["rows"], strict=True):
        times = row.times.get("qnn_ext")
        values["of_peak"] = share(2.0 * row.macs, times, report.peak) if times else None
        values["samples_per_second"] = {name: row.batch / found.median for name, found in row.times.items()}
    return data


def share(operations: float, times: Times, peak: float) -> float | None:
    """`operations` over the median time, as a share of the measured peak; None where no peak is known."""
    return operations / times.median / peak if peak else None


def markdown(report: Report) -> str:
    """All tables."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = [f"{report.device} ({report.architecture}). {versions}."]
    if report.peak:
        lines.append(f"int8 peak, measured with {report.instruction}: {report.peak / 1e12:.1f} TOP/s.")
    lines += [f"{name} is skipped: {reason}." for name, reason in report.left_out.items()]
    sections = ["  \n".join(lines), _exact(report), _gemms(report), _latency(report), _failures(report)]
    if report.not_reached:
        sections.append("Not reached within the time limit: " + ", ".join(report.not_reached) + ".")
    return "\n\n".join(filter(None, sections)) + "\n"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _exact(report: Report) -> str:
    rows = []
    for row in report.rows:
        if row.exact is not None:
            same, largest = row.exact
            rows.append([row.file, str(row.batch), "all" if same == 1 else f"{100 * same:.3f} %", f"{largest:g}"])
    return _table("Outputs compared with the CPU build", ["model", "batch", "equal", "largest difference"], rows)


def _gemms(report: Report) -> str:
    names = list(dict.fromkeys(name for gemm in report.gemms for name in gemm.times))
    rows = []
    for gemm in report.gemms:
        cells = [f"{gemm.m} × {gemm.k} × {gemm.n}"]
        rows.append([*cells, *(_speed(gemm.times.get(name), gemm.operations, report.peak) for name in names)])
    return _table("Products, TOP/s and share of the peak", ["m × k × n", *names], rows)


def _speed(times: Times | None, operations: float, peak: float) -> str:
    if times is None:
        return ""
    of_peak = share(operations, times, peak)
    return f"{operations / times.median / 1e12:.1f}" + (f" ({100 * of_peak:.0f} %)" if of_peak is not None else "")


def _latency(report: Report) -> str:
    timed = [row for row in report.rows if row.times]
    peers = [name for row in timed for name in row.times if name not in BUILDS]
    names = [*BUILDS, *dict.fromkeys(peers)]
    rows = []
    for row in timed:
        cells = [row.network, str(row.batch)]
        for name in names:
            times = row.times.get(name)
            cells.append(f"{times.median * 1e3:.3f} ({row.batch / times.median:.0f}/s)" if times else "")
        ours = row.times.get("qnn_ext")
        of_peak = share(2.0 * row.macs, ours, report.peak) if ours else None
        rows.append([*cells, f"{100 * of_peak:.1f} %" if of_peak is not None else ""])
    return _table("Milliseconds per batch (samples per second)", ["model", "batch", *names, "of peak"], rows)


def _failures(report: Report) -> str:
    rows = [[row.file, str(row.batch), name, why] for row in report.rows for name, why in row.failures.items()]
    rows += [[f"{g.m} × {g.k} × {g.n}", "", name, why] for g in report.gemms for name, why in g.failures.items()]
    return _table("What failed", ["what", "batch", "by", "why"], rows)
