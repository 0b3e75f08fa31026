"""What disturbs measurements on purpose runs within its context only."""

import os

import pytest

from benchmarks.__main__ import _parse
from benchmarks.disturbances import busy_processes, slow_core


def children() -> set[str]:
    task = f"/proc/self/task/{os.getpid()}/children"
    if not os.path.exists(task):
        pytest.skip("the system lists no children of a process")
    with open(task) as file:
        return set(file.read().split())


def test_busy_processes_end():
    before = children()
    with busy_processes(2):
        assert len(children() - before) == 2
    assert children() == before


def test_a_slow_core_has_a_process_before_all_others():
    before = children()
    try:
        with slow_core(0.25):
            (burner,) = children() - before
            assert os.sched_getscheduler(int(burner)) == os.SCHED_FIFO
            assert os.sched_getaffinity(int(burner)) == {max(os.sched_getaffinity(0))}
    except PermissionError as error:
        assert "CAP_SYS_NICE" in str(error)
    assert children() == before
    with slow_core(0):
        assert children() == before


@pytest.mark.parametrize("share", ["1", "-0.1", "nan"])
def test_shares_that_are_none(share, capsys):
    with pytest.raises(SystemExit):
        _parse(["--slow-core", share])
    assert "a share from 0 to below 1" in capsys.readouterr().err
