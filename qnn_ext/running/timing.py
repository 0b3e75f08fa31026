"""How long calls and their kernels take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernels import Kernel

_UNITS = {0: "s", -1: "ms", -2: "µs", -3: "ns"}


def time_text(seconds: float) -> str:
    """A time with three significant digits: "845 ns", "1.23 µs", "45.6 ms", "1.20 s"."""
    if seconds <= 0:
        return "0 s"
    exponent = int(f"{seconds:.2e}".partition("e")[2])  # of the rounded time: 999.9 µs are 1.00 ms
    group = max(-3, min(0, exponent // 3))
    return f"{seconds / 1000.0**group:.{max(0, 2 - exponent + 3 * group)}f} {_UNITS[group]}"


@dataclass(frozen=True)
class Timing:
    """Seconds per call over several repeats."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        return min(self.seconds)

    def __str__(self) -> str:
        return f"{time_text(self.median)} (median of {len(self.seconds)}, best {time_text(self.best)})"


@dataclass(frozen=True)
class LayerProfile:
    """How long one kernel takes, and its rates: GOP/s counts two operations per multiply-accumulate."""

    kernel: Kernel
    seconds: float

    @property
    def gops(self) -> float:
        return 2 * self.kernel.macs / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def bytes(self) -> int:
        return self.kernel.weight_bytes + self.kernel.data_bytes
