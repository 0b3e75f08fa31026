"""Narrowing to 8 bits behind a product: by pack instructions where the CPU has them, exact on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.qparams import dtype_range
from qnn_ext.targets.names import make_target
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, inputs_of, module

ROWS, DEPTH = 5, 24


def _dense(channels: int, dtype: str, zero_point: int, out_scale: float, residual: bool):
    """dense + bias + requantize, and with `residual` ONNX Runtime's sum with a second tensor."""
    rng = np.random.default_rng(channels)
    weight = rng.integers(-128, 128, (channels, DEPTH)).astype(np.int8)
    bias = rng.integers(-3000, 3000, channels).astype(np.int32)
    scale = rng.uniform(0.002, 0.01, channels).astype(np.float32)

    def body(emit, x, *rest):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.05, constant(scale)))
        acc = emit(relax.op.add(acc, constant(bias)))
        out = emit(
            qnn.requantize(acc, constant(scale), 0, out_scale, zero_point, axis=1, out_dtype=dtype),
        )
        if not residual:
            return out
        zero = constant(np.int32(zero_point))
        floats = (constant(np.float32(value)) for value in (0.7, 0.61, 3.0))
        return emit(qnn.qlinear_add(out, rest[0], zero, constant(np.int32(7)), *floats, zero, out_dtype=dtype))

    return module([((ROWS, DEPTH), "uint8"), *([((ROWS, channels), dtype)] if residual else [])], body)


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [64, 96, 32, 48, 24, 7, 67])
@pytest.mark.parametrize(("dtype", "residual"), [("uint8", False), ("int8", True)])
def test_every_vector_length(target, channels, dtype, residual):
    mod = _dense(channels, dtype, 5, 0.3, residual)
    inputs = inputs_of(np.random.default_rng(channels), mod)
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("out_scale", [3.0, 1e-5, 1e-12])
def test_zero_points_at_both_ends_and_any_magnitude(dtype, end, out_scale):
    """The smallest output scales drive the scaled accumulators beyond int16 and beyond int32."""
    mod = _dense(64, dtype, dtype_range(dtype)[end], out_scale, residual=False)
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, "native", inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("out_scale", [3.0, 0.3, 1e-5, 1e-12])
def test_a_value_that_becomes_a_float_again(target, dtype, end, out_scale):
    """Rounded and clipped as a float, whatever its size."""
    zero_point = dtype_range(dtype)[end]
    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (64, DEPTH)).astype(np.int8)

    def body(emit, x):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.05, 0.01))
        out = emit(qnn.requantize(acc, 0.0005, 0, out_scale, zero_point, out_dtype=dtype))
        return emit(qnn.dequantize(out, 0.3, zero_point - 1 if end else zero_point + 2))

    mod = module([((ROWS, DEPTH), "uint8")], body)
    inputs = inputs_of(rng, mod)
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


def test_a_bounded_accumulator_is_not_clipped_before_it_is_packed():
    assembly = _machine_code(_dense(64, "uint8", 5, 0.3, residual=False), "cascadelake")
    assert "vpackuswb" in assembly
    assert "vminps" not in assembly


def _machine_code(mod, cpu: str) -> str:
    target = make_target(cpu, num_threads=1)
    executable = generate_code(lower_module(mod, target), target)
    return "".join(
        part.inspect_source("s") for part in (executable.mod, *executable.mod.imports) if part.kind == "llvm"
    )


def test_floats_that_may_be_nan_are_narrowed_in_vectors():
    """Behind a product, and exactly: NaN becomes the lowest integer."""
    weight = np.random.default_rng(0).integers(-128, 128, (64, DEPTH)).astype(np.int8)

    def body(emit, x, real):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.05, 0.01))
        total = emit(relax.op.add(emit(qnn.dequantize(acc, 0.0005, 0)), real))
        return emit(qnn.quantize(total, 0.02, 7, out_dtype="uint8"))

    mod = module([((ROWS, DEPTH), "uint8"), ((ROWS, 64), "float32")], body)
    rng = np.random.default_rng(0)
    data, real = rng.integers(0, 256, (ROWS, DEPTH)).astype(np.uint8), rng.normal(size=(ROWS, 64)).astype(np.float32)
    real[:, :6] = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45])
    actual = compile_and_run(mod, "native", [data, real])[0]
    assert np.array_equal(actual, interpret(mod, [data, real])[0])
    assert (actual[:, :5] == [0, 255, 0, 255, 0]).all()
    assembly = _machine_code(mod, "cascadelake")
    assert "vpackuswb" in assembly and "vcvtss2si" not in assembly
