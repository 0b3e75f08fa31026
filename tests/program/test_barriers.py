"""Barriers stand where one task's memory meets another's, and nowhere else."""

from qnn_ext.program.barriers import Access, barriers

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
