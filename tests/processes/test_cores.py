"""How many threads a process uses where its control group is limited, and how long its cores were idle."""

import os

import pytest

from qnn_ext.processes import cores


def _groups(folder, lines, files):
    proc, mounted = folder / "proc", folder / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        file = mounted / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return proc, mounted


SECOND = ["0::/pod/box"]
FIRST = ["4:memory:/pod/box", "3:cpu,cpuacct:/pod/box", "0::/"]
CASES = {
    "no groups": ([], {}, None),
    "no limit": (SECOND, {"pod/box/cpu.max": "max 100000"}, None),
    "own limit": (SECOND, {"pod/box/cpu.max": "150000 100000"}, 1.5),
    "the tighter limit around it": (SECOND, {"pod/box/cpu.max": "400000 100000", "pod/cpu.max": "200000 100000"}, 2.0),
    "own group mounted as the root": (SECOND, {"cpu.max": "50000 100000"}, 0.5),
    "first version": (
        FIRST,
        {"cpu,cpuacct/pod/box/cpu.cfs_quota_us": "300000", "cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "first version without a limit": (
        FIRST,
        {"cpu,cpuacct/pod/box/cpu.cfs_quota_us": "-1", "cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000"},
        None,
    ),
    "not numbers": (SECOND, {"pod/box/cpu.max": "much 100000"}, None),
    "no period": (SECOND, {"pod/box/cpu.max": "100000 0"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_quota(tmp_path, case):
    lines, files, expected = CASES[case]
    assert cores.quota(*_groups(tmp_path, lines, files)) == expected


@pytest.mark.parametrize(("limit", "threads"), [(None, 4), (0.5, 1), (1.9, 1), (2.0, 2), (16.0, 4)])
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is a Linux thing")
def test_threads_keep_to_the_quota(monkeypatch, limit, threads):
    monkeypatch.setattr(cores, "quota", lambda: limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert cores.default_threads() == threads


STAT = """\
cpu  1000 200 300 4000 50 0 6 7 0 0
cpu0 400 30 100 1000 20 0 3 3 0 0
cpu1 300 100 100 1500 20 0 3 3 0 0
cpu2 300 70 100 1500 10 0 0 1 0 0
intr 8316553 0 0
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is a Linux thing")
def test_idle_time_is_that_of_the_allowed_cores(tmp_path, monkeypatch):
    """With niced processes and waiting for a disk."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2})
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    path = tmp_path / "stat"
    path.write_text(STAT)
    assert cores.idle_seconds(path) == (30 + 1000 + 20 + 70 + 1500 + 10) / 100


@pytest.mark.parametrize("text", [None, "cpu0 400 30\n", "cpu0 a b c d e\n", "cpux 1 2 3 4 5\ncpu0 1 x 1 1 1\n"])
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is a Linux thing")
def test_idle_time_that_is_not_told(tmp_path, monkeypatch, text):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    path = tmp_path / "stat"
    if text is not None:
        path.write_text(text)
    assert cores.idle_seconds(path) is None
