"""Small tasks, and one builder and runner for all tests of a file: starting processes takes seconds."""

from __future__ import annotations

import pytest

from qnn_ext.autotune import LocalBuilder, LocalRunner, Task, make_task, measure_option
from qnn_ext.autotune.task import Workload
from qnn_ext.topi_int8 import Conv2dWorkload
from tests.cpus import cpu_target

SMALL = Conv2dWorkload(1, 6, 6, 16, 32, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "uint8", "int8")


def small_task(workload: Workload = SMALL, threads: int = 1) -> Task:
    task = make_task(workload, cpu_target("native", threads))
    if task is None:
        pytest.skip("the kernels for this CPU have nothing to tune")
    return task


@pytest.fixture
def task() -> Task:
    return small_task()


@pytest.fixture(scope="module")
def option():
    option = measure_option(LocalBuilder(n_parallel=1), LocalRunner(repeat=2))
    yield option
    option.close()
