"""Kernels that are equal but for numbers: what is scheduled for them, and that each gets what it would get alone."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx
from tvm.s_tir import Schedule, ScheduleError

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.numerics.annotations import without_names
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.schedules import Schedules
from tests.cases.loops import as_model
from tests.cpus import cpu_target
from tests.frontends.onnx.graphs import model, node, value

from .modules import module


def clipped(scale: float, low: int, high: int, factor: int = 1) -> tirx.PrimFunc:
    """min(max(int32(x · scale), low), high) · factor, in stages of their own, then in 8 bits."""
    x = te.placeholder((4, 64), "float32", "x")
    product = te.compute(x.shape, lambda i, j: (x[i, j] * tirx.const(scale, "float32")).astype("int32"), "product")
    bounds = tirx.const(low, "int32"), tirx.const(high, "int32")
    clip = te.compute(x.shape, lambda i, j: tirx.min(tirx.max(product[i, j], bounds[0]), bounds[1]), "clip")
    y = te.compute(x.shape, lambda i, j: (clip[i, j] * tirx.const(factor, "int32")).astype("int16"), "y")
    return te.create_prim_func([x, y])


def inlined(function: tirx.PrimFunc) -> tirx.PrimFunc:
    sch = Schedule(function)
    for name in ("product", "clip"):
        sch.compute_inline(sch.get_sblock(name))
    return sch.mod["main"]


class Counted:
    """A step that counts its calls."""

    def __init__(self, step):
        self.step, self.calls = step, 0

    def __call__(self, function):
        self.calls += 1
        return self.step(function)


FUNCTIONS = [(0.5, -128, 127), (0.25, -128, 127), (0.5, -7, 7), (3e-9, 2, 1 << 30), (0.5, -128, 127)]


def scheduled(step, functions=FUNCTIONS):
    """What `Schedules` gives for functions, each as `step` gives it; and how often it took the step."""
    counted, known = Counted(step), Schedules()
    results = [known.scheduled("way", clipped(*args), counted) for args in functions]
    for args, result in zip(functions, results, strict=True):
        assert tvm_ffi.structural_equal(result, step(clipped(*args)))
    return counted.calls


def test_one_schedule_serves_all_numbers():
    numbers = [(0.1 * i, -100 - i, 100 + i) for i in range(1, 6)]
    assert scheduled(inlined, numbers) == 2  # the first as it is, and one with marks


def test_numbers_of_other_kinds_are_not_alike():
    """Of the five, the fourth has a bound that is not small; the first is there twice."""
    assert scheduled(inlined) == 3


def test_0_and_1_are_no_numbers():
    assert scheduled(inlined, [(0.5, -9, 9), (0.5, -9, 9, 2), (1.0, -9, 9), (0.5, 0, 9)]) == 4


def test_a_schedule_that_reads_numbers_is_found_for_each():
    def step(function):
        wide = "T.min(T.max(product[v_i, v_j], -128), 127)" in function.script()
        return inlined(function).with_attr("wide", wide) if wide else inlined(function)

    assert scheduled(step, [(0.5, -128, 127), (0.25, -128, 127), (0.125, -7, 7)]) == 4  # that with marks is for nothing


def test_a_schedule_that_computes_with_numbers_is_found_for_each():
    def step(function):
        def doubled(value):
            return tirx.FloatImm(value.ty, 2 * value.value)

        return function.with_body(tvm_ffi.structural_map(inlined(function).body, (tirx.FloatImm, doubled)))

    assert scheduled(step, [(0.5, -128, 127), (0.25, -128, 127), (0.125, -7, 7)]) == 4


def test_a_schedule_that_marks_have_none_of():
    def step(function):
        if "-128" not in function.script():
            raise ScheduleError("not for this one")
        return inlined(function)

    assert scheduled(step, [(0.5, -128, 127), (0.25, -128, 9), (0.125, -128, 7)]) == 4


def test_ways_are_apart():
    known, counted = Schedules(), Counted(inlined)
    for way in ("one", "other", "one"):
        known.scheduled(way, clipped(0.5, -128, 127), counted)
    assert counted.calls == 2


def layers(rng):
    """Five convolutions of a kind with different scales, zero points and weights, a sum and a table between them."""

    def body(emit, x):
        for index in range(5):
            weight = constant(rng.integers(-90, 91, (16, 3, 3, 16)).astype(np.int8))
            scales = (rng.random(16) * 0.01 + 0.001).astype(np.float32)
            scale = np.float32(0.1 + index)
            y = emit(qnn.conv2d(x, weight, 3 + index, 0, scale, constant(scales), padding=(1, 1, 1, 1)))
            y = emit(qnn.requantize(y, constant(scale * scales), 0, 0.7 + index, 9 - index, axis=3, out_dtype="uint8"))
            x = emit(qnn.add(x, y, 0.3 + index, 3 + index, 0.7 + index, 9 - index, 0.9 + index, 4 + index))
        return x

    return module([((1, 9, 9, 16), "uint8")], body)


@pytest.mark.parametrize("cpu", ["native", "avx2", "dotprod", "armv7"])
def test_layers_get_what_they_would_get_alone(rng, monkeypatch, cpu):
    """Names aside, which those that share a schedule share as well."""
    mod = layers(rng)
    found = [lower_module(mod, cpu_target(cpu, 1))]
    monkeypatch.setattr(Schedules, "scheduled", lambda _, way, function, step: step(function))
    found.append(lower_module(mod, cpu_target(cpu, 1)))
    together, alone = ([f for _, f in one.functions_items() if isinstance(f, tirx.PrimFunc)] for one in found)
    assert len(together) == len(alone) >= 5
    for one, other in zip(together, alone, strict=True):
        assert tvm_ffi.structural_equal(without_names(one), without_names(other))


def test_layers_that_share_a_schedule_are_exact(rng):
    mod = layers(rng)
    x = rng.integers(0, 256, (1, 9, 9, 16)).astype(np.uint8)
    np.testing.assert_array_equal(qnn_ext.build(as_model(mod), num_threads=1)(x), interpret(mod, [x])[0])


def test_marks_that_do_not_fit_into_a_type(rng):
    """Steps of uint16 within a kernel: its bounds are cast to uint16, which no mark for an int32 fits into."""
    constants: dict[str, np.ndarray] = {"half": np.float32(0.5)}
    nodes: list = []

    def quantized(name: str) -> str:
        k = len(nodes)
        constants.update({f"s{k}": np.float32(3e-4 + 1e-6 * k), f"z{k}": np.uint16(30_000 + k)})
        nodes.append(node("QuantizeLinear", [name, f"s{k}", f"z{k}"], [f"q{k}"]))
        nodes.append(node("DequantizeLinear", [f"q{k}", f"s{k}", f"z{k}"], [f"d{k}"]))
        return f"d{k}"

    name = quantized("x")
    for layer in "abc":
        constants[layer] = rng.integers(-100, 100, (32, 32)).astype(np.int8)
        constants |= {f"scale_{layer}": np.float32(0.002), f"zero_{layer}": np.int8(0)}
        nodes.append(node("DequantizeLinear", [layer, f"scale_{layer}", f"zero_{layer}"], [f"weight_{layer}"]))
        nodes.append(node("MatMul", [name, f"weight_{layer}"], [f"product_{layer}"]))
        nodes.append(node("Mul", [quantized(f"product_{layer}"), "half"], [f"half_{layer}"]))
        name = quantized(f"half_{layer}")
    proto = model(nodes, [value("x", (17, 32), np.float32)], [value(name, None, np.float32)], constants, 21)
    feed = {"x": rng.standard_normal((17, 32)).astype(np.float32)}
    module = qnn_ext.from_onnx(proto)
    found = qnn_ext.build(module, cache=False, num_threads=1).run(feed)
    np.testing.assert_array_equal(found[name], interpret(module.ir, [feed["x"]])[0])
