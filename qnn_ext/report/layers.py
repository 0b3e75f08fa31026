"""The kernels of a compiled model as rows: time, rates and what bounds them, memory, what is float and what that
costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from ..running.kernels import Kernel
from ..running.timing import LayerProfile
from .graph import FLOAT, INTEGER, MOVED, Json, computes_floats, kind_of, label_of, names_of
from .machine import Machine

_CACHED = 20  # the most that caches are faster than memory
_NARROWER = 0.25  # int8 against float32: bytes of each value


def layer_rows(
    kernels: Sequence[Kernel],
    reasons: Mapping[str, str],
    profile: Sequence[LayerProfile] = (),
    machine: Machine | None = None,
) -> list[Json]:
    """One row for each kernel, in execution order.

    reasons: name of a tensor, as a variable's → why it stays float
    profile: the times of the kernels; machine: what the machine can reach, for shares of it. Without them the rows have
             no such values
    """
    times: list[float | None] = [one.seconds for one in profile] if profile else [None] * len(kernels)
    rows = [
        {"index": index, "name": name, **_row(kernel, seconds, machine)}
        for index, (name, kernel, seconds) in enumerate(zip(names_of(kernels), kernels, times, strict=True))
    ]
    rates = [row["gops"] for row in rows if row["kind"] == INTEGER and row.get("gops")]
    for row, kernel in zip(rows, kernels, strict=True):
        if row["kind"] == FLOAT:
            row["why"] = _why(kernel, reasons)
            if row["seconds"] is not None:
                row["gain"] = _gain(row, kernel, rates, machine)
    return rows


def _row(kernel: Kernel, seconds: float | None, machine: Machine | None) -> Json:
    moved = kernel.weight_bytes + kernel.data_bytes
    row: Json = {
        "label": label_of(kernel),
        "sources": kernel.sources,
        "operators": kernel.operators,
        "implementation": kernel.implementation,
        "reason": kernel.reason,
        "kind": kind_of(kernel),
        "macs": kernel.macs,
        "weight_bytes": kernel.weight_bytes,
        "data_bytes": kernel.data_bytes,
        "bytes": moved,
        "live_bytes": kernel.live_bytes,
        "seconds": seconds,
    }
    if machine is not None:
        compute, memory = machine.seconds(kernel.macs, moved, computes_floats(kernel))
        row["bound"] = "compute" if compute > memory else "memory"
        if seconds:
            row["of_bound"] = max(compute, memory) / seconds
            row["of_peak"] = compute / seconds if kernel.macs and compute else None
    if _in_place(row):
        return row | {"bound": None, "of_bound": None}
    if seconds:
        row["gops"] = 2 * kernel.macs / seconds / 1e9 if kernel.macs else None
        row["gbps"] = moved / seconds / 1e9
    return row


def _in_place(row: Json) -> bool:
    """Whether a kernel that only moves values leaves them where they are, as a slice that is read in place does: the
    machine could not have moved them so fast, not even from its caches."""
    return row["kind"] == MOVED and row.get("of_bound", 0.0) > _CACHED


def _why(kernel: Kernel, reasons: Mapping[str, str]) -> str:
    found = next((reasons[name] for name in (kernel.layer, *kernel.sources) if name in reasons), "")
    if found or "quantize" not in kernel.operators.split("+"):
        return found or "it is float in the model"
    return "a float function, whose result is quantized"


def _gain(row: Json, kernel: Kernel, rates: Sequence[float], machine: Machine | None) -> float:
    """Estimated seconds that a float kernel would be faster by: a product at the median rate of the model's integer
    products, or by the ratio of the machine's peaks; anything else by its float traffic, of which a quarter remains."""
    seconds: float = row["seconds"]
    if not row["macs"]:
        narrow = sum(_bytes(one) for one in kernel.results if "float" not in one["dtype"])
        return seconds * (1 - _NARROWER) * (1 - min(1.0, narrow / (row["bytes"] or 1)))
    if rates:
        return max(0.0, seconds - 2 * row["macs"] / median(rates) / 1e9)
    if machine is not None and machine.integer and machine.floating:
        return seconds * (1 - machine.floating / machine.integer)
    return 0.0


def peak_tensors(kernels: Sequence[Kernel], most: int = 8) -> tuple[int, list[Json]]:
    """The kernel during which most memory is in use, and the largest tensors between kernels that live then."""
    if not any(kernel.live_bytes for kernel in kernels):
        return 0, []
    peak = max(range(len(kernels)), key=lambda index: kernels[index].live_bytes)
    last: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        last |= dict.fromkeys(kernel.reads, index)
    alive = [index for index in range(peak + 1) if index == peak or last.get(index, len(kernels)) >= peak]
    names = names_of(kernels)
    tensors: list[Json] = [
        {"kernel": index, "name": names[index], "bytes": _result_bytes(kernels[index])} for index in alive
    ]
    return peak, sorted(tensors, key=lambda one: -one["bytes"])[:most]


def _result_bytes(kernel: Kernel) -> int:
    return sum(map(_bytes, kernel.results))


def _bytes(result: Mapping[str, Any]) -> int:
    return math.prod(result["shape"]) * np.dtype(result["dtype"]).itemsize


def totals(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Work, share of integers in it, and the time of the kernels together."""
    macs = sum(row["macs"] for row in rows)
    floats = sum(row["macs"] for row in rows if row["kind"] == FLOAT)
    seconds = sum(row["seconds"] or 0.0 for row in rows)
    spent = {kind: sum(row["seconds"] or 0.0 for row in rows if row["kind"] == kind) for kind in (INTEGER, FLOAT)}
    return {
        "macs": macs,
        "integer_share": 1 - floats / macs if macs else None,
        "seconds": seconds,
        "float_seconds": spent[FLOAT],
        "gain": sum(row.get("gain", 0.0) for row in rows),
    }
