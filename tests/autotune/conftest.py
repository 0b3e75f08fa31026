"""Small tasks, and one builder and runner for all tests of a file: starting processes takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from qnn_ext.autotune import LocalBuilder, LocalRunner, Result, Task, make_task, measure_option, space_of
from qnn_ext.autotune.task import Workload
from qnn_ext.topi_int8 import Conv2dWorkload
from tests.cpus import cpu_target

SMALL = Conv2dWorkload(1, 6, 6, 16, 32, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "uint8", "int8")


def small_task(workload: Workload = SMALL, threads: int = 1) -> Task:
    task = make_task(workload, cpu_target("native", threads))
    if task is None:
        pytest.skip("the kernels for this CPU have nothing to tune")
    return task


class Pretend:
    """A runner for tests: the time of a configuration is a function of its place in the space, no code runs."""

    tracker = None

    def __init__(self, slow: Callable[[int], float] = lambda index: 1.0 + index, broken: Sequence[int] = ()) -> None:
        self.slow, self.broken, self.measured = slow, broken, []

    def run(self, task, default, libraries):
        order = {item: index for index, item in enumerate(space_of(task).configurations)}
        for configuration, _ in libraries:
            index = order[configuration]
            self.measured.append(index)
            error = "wrong: 1 of 2 outputs differ" if index in self.broken else ""
            yield Result(task, configuration, 0.0 if error else self.slow(index), self.slow(0), error)

    def race(self, task, libraries, rounds=4):
        order = {item: index for index, item in enumerate(space_of(task).configurations)}
        return [Result(task, item, self.slow(order.get(item, 0)), self.slow(0)) for item, _ in libraries]

    def close(self):
        pass


class NoBuilder(LocalBuilder):
    """Compiles nothing."""

    def __init__(self):
        pass

    def build(self, task, configurations):
        return ["/nowhere/kernel.so"] * len(configurations)

    def close(self):
        pass


@pytest.fixture
def task() -> Task:
    return small_task()


@pytest.fixture(scope="module")
def option():
    option = measure_option(LocalBuilder(n_parallel=1), LocalRunner(repeat=2))
    yield option
    option.close()
