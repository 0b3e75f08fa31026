"""How many cores there are for this process, and which it keeps to."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath

from ..errors import QnnError


def allowed() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def kept_to(cores: Collection[int]) -> Iterator[None]:
    """A context in which this thread, and the threads and processes that it starts, run on these cores only. Without
    any, it changes nothing.

    Raises QnnError for cores that this process may not run on, and where the system takes no such wishes (macOS).
    """
    if not cores:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise QnnError("this system does not let a process choose its cores")
    before = os.sched_getaffinity(0)
    if not before.issuperset(cores):
        missing = ", ".join(map(str, sorted(set(cores) - before)))
        raise QnnError(f"this process may not run on {missing}: its cores are {', '.join(map(str, sorted(before)))}")
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def idle_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """How long the cores that this process may run on had nothing to do, or ran niced processes only: all together,
    since the system started. None where the system does not say (Linux does). The error is a clock tick of each core,
    10 ms on most systems."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = os.sched_getaffinity(0)
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
        rows = [line.split() for line in lines if re.match(r"cpu\d", line)]
        # columns: user, nice, system, idle, waiting for a disk
        ticks = sum(int(row[2]) + int(row[4]) + int(row[5]) for row in rows if int(row[0][3:]) in cores)
    except (OSError, ValueError, IndexError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK")


def default_threads() -> int:
    """The cores this process may run on, but no more than its control group has time for: see `quota`.

    Fractions are rounded down, to one core at least: a thread that exceeds the quota stands still for the rest of each
    period, and the others wait for it.
    """
    limit = quota()
    return allowed() if limit is None else max(1, min(allowed(), int(limit)))


@lru_cache
def quota(proc: Path = Path("/proc/self"), mounted: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many cores' time Linux gives this process: `cpu.max` of its control group and of those around it, or
    `cpu.cfs_quota_us` in the first version of control groups; None: as much as there is.

    This is how containers are limited (`docker run --cpus 2`, `limits: cpu` in Kubernetes). Read once.
    """
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mounted / controllers if controllers else mounted
        inside = PurePosixPath(path.lstrip("/"))
        for folder in (root / inside, *(root / parent for parent in inside.parents)):
            share = _share(folder)
            if share is not None:
                found.append(share)
    return min(found, default=None)


def _share(folder: Path) -> float | None:
    """The cores a control group has time for, if it is limited."""
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return int(limit) / int(period) if limit != "max" and int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
