"""Long-lived processes that judge recipes one after another. One that dies or hangs is replaced; the run continues."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from .judge import Outcome, Task, frontend_of, judge
from .recipe import draw_recipe

TIME_LIMIT_S = 180.0
MEMORY_LIMIT = 3 << 30  # bytes of resident memory above which a process is replaced


def _work(pipe: Connection) -> None:
    """The body of a worker: answers every task with ("stage", name) … ("done", outcome)."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # LiteRT and TVM write logs to it
    while True:
        try:
            task: Task | None = pipe.recv()
        except EOFError:
            return
        if task is None:
            return
        outcome = judge(task, lambda stage: pipe.send(("stage", stage)))
        pipe.send(("done", outcome))


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    task: Task | None = None
    stage: str = ""
    started: float = 0.0

    @classmethod
    def start(cls) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there,))
        process.start()
        there.close()
        return cls(process, here)

    def give(self, task: Task) -> None:
        self.task, self.stage, self.started = task, "start", time.monotonic()
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    @property
    def memory(self) -> int:
        """Resident memory in bytes, 0 if the system does not report it."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as stream:
                return int(stream.read().split()[1]) * resource.getpagesize()
        except OSError:
            return 0


class Pool:
    """Judges tasks in several processes. Use it as a context manager: no process outlives it."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def judge(self, task: Task) -> Outcome:
        """One task."""
        return next(iter(self.judge_all([task])))

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Outcomes in the order in which they arrive."""
        source = iter(tasks)
        waiting = True
        while True:
            waiting = waiting and self._feed(source)
            busy = [worker for worker in self._workers if worker.task]
            if not busy:
                return
            wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = self._listen(worker)
                if outcome:
                    yield outcome

    def _feed(self, source: Iterator[Task]) -> bool:
        """Give every idle worker a task; returns whether there may be more."""
        while sum(1 for worker in self._workers if worker.task) < self._jobs:
            task = next(source, None)
            if task is None:
                return False
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                idle = _Worker.start()
                self._workers.append(idle)
            idle.give(task)
        return True

    def _listen(self, worker: _Worker) -> Outcome | None:
        assert worker.task is not None
        task = worker.task
        try:
            while worker.pipe.poll():
                kind, value = worker.pipe.recv()
                if kind == "done":
                    worker.task = None
                    if worker.memory > MEMORY_LIMIT:
                        self._drop(worker)
                    outcome: Outcome = value
                    return outcome
                worker.stage = value
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
            return self._died(worker, task, f"signal or exit code {worker.process.exitcode}")
        if time.monotonic() - worker.started > TIME_LIMIT_S:
            return self._died(worker, task, f"no answer within {TIME_LIMIT_S:.0f} s")
        return None

    def _died(self, worker: _Worker, task: Task, how: str) -> Outcome:
        self._drop(worker)
        recipe = task.recipe or draw_recipe(frontend_of(task.frontend), task.seed)
        return Outcome(recipe, "died", worker.stage, how)

    def _drop(self, worker: _Worker) -> None:
        worker.end()
        self._workers.remove(worker)
