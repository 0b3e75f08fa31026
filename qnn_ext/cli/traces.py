"""What `qnn-ext bench` writes of its measurements: a trace for Chrome and Perfetto, and JSON with trtexec's fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..files.storage import write_text
from ..running.engine import Engine

Json = dict[str, Any]


def write_json(path: Path, data: Any) -> None:
    """Write JSON values to a file. Raises QnnError."""
    write_text(path, json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n")


def trace_events(engine: Engine, spans: np.ndarray) -> Json:
    """The kernels of each run in Chrome's trace format, which Perfetto reads too; times in microseconds.

    A program's threads meet after each kernel, so a span on the calling thread is that of all of them: they share one
    track, whose name says how many they are.
    """
    threads = f"{engine.num_threads} thread{'s' if engine.num_threads > 1 else ''}"
    events: list[Json] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": engine.source_name}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": f"kernels, {threads}"}},
    ]
    for run, (row, (begin, end)) in enumerate(zip(spans * 1e6, _runs(spans * 1e6), strict=True)):
        events.append(
            {"ph": "X", "pid": 1, "tid": 1, "name": f"run {run}", "cat": "run", "ts": begin, "dur": end - begin}
        )
        for kernel, (start, stop) in zip(engine.kernels, row.tolist(), strict=True):
            about = {"operators": kernel.operators, "implementation": kernel.implementation, "MAC": kernel.macs}
            about |= {"bytes": kernel.weight_bytes + kernel.data_bytes, "tensors": kernel.sources}
            event = {"ph": "X", "pid": 1, "tid": 1, "name": kernel.layer, "cat": "kernel", "args": about}
            events.append({**event, "ts": start, "dur": stop - start})
    return {"displayTimeUnit": "ns", "traceEvents": events}


def layer_times(engine: Engine, spans: np.ndarray) -> list[Json]:
    """As trtexec's --exportProfile: the number of runs, then each kernel's times in milliseconds, `timeMs` over all
    runs."""
    milliseconds = (spans[..., 1] - spans[..., 0]) * 1e3
    total = float(milliseconds.sum()) or 1.0
    rows: list[Json] = [{"count": len(spans)}]
    for kernel, times in zip(engine.kernels, milliseconds.T, strict=True):
        row: Json = {"name": kernel.layer, "timeMs": float(times.sum()), "averageMs": float(times.mean())}
        row |= {"medianMs": float(np.median(times)), "percentage": 100 * float(times.sum()) / total}
        row |= {"operators": kernel.operators, "implementation": kernel.implementation, "macs": kernel.macs}
        rows.append(row)
    return rows


def run_times(spans: np.ndarray) -> list[Json]:
    """As trtexec's --exportTimes: when each run started and ended to compute, and how long that took, in
    milliseconds."""
    runs = _runs(spans * 1e3)
    return [{"startComputeMs": start, "endComputeMs": end, "computeMs": end - start} for start, end in runs]


def _runs(spans: np.ndarray) -> list[tuple[float, float]]:
    """The start of the first kernel and the end of the last one, of each run; zeros for a model without kernels."""
    return [(float(row[:1, 0].sum()), float(row[-1:, 1].sum())) for row in spans]
