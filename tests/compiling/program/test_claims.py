"""Parts of phases that tasks take from each other: every part is taken once, and by its own task if that is there."""

import threading

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, tirx

import qnn_ext
from qnn_ext.compiling.program.emit import PARTS, Emitter
from qnn_ext.compiling.program.support import CLAIM, CLAIMS, support_functions
from qnn_ext.compiling.workers import system_of
from qnn_ext.targets.features import backend_of
from qnn_ext.targets.names import make_target

from .small import small_module


@pytest.fixture(scope="module")
def claim():
    """claim(barriers' counters, claims of all tasks, [task, tasks, parts]) → a part, in the third array."""
    target = make_target("native", 2)
    names = (("counter", "int32", 2), ("claims", "int64", 4 * CLAIMS), ("call", "int32", 4))
    buffers = [tirx.decl_buffer((size,), dtype, name, layout=None) for name, dtype, size in names]
    counter, claims, call = buffers
    zero = tirx.IntImm("int32", 0)
    places = [tirx.address_of(buffer[zero]) for buffer in (counter, claims)]
    numbers = [call[tirx.IntImm("int32", index)] for index in range(3)]
    called = support_functions(backend_of(target), system_of(target))[CLAIM]
    part = tirx.address_of(call[tirx.IntImm("int32", 3)])
    symbol = ir.GlobalVar("called")
    body = tirx.Evaluate(ir.Call(symbol, [*places, *numbers, part], ret_ty=ir.PrimType("int32")))
    attrs = ir.make_node("ir.DictAttrs", global_symbol="claim")
    functions = {ir.GlobalVar("claim"): tirx.PrimFunc(buffers, body, attrs=attrs), symbol: called}
    run = tvm.compile(IRModule(functions), target)["claim"]

    def claimed(counters: tvm.runtime.Tensor, claims: tvm.runtime.Tensor, task: int, tasks: int, parts: int) -> int:
        numbers = tvm.runtime.tensor(np.array([task, tasks, parts, -2], np.int32))
        run(counters, claims, numbers)
        return int(numbers.numpy()[3])

    return claimed


def memory(arrivals: int = 0):
    return (
        tvm.runtime.tensor(np.array([arrivals, 0], np.int32)),
        tvm.runtime.tensor(np.full(4 * CLAIMS, -1, np.int64)),
    )


def test_own_parts_first_then_those_of_others(claim):
    state = memory()
    assert [claim(*state, 1, 3, 2) for _ in range(3)] == [2, 3, 4]  # the last one is of task 2
    assert [claim(*state, 2, 3, 2) for _ in range(2)] == [5, 0]
    assert [claim(*state, 0, 3, 2) for _ in range(3)] == [1, -1, -1]
    assert claim(*state, 1, 3, 2) == -1


def test_all_begin_anew_after_a_barrier(claim):
    counters, claims = memory()
    assert [claim(counters, claims, 0, 2, 1) for _ in range(3)] == [0, 1, -1]
    for arrivals, expected in ((1, [-1]), (2, [0, 1, -1]), (3, [-1]), (2**32 - 2, [0, 1, -1])):
        counters = tvm.runtime.tensor(np.array([arrivals, 0], np.uint32).view(np.int32))
        assert [claim(counters, claims, 0, 2, 1) for _ in expected] == expected, arrivals


def test_threads_take_each_part_once(claim):
    tasks, parts = 4, 5000
    state, found = memory(), [[] for _ in range(tasks)]
    start = threading.Barrier(tasks)

    def work(task: int) -> None:
        start.wait()
        while (part := claim(*state, task, tasks, parts)) >= 0:
            found[task].append(part)

    threads = [threading.Thread(target=work, args=(task,)) for task in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(part for some in found for part in some) == list(range(tasks * parts))


def test_more_phases_than_claims_between_two_barriers(everything_shared, monkeypatch, rng):
    parts: list[int] = []
    monkeypatch.setattr(Emitter, "_parts", lambda *args, original=Emitter._parts: _noted(parts, original(*args)))

    def build(builder, params):
        (x,) = params
        return [builder.emit(relax.op.exp(builder.emit(relax.op.multiply(x, relax.const(1.0 + i))))) for i in range(12)]

    module = small_module(build, [((64, 96), "float32")])
    x = rng.uniform(-1, 1, (64, 96)).astype(np.float32)
    expected = list(qnn_ext.build(module, num_threads=1, cache=False).run([x]).values())
    engine = qnn_ext.build(module, num_threads=2, cache=False)
    assert parts.count(PARTS) == CLAIMS // 8 and parts.count(1) == len(parts) - CLAIMS // 8 > 0
    for _ in range(50):
        for one, other in zip(expected, engine.run([x]).values(), strict=True):
            np.testing.assert_array_equal(one, other)


def _noted(parts: list[int], found: int) -> int:
    parts.append(found)
    return found
