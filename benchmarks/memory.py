"""Memory of this process as Linux counts it: resident now, and the highest since the start or the last `reset_peak`.

`ru_maxrss` is no use: a child inherits its parent's. Outside Linux everything is None.
"""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int | None:
    """Currently resident bytes."""
    return _field("VmRSS")


def peak_bytes() -> int | None:
    """Peak resident bytes."""
    return _field("VmHWM")


def reset_peak() -> None:
    """Reset `peak_bytes` to what is resident now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not Linux, or a container that forbids it: the peak remains that of the process's lifetime


def _field(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
