"""What sorts, as C libraries, on this machine and on emulated ones: the order that TVM's runtime gives, equal elements
as they came."""

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.frontends.loops import loop
from qnn_ext.op.base import constant
from qnn_ext.targets.architectures import host_architecture
from tests.cases.loops import as_model, assembled
from tests.compiling.program.small import small_module
from tests.export_c.libraries import Harness, compiler, emulated
from tests.micro import boards

CROSS = {"native": host_architecture(), "rpi3": "aarch64", "armv7": "arm", "riscv64": "riscv64"}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def one(call):
    return lambda builder, x: [builder.emit(call(x))]


def topk(**attributes):
    def build(builder, x):
        both = builder.emit(relax.op.topk(x, **attributes))
        return [builder.emit(relax.TupleGetItem(both, index)) for index in range(2)]

    return build


CASES = {
    "sort": (one(lambda x: relax.op.sort(x, axis=1)), (5, 37), "float32"),
    "sort down the first axis": (one(lambda x: relax.op.sort(x, axis=0, descending=True)), (33, 4), "int32"),
    "argsort in the middle": (one(lambda x: relax.op.argsort(x, axis=1, dtype="int64")), (2, 100, 3), "uint8"),
    "argsort of one": (one(lambda x: relax.op.argsort(x, axis=0)), (1,), "float32"),
    "no elements": (one(lambda x: relax.op.sort(x, axis=1)), (3, 0), "float32"),
    "no rows": (one(lambda x: relax.op.argsort(x, axis=0)), (3, 0), "float32"),
    "the best three": (topk(k=3, axis=-1), (4, 50), "float32"),
    "the least sixteen": (topk(k=16, axis=1, largest=False, dtype="int64"), (2, 40, 3), "int8"),
    "the best thirty": (topk(k=30, axis=-1), (1, 1000), "float32"),
    "all, inserted": (topk(k=7, axis=-1), (2, 7), "int64"),
    "all by default": (topk(axis=-1, k=-1), (2, 64), "uint16"),
    "values alone": (one(lambda x: relax.op.topk(x, 2, ret_type="values")), (3, 9), "float64"),
    "positions alone": (one(lambda x: relax.op.topk(x, 20, ret_type="indices")), (3, 29), "int16"),
}


def case(name, rng):
    """The module, and calls: many equal elements, few, descending, ascending."""
    build, shape, dtype = CASES[name]
    module = small_module(lambda builder, params: build(builder, params[0]), [(shape, dtype)])
    ascending = np.arange(np.prod(shape)).reshape(shape) % 128
    drawn = [rng.integers(0, most, shape) for most in (4, 100)]
    return module, [values.astype(dtype) for values in (*drawn, ascending[..., ::-1], ascending)]


def check(found, module, calls):
    oracle = Interpreter(module)
    for outputs, x in zip(found, calls, strict=True):
        expected = oracle(x)
        for output, wanted in zip(outputs, expected if isinstance(expected, list) else [expected], strict=True):
            np.testing.assert_array_equal(output, wanted, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_here(name, rng, tmp_path):
    module, calls = case(name, rng)
    harness = Harness(qnn_ext.build(module, num_threads=1, code=False).export_c(tmp_path), *SANITIZE)
    check(harness([[x] for x in calls]), module, calls)


@pytest.mark.sampled("target")
@pytest.mark.parametrize("target", ["rpi3", "armv7", "riscv64"])
@pytest.mark.parametrize("name", ["the best three", "the best thirty", "argsort in the middle"])
def test_cross_compiled(name, target, rng, tmp_path):
    emulated(CROSS[target]), compiler(CROSS[target])
    module, calls = case(name, rng)
    harness = Harness(qnn_ext.build(module, target, num_threads=1, code=False).export_c(tmp_path))
    check(harness([[x] for x in calls]), module, calls)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m0plus", "m55", "m4"])
@pytest.mark.parametrize("name", ["the best three", "sort down the first axis", "the least sixteen"])
def test_on_microcontrollers(name, board, rng, tmp_path):
    boards.require()
    module, calls = case(name, rng)
    firmware = boards.firmware(module, boards.BOARDS[board], Path(tmp_path), len(calls))
    check(firmware.run_all([[x] for x in calls]), module, calls)


def test_rows_on_the_callers_threads(rng, tmp_path):
    module = small_module(lambda builder, params: [relax.op.sort(params[0], axis=1)], [((64, 500), "float32")])
    x = rng.standard_normal((64, 500)).astype(np.float32)
    exported = qnn_ext.build(module, num_threads=4, code=False).export_c(tmp_path, threads=4)
    check(Harness(exported)([[x]]), module, [x])


def test_within_a_loop(rng, tmp_path):
    """Its rounds stay a loop."""

    def walk(a, x):
        def body(states, slices):
            return [a.emit(relax.op.sort(a.emit(relax.op.add(states[0], slices[0]))))], []

        return loop(a, body, [constant(np.zeros(5, np.int32))], [x], 3)[0]

    module = as_model(assembled([("x", (3, 5), "int32")], walk))
    engine = qnn_ext.build(module, num_threads=1, code=False)
    assert len(engine.kernels) < 3 * 2  # those of one round
    x = rng.integers(-100, 100, (3, 5)).astype(np.int32)
    check(Harness(engine.export_c(tmp_path))([[x]]), module, [x])
