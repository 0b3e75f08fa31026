"""Every pass leaves the oracle's results as they are, and the compiled module equals the oracle bit for bit."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import legalize
from qnn_ext.targets.names import make_target
from tests.cpus import TARGETS
from tests.passes.modules import CONVOLUTIONS, assert_same, stages

from .modules import compile_and_run, conv_module, inputs_of, module, random_input


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_through_every_pass(rng, name):
    mod = conv_module(rng, **CONVOLUTIONS[name])
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for target in ("native", "haswell"):
        for stage, rewritten in stages(mod, target):
            assert_same(interpret(rewritten, inputs), expected, f"{stage} for {target}")
    for target in TARGETS:
        assert_same(compile_and_run(mod, target, inputs), expected, target)


@pytest.mark.parametrize("weight_dtype,zero_points", [("int8", (5, 0)), ("uint8", (5, 120)), ("uint8", (0, 7))])
def test_dense(rng, weight_dtype, zero_points):
    weight = rng.integers(*((0, 256) if weight_dtype == "uint8" else (-128, 128)), (20, 37)).astype(weight_dtype)

    def body(emit, x):
        acc = emit(qnn.dense(x, constant(weight), zero_points[0], zero_points[1], 0.1, 0.02))
        return qnn.requantize(acc, np.float32(0.002), 0, 0.7, -5, out_dtype="int8")

    mod = module([((3, 37), "uint8")], body)
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for stage, rewritten in stages(mod, "native"):
        assert_same(interpret(rewritten, inputs), expected, stage)
    for target in TARGETS:
        assert_same(compile_and_run(mod, target, inputs), expected, target)


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_batch_matmul_with_both_zero_points(rng, dtypes):
    def body(emit, x, y):
        acc = emit(qnn.batch_matmul(x, y, 5, -3 if dtypes[1] == "int8" else 130, 0.1, 0.02))
        return qnn.requantize(acc, np.float32(0.002), 0, 0.9, 4, out_dtype="int8")

    mod = module([((2, 5, 12), dtypes[0]), ((2, 18, 12), dtypes[1])], body)
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for stage, rewritten in stages(mod, "native"):
        assert_same(interpret(rewritten, inputs), expected, stage)
    for target in TARGETS:
        assert_same(compile_and_run(mod, target, inputs), expected, target)


def test_zero_points_known_at_run_time_only(rng):
    weight = rng.integers(-128, 128, (6, 3, 3, 4)).astype(np.int8)

    def body(emit, x, zero_point):
        return qnn.conv2d(x, constant(weight), zero_point, 3, 0.1, 0.02, padding=(1, 1, 1, 1))

    mod = module([((1, 5, 5, 4), "uint8"), ((), "int32")], body)
    inputs = [random_input(rng, (1, 5, 5, 4), "uint8"), np.asarray(77, np.int32)]
    expected = interpret(mod, inputs)
    for stage, rewritten in stages(mod, "native"):
        assert_same(interpret(rewritten, inputs), expected, stage)
    for target in ("native", "haswell"):
        assert_same(compile_and_run(mod, target, inputs), expected, target)


def test_int8_network_moves_as_uint8(rng):
    """Shape operators, pooling, padding free concat and tables between two convolutions carry the shifted values."""
    w1, w2 = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((8, 3, 3, 4), (5, 1, 1, 8)))
    entries = rng.integers(-128, 128, 256).astype(np.int8)

    def body(emit, x):
        acc = emit(qnn.conv2d(x, constant(w1), -3, 0, 0.1, 0.02, padding=(1, 1, 1, 1)))
        y = emit(qnn.requantize(acc, np.float32(0.002), 0, 0.8, -20, out_dtype="int8"))
        y = emit(relax.op.nn.max_pool2d(y, (2, 2), (2, 2), padding=(1, 1, 0, 0), layout="NHWC"))
        y = emit(relax.op.nn.pad(y, [0, 0, 1, 0, 0, 2, 0, 0], pad_mode="constant", pad_value=-20))
        left, right = (emit(part) for part in emit(relax.op.split(y, 2, axis=3)))
        y = emit(relax.op.concat([emit(qnn.table(left, constant(entries))), right], axis=3))
        y = emit(relax.op.clip(y, -100, 50))
        acc = emit(qnn.conv2d(y, constant(w2), -20, 0, 0.8, 0.01))
        return [qnn.requantize(acc, np.float32(0.008), 0, 0.9, 4, out_dtype="int8"), y]

    mod = module([((1, 6, 6, 4), "int8")], body)
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for stage, rewritten in stages(mod, "native"):
        assert_same(interpret(rewritten, inputs), expected, stage)
    script = legalize(mod, make_target("cascadelake")).script()
    assert script.count("R.qnn.requantize") == 2 + 2, (
        "a shift of the input, and one of the output that a convolution reads too"
    )
    for target in TARGETS:
        assert_same(compile_and_run(mod, target, inputs), expected, target)
