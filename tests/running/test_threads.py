"""How many threads a call gets: free cores only, and fewer where that is faster."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from qnn_ext.running import threads
from qnn_ext.running.threads import ThreadCount, on_one_thread


class Machine:
    """A clock that calls move on: one on `count` threads takes `seconds[count]`. So many `free` cores are idle during
    calls, and `between` calls; None: it is not known."""

    def __init__(self, seconds: dict[int, float], free: float | None = None) -> None:
        self.seconds, self.free, self.between = seconds, free, 0.0
        self.now = self.idled = 0.0

    def clock(self) -> float:
        return self.now

    def idle(self) -> float | None:
        return None if self.free is None else self.idled

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.idled += seconds * self.between

    def call(self, count: int) -> int:
        self.now += self.seconds[count]
        self.idled += self.seconds[count] * (self.free or 0.0)
        return count


class NoThreads:
    """Stands in for where threads come from."""

    def take(self, count: int) -> tuple[()]:
        return ()

    def give(self, taken: object) -> None:
        pass


NONE = NoThreads()


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(threads, "default_threads", lambda: 8)


def counts(machine: Machine, chosen: ThreadCount, calls: int) -> list[int]:
    return [chosen.run(machine.call) for _ in range(calls)]


def test_an_undisturbed_engine_keeps_its_threads():
    machine = Machine({1: 0.004, 2: 0.002})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    found = counts(machine, chosen, 5000)
    assert found[:20] == [2] * 20
    assert 0 < found.count(1) < 100  # trials, which end after a few calls


@pytest.mark.parametrize("slow", [0.002, 0.1])
def test_threads_that_wait_for_each_other_are_given_up_and_taken_again(slow):
    machine = Machine({1: 0.001, 2: slow})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    assert counts(machine, chosen, 2000)[50:].count(2) < 60
    machine.seconds[2] = 0.0005
    counts(machine, chosen, 8000)
    assert counts(machine, chosen, 2000).count(2) > 1900


@pytest.mark.parametrize("slow", [0.0015, 0.01, 0.1])
def test_trials_cost_little(slow):
    machine = Machine({1: 0.001, 2: slow})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 1000)
    before = machine.now
    counts(machine, chosen, 60_000)
    assert machine.now - before < 60_000 * 0.001 * 1.03


def test_a_long_call_is_tried_once():
    """A slower trial ends after one call of a prompt, and the first is not before 2 s of calls."""
    machine = Machine({1: 0.06, 2: 0.03})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    found = counts(machine, chosen, 1000)
    assert found.index(1) > 50 and found.count(1) < 20
    assert all(after == 2 for before, after in pairwise(found) if before == 1)


def test_pauses_are_no_reason_to_try_fewer_threads():
    machine = Machine({1: 0.06, 2: 0.03})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    found = []
    for _ in range(100):
        found += counts(machine, chosen, 4)
        machine.now += 5.0
    assert found.count(1) < 8


def test_more_threads_are_tried_after_a_pause():
    machine = Machine({1: 0.03, 2: 0.3})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 30)
    machine.now, machine.seconds[2] = machine.now + 60, 0.015
    assert counts(machine, chosen, 10)[5:] == [2] * 5


def test_a_machine_that_becomes_busy_is_noticed_at_once():
    machine = Machine({1: 0.001, 2: 0.0005})
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 10_000)
    machine.seconds[2] = 0.02
    assert counts(machine, chosen, 200).count(2) < 10


def test_more_threads_are_seldom_tried_while_no_core_is_idle():
    machine = Machine({1: 0.001, 2: 0.01}, free=0.05)
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 2000)
    assert 0 < counts(machine, chosen, 60_000).count(2) <= 6 * 4


@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_a_core_that_becomes_idle_is_used_soon(pause):
    """Whether calls follow each other or not: between them, the core that they use is idle too."""
    machine = Machine({1: 0.001, 2: 0.01}, free=0.0)
    machine.between = 1.0
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)

    def calls(number: int) -> list[int]:
        found = []
        for _ in range(number):
            found.append(chosen.run(machine.call))
            machine.pause(pause)
        return found

    calls(3000)
    assert calls(3000).count(2) <= 4
    machine.free, machine.between, machine.seconds[2] = 1.0, 2.0, 0.0005
    begin = machine.now
    while chosen.run(machine.call) == 1:
        machine.pause(pause)
    assert machine.now - begin < 0.25
    assert calls(1000).count(2) > 950


def test_a_machine_that_is_idle_by_turns_costs_little():
    machine = Machine({1: 0.001, 2: 0.02}, free=0.0)
    chosen = ThreadCount(2, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 1000)
    before, calls = machine.now, 0
    while machine.now - before < 60:
        machine.free = 1.0 - machine.free
        calls += len(counts(machine, chosen, 150))
    assert calls * 0.001 > 60 / 1.03


def test_the_number_in_between_is_found():
    machine = Machine({8: 0.004, 4: 0.001, 2: 0.002, 1: 0.003})
    chosen = ThreadCount(8, NONE, machine.clock, machine.idle)
    counts(machine, chosen, 2000)
    assert counts(machine, chosen, 1000).count(4) > 900


def test_calls_share_the_cores():
    machine = Machine({count: 0.001 for count in range(1, 9)})
    first, second, third = (ThreadCount(most, NONE, machine.clock, machine.idle) for most in (6, 6, 6))

    def within(count: int) -> tuple[int, int, int]:
        inner = second.run(lambda granted: (granted, third.run(lambda least: least)))
        return count, *inner

    assert first.run(within) == (6, 2, 1)  # where no core is free, one thread runs anyway
    assert on_one_thread(lambda: first.run(lambda count: count)) == 6
    assert threads._taken == []
    with pytest.raises(ZeroDivisionError):
        first.run(lambda count: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        on_one_thread(divmod, 1, 0)
    assert threads._taken == []


def test_a_call_that_ran_beside_others_keeps_its_cores_for_the_next():
    """Else others would take them between two calls."""
    machine = Machine({8: 0.001, 7: 0.001, 1: 0.001})
    first, second = (ThreadCount(8, NONE, machine.clock, machine.idle) for _ in range(2))
    with ThreadPoolExecutor(1) as other:

        def there() -> int:
            return other.submit(second.run, machine.call).result()

        def both(count: int) -> tuple[int, int]:
            return machine.call(count), there()

        assert first.run(machine.call) == there() == first.run(machine.call) == 8  # calls in turn take all
        assert first.run(both) == (8, 1)
        assert first.run(both) == (7, 1)
        assert first.run(machine.call) == 7
        machine.pause(0.0005)  # by now, the other thread's next call is overdue
        assert first.run(machine.call) == 8
        assert there() == 8
    assert not threads._expected


def test_calls_in_many_threads_return_all_cores():
    chosen = [ThreadCount(4, NONE) for _ in range(4)]
    working = [
        threading.Thread(target=lambda one=one: [one.run(lambda count: count) for _ in range(500)]) for one in chosen
    ]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    assert threads._taken == []
