"""Piecewise functions: alone and behind a product, in registers where the CPU permutes them, exact everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.cases.segments import ARGUMENTS, COEFFICIENTS, arguments
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, module

DEPTH = 24


def _alone(shape, quantized: bool):
    def body(emit, x):
        y = emit(qnn.piecewise(x, COEFFICIENTS, *ARGUMENTS))
        return emit(qnn.quantize(y, 0.7, 100, out_dtype="uint8")) if quantized else y

    return module([(shape, "float32")], body)


def _behind_a_product(channels: int):
    weight = np.random.default_rng(1).integers(-128, 128, (channels, DEPTH)).astype(np.int8)

    def body(emit, x, real):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.05, 0.01))
        total = emit(relax.op.add(emit(qnn.dequantize(acc, 0.0005, 0)), real))
        y = emit(qnn.piecewise(total, COEFFICIENTS, *ARGUMENTS))
        return emit(qnn.quantize(y, 0.7, 100, out_dtype="uint8"))

    return module([((9, DEPTH), "uint8"), ((9, channels), "float32")], body)


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(4, 64), (3, 32), (2, 8, 48), (3, 21), (7,), (1, 1000), (1, 16, 64)])
@pytest.mark.parametrize("quantized", [False, True])
def test_alone(target, shape, quantized):
    mod = _alone(shape, quantized)
    inputs = [arguments(np.random.default_rng(0), shape)]
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [64, 48, 24, 7])
def test_behind_a_product(target, channels):
    mod, rng = _behind_a_product(channels), np.random.default_rng(0)
    inputs = [rng.integers(0, 256, (9, DEPTH)).astype(np.uint8), arguments(rng, (9, channels))]
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize(("cpu", "register"), [("cascadelake", "%zmm"), ("haswell", "%ymm")])
@pytest.mark.parametrize("mod", [_alone((4, 64), True), _behind_a_product(64)], ids=["alone", "behind a product"])
def test_coefficients_are_picked_from_registers(cpu, register, mod):
    target = make_target(cpu, num_threads=1)
    executable = generate_code(lower_module(mod, target), target)
    modules = [executable.mod, *executable.mod.imports]
    lines = "".join(part.inspect_source("s") for part in modules if part.kind == "llvm").splitlines()
    assert any(line.strip().startswith(("vpermps", "vpermd")) and register in line for line in lines)
    assert not any("gather" in line for line in lines)
