"""How many threads a process uses where its control group is limited."""

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
