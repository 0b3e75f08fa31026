"""Barriers stand where one task's memory meets another's, and nowhere else."""

import time

from qnn_ext.compiling.program.barriers import MOST_COMPARED, Access, barriers

A, B, C = (0, 64), (64, 128), (128, 192)


def _shared(reads=(), writes=()):
    return Access(True, tuple(reads), tuple(writes))


def _alone(reads=(), writes=()):
    return Access(False, tuple(reads), tuple(writes))


def test_a_reader_waits_for_the_writer():
    assert barriers([_shared([A], [B]), _shared([B], [C])]) == [False, True]
    assert barriers([_shared([A], [B]), _alone([B], [C])]) == [False, True]
    assert barriers([_alone([A], [B]), _shared([B], [C])]) == [False, True]


def test_the_first_task_need_not_wait_for_itself():
    assert barriers([_alone([A], [B]), _alone([B], [C]), _alone([C], [A])]) == [False, False, False]


def test_independent_phases_do_not_wait():
    assert barriers([_shared([A], [B]), _shared([A], [C])]) == [False, False]


def test_memory_used_again_is_waited_for():
    assert barriers([_shared([A], [B]), _shared([C], [A])]) == [False, True]
    assert barriers([_shared([A], [B]), _alone([C], [B])]) == [False, True]


def test_a_barrier_serves_all_before_it():
    steps = [_shared([A], [B]), _shared([A], [C]), _shared([B], [A]), _alone([C], [(192, 256)])]
    assert barriers(steps) == [False, False, True, False]


def test_one_byte_is_enough():
    assert barriers([_shared([], [(0, 65)]), _shared([B], [C])]) == [False, True]


def test_many_phases_take_no_quadratic_time():
    """After too many phases to compare, all tasks wait; a first task that runs alone still never does."""
    ranges = [(64 * index, 64 * index + 64) for index in range(20_000)]
    started = time.process_time()
    assert not any(barriers([_alone([], [one]) for one in ranges]))
    found = barriers([_shared([], [one]) for one in ranges])
    assert time.process_time() - started < 10
    assert 0 < sum(found) <= len(found) // MOST_COMPARED
    assert barriers([*[_alone([], [one]) for one in ranges], _shared([], [(0, 64)])])[-1]
