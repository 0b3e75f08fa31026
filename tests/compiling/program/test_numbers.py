"""Kernels that differ only in numbers share a function, and compute what they do without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.program import planning
from qnn_ext.compiling.program.graph import read_graph
from qnn_ext.compiling.program.numbers import share_numbers
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.numerics.annotations import NUMBERS
from qnn_ext.op.base import constant
from qnn_ext.qparams import dtype_range
from qnn_ext.targets.names import make_target
from tests.arm import engines
from tests.cpus import ARM_CPUS, CPUS, cpu_target
from tests.export_c.libraries import Harness
from tests.passes.modules import module as ir_of


@dataclass(frozen=True)
class Layer:
    """A convolution of `width` channels, its sum with the data, and that dequantized and quantized."""

    scale: float = 0.05
    zero_point: int = 7
    sum_zero_point: int = 119
    last_scale: float = 0.31
    bound: int = 250
    width: int = 8
    rounding: str = "TONEAREST_EVEN"

    def on(self, emit, x, previous: Layer, rng: np.random.Generator):
        weight = constant(rng.integers(-128, 128, (self.width, 3, 3, previous.width)).astype(np.int8))
        acc = emit(qnn.conv2d(x, weight, previous.zero_point, 0, 0.05, 0.01, padding=(1, 1, 1, 1)))
        acc = emit(relax.op.add(acc, constant(rng.integers(-3000, 3000, self.width).astype(np.int32))))
        scales = constant(rng.uniform(0.0003, 0.001, self.width).astype(np.float32))
        y = emit(qnn.requantize(acc, scales, 0, self.scale, self.zero_point, rounding=self.rounding, out_dtype="uint8"))
        if self.width == previous.width:
            operands = self.scale, self.zero_point, previous.scale, previous.zero_point
            output = self.scale * 1.5, self.sum_zero_point
            y = emit(qnn.add(y, x, *operands, *output, rounding=self.rounding, out_dtype="uint8"))
        y = emit(relax.op.clip(y, 3, self.bound))
        real = emit(qnn.dequantize(y, self.scale * 1.5, self.sum_zero_point))
        real = emit(relax.op.sqrt(emit(relax.op.abs(real))))
        return emit(qnn.quantize(real, self.last_scale, self.zero_point, out_dtype="uint8"))


FIRST = Layer()
SEVERAL = [
    Layer(0.041, 131, 17, 0.27),
    Layer(0.063, 255, 120, 0.5, bound=201),
    Layer(0.0521, 5, 255, 0.0625),
    Layer(0.2, 77, 2, 3.7, width=20),
    Layer(0.11, 3, 128, 0.12, width=20),
    Layer(0.017, 200, 129, 0.95, width=20),
]


def model(layers: Sequence[Layer], seed: int = 3) -> QnnModule:
    rng = np.random.default_rng(seed)

    def body(emit, x):
        for previous, layer in zip([FIRST, *layers], layers, strict=False):
            x = layer.on(emit, x, previous, rng)
        return x

    first, last = (1, 6, 5, FIRST.width), (1, 6, 5, layers[-1].width)
    specs = (TensorSpec("x", first, "uint8"),), (TensorSpec("y", last, "uint8"),)
    return QnnModule(ir_of([(first, "uint8")], body), *specs)


def inputs(module: QnnModule) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, module.inputs[0].shape).astype(np.uint8)


@pytest.fixture
def apart(monkeypatch):
    """A function for each kernel."""
    return lambda: monkeypatch.setattr(planning, "share_numbers", lambda _, functions: functions)


def shared_functions(module: QnnModule, target: str = "avx512") -> list[tuple[int, int]]:
    """For each function that several kernels share, how many numbers it reads, and how many kernels call it."""
    mod = lower_module(module.ir, make_target(target, 1))
    graph = read_graph(mod)
    functions = share_numbers(graph, {step.kernel: mod[step.kernel] for step in graph.kernels})
    calls = [step.kernel for step in graph.steps]
    return sorted(
        (int(functions[kernel].params[0].ty.shape[0]), calls.count(kernel))
        for kernel in dict.fromkeys(calls)
        if NUMBERS in (functions[kernel].attrs or {})
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cpu", [None, *CPUS])
def test_computes_the_same(cpu, threads, everything_shared, apart):
    module = model(SEVERAL)
    target = "native" if cpu is None else cpu_target(cpu, threads)
    x = inputs(module)
    shared = qnn_ext.build(module, target, num_threads=None if cpu else threads, cache=False)
    together, calls = shared(x), len(shared.kernels)
    apart()
    separate = qnn_ext.build(module, target, num_threads=None if cpu else threads, cache=False)
    assert len(separate.kernels) == calls
    np.testing.assert_array_equal(together, qnn_ext.Interpreter(module)(x))
    np.testing.assert_array_equal(together, separate(x))


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "TFLITE"])
@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_computes_the_same_on_arm(cpu, rounding):
    module = model([Layer(**{**vars(layer), "rounding": rounding}) for layer in SEVERAL])
    x = inputs(module)
    engine = engines.emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(x), qnn_ext.Interpreter(module)(x))


def branches(*numbers: tuple[float, int, float, int]) -> QnnModule:
    """A kernel for each: the data, dequantized with a scale and a zero point, and quantized with others."""

    def body(emit, x):
        real = [emit(relax.op.sqrt(emit(relax.op.abs(emit(qnn.dequantize(x, *row[:2])))))) for row in numbers]
        return [
            emit(qnn.quantize(value, *row[2:], out_dtype="uint8")) for value, row in zip(real, numbers, strict=True)
        ]

    shape = 4, 50
    results = tuple(TensorSpec(f"y{index}", shape, "uint8") for index in range(len(numbers)))
    return QnnModule(ir_of([(shape, "uint8")], body), (TensorSpec("x", shape, "uint8"),), results)


@pytest.mark.parametrize(
    ("numbers", "read"),
    [
        ([(0.3, 5, 0.2, 7), (0.3, 5, 0.2, 7)], []),
        ([(0.3, 5, 0.2, 7), (0.3, 5, 0.25, 7), (0.3, 5, 0.27, 7)], [(1, 3)]),
        ([(0.3, 5, 0.2, 7), (0.3, 5, 0.2, 8)], [(1, 2)]),
        ([(0.3, 5, 0.2, 5), (0.3, 6, 0.2, 6)], [(1, 2)]),  # the same integer in two places
        ([(0.3, 5, 0.2, 7), (0.3, 6, 0.2, 7), (0.4, 5, 0.2, 7)], [(2, 3)]),
        ([(0.3, 5, 0.2, 7), (0.4, 6, 0.3, 8)], [(4, 2)]),
        ([(0.3, 0, 0.2, 7), (0.3, 5, 0.2, 7)], []),  # nothing is subtracted
        ([(0.3, 0, 0.2, 7), (0.3, 5, 0.2, 7), (0.3, 0, 0.1, 7), (0.3, 5, 0.5, 7)], [(1, 2), (1, 2)]),
        ([(1.0, 5, 0.2, 7), (0.3, 5, 0.2, 7)], []),  # nothing is multiplied
    ],
)
def test_numbers_that_differ_are_read(numbers, read):
    module = branches(*numbers)
    assert shared_functions(module) == read
    x = inputs(module)
    engine, oracle = qnn_ext.build(module, num_threads=1, cache=False), qnn_ext.Interpreter(module)
    for one, other in zip(engine(x), oracle(x), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", [None, *CPUS, *ARM_CPUS])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_any_magnitude(cpu, dtype):
    """Zero points at both ends, and scales for which sums are beyond 8, 16 and 32 bits, behind products whose results
    become floats again."""
    rng, (low, high) = np.random.default_rng(0), dtype_range(dtype)
    ends = low + 2, high, high - 2
    rows = [
        (scale * factor, end) for scale in (3.0, 1e-5, 1e-12) for factor, end in zip((1, 0.9, 0.8), ends, strict=True)
    ]
    weight = constant(rng.integers(-128, 128, (64, 24)).astype(np.int8))

    def one(emit, x, scale, zero_point):
        acc = emit(qnn.dense(x, weight, 3, 0, 0.05, 0.01))
        out = emit(qnn.requantize(acc, 0.0005, 0, scale, zero_point, out_dtype=dtype))
        return emit(qnn.dequantize(out, scale / 3, zero_point + 3))

    def body(emit, *data):
        return [one(emit, x, *row) for x, row in zip(data, rows, strict=True)]

    names = [f"{index}" for index in range(len(rows))]
    module = QnnModule(
        ir_of([((5, 24), "uint8")] * len(rows), body),
        tuple(TensorSpec(f"x{name}", (5, 24), "uint8") for name in names),
        tuple(TensorSpec(f"y{name}", (5, 64), "float32") for name in names),
    )
    engine = qnn_ext.build(module, "native" if cpu is None else cpu_target(cpu, 1), cache=False)
    engine = engines.emulated(engine) if cpu in ARM_CPUS else engine
    data = [rng.integers(0, 256, (5, 24)).astype(np.uint8) for _ in rows]
    for result, expected in zip(engine(*data), qnn_ext.Interpreter(module)(*data), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert sum(calls for _, calls in shared_functions(module)) >= 6


def test_kernels_of_layers_share_functions():
    shared = shared_functions(model(SEVERAL))
    assert len(shared) > 1 and all(calls > 1 for _, calls in shared)


def test_in_a_c_library(tmp_path):
    module = model(SEVERAL)
    exported = qnn_ext.build(module, "x86-64", num_threads=1, code=False).export_c(tmp_path, "layers")
    x = inputs(module)
    ((result,),) = Harness(exported)([[x]])
    np.testing.assert_array_equal(result, qnn_ext.Interpreter(module)(x))
