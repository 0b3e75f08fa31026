"""Every operator on emulated ARM CPUs equals the interpreter, bit for bit, as on the CPU of this machine.

What could differ: products that contract with sums, vectors of 32-bit NEON that flush subnormal numbers to zero,
conversions and rounding by a C library, narrowing and fixed-point multiplication by instructions.
"""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax.op import argmax, argmin
from tvm.target import Target

import qnn_ext
from qnn_ext import op
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.features import contracts
from qnn_ext.targets.names import make_target
from tests.arm import emulator
from tests.arm.engines import emulated
from tests.cases.elementary import ELEMENTARY
from tests.cases.operators import FILLS, ROUNDINGS, VARIANTS, Case, arrays, compare
from tests.cases.samples import SAMPLES, SUMS_OF_FLOATS
from tests.compiling.program.small import small_module
from tests.cpus import cpu_target

CPUS = ("asimd", "armv7")
VFPV4 = {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a7", "mfloat-abi": "hard"}
"""A 32-bit CPU that multiplies and adds in one instruction."""
FLOATS = ("float32", "EVEN", "normalize", "softmax", "qlinear", "resize", "pool_sum")
"""Names of operators with float products."""

OF_CODE = [name for name in SAMPLES if name != "trim"]  # the engine trims
CASES: dict[str, Case] = {**SAMPLES, **VARIANTS}


def check(case: Case, target: Target, rng: np.random.Generator, rtol: float = 0.0) -> None:
    variables, call = case

    def build(builder, params):
        result = builder.emit(call(*params))
        fields = len(result.ty.fields) if isinstance(result.ty, relax.TupleType) else 0
        return [builder.emit(relax.TupleGetItem(result, index)) for index in range(fields)] or [result]

    module = small_module(build, [rest for _, *rest in variables])
    engine = emulated(qnn_ext.build(module, target))
    for fill in FILLS:
        inputs = arrays(variables, fill, rng)
        with np.errstate(all="ignore"):
            expected = interpret(module.ir, inputs)
        found = engine(*inputs)
        for actual, wanted in zip(found if len(expected) > 1 else [found], expected, strict=True):
            compare(actual, wanted, rtol, fill)


ALIKE = pytest.mark.exhaustive("SAMPLES, a third of VARIANTS, and all of them on the CPU of this machine")


@pytest.mark.one_in(4)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "name", [*OF_CODE, *(pytest.param(name, marks=ALIKE if i % 3 else []) for i, name in enumerate(VARIANTS))]
)
def test_operator(name, cpu, rng):
    check(CASES[name], cpu_target(cpu, 1), rng, SUMS_OF_FLOATS.get(name, 0.0))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in CASES if any(part in name for part in FLOATS)])
def test_operator_on_a_cpu_that_contracts(name, rng):
    target = make_target(VFPV4, 1)
    emulator.require(target)
    assert contracts(target)
    check(CASES[name], target, rng)


SCALES = {
    "down": lambda rng, size: 2.0 ** -rng.uniform(2, 30, size),
    "up_and_down": lambda rng, size: 2.0 ** rng.uniform(-6, 9, size),
    "one": lambda rng, size: 0.37,
    "subnormal": lambda rng, size: 1e-40,
}


@pytest.mark.one_in(2)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rounding,compute_dtype", ROUNDINGS)
@pytest.mark.parametrize("scale", SCALES)
def test_requantize_of_all_sizes(scale, rounding, compute_dtype, cpu, rng):
    """Vectors of whole registers, of parts of one and single values; accumulators of every size, with both ends."""
    outputs = [("int8", -128), ("int8", 5), ("uint8", 0), ("uint8", 200), ("int16", 0)]
    inputs = [((5, size), "int32") for size in (64, 36, 7)]
    scales = [np.float32(SCALES[scale](rng, size)) for (_, size), _ in inputs]

    def build(builder, params):
        route = {"rounding": rounding, "compute_dtype": compute_dtype}
        return [
            op.requantize(x, factor, 0, 1.0, zero_point, -1, out_dtype=dtype, **route)
            for x, factor in zip(params, scales, strict=True)
            for dtype, zero_point in outputs
        ]

    module = small_module(build, inputs)
    data = [_of_all_sizes(rng, shape) for shape, _ in inputs]
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    for actual, expected in zip(engine(*data), interpret(module.ir, data), strict=True):
        np.testing.assert_array_equal(actual, expected)


def _of_all_sizes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 32, shape)
    ends = [-(2**31), 2**31 - 1, -(2**31) + 1, -(2**30), 2**30, 0, -1, 1]
    values.reshape(-1)[: len(ends)] = ends
    return values.astype(np.int32)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(name, cpu, rng):
    x = (rng.standard_normal((3, 5, 37)) * 5).astype(np.float32)
    x.reshape(-1)[:6] = 0, 100, -100, 1e-6, -87.3, 88.7
    module = small_module(lambda builder, params: [ELEMENTARY[name](*params)], [(x.shape, "float32")])
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("operator", [relax.op.nn.softmax, relax.op.nn.log_softmax])
def test_softmax(operator, axis, cpu, rng):
    x = (rng.standard_normal((4, 9, 50)) * 3).astype(np.float32)
    module = small_module(lambda builder, params: [operator(*params, axis)], [(x.shape, "float32")])
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])


@pytest.mark.parametrize("cpu", CPUS)
def test_layer_norm(cpu, rng):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6, 50), (50,), (50,))]
    inputs = [(array.shape, "float32") for array in arrays]
    module = small_module(lambda builder, params: [relax.op.nn.layer_norm(*params, [-1])], inputs)
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(*arrays), interpret(module.ir, arrays)[0])


@pytest.mark.parametrize("cpu", [*CPUS, "vfpv4"])
def test_products_that_are_no_number(cpu):
    """What keeps a product and a sum apart changes neither infinities nor NaN."""
    target = make_target(VFPV4, 1) if cpu == "vfpv4" else cpu_target(cpu, 1)
    emulator.require(target)
    values = np.asarray([0.0, -0.0, 1.5, -2.5, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    x, y = (array.reshape(9, 9).copy() for array in np.meshgrid(values, values))
    step = np.asarray([[0.5], [np.inf], [np.nan]] * 3, np.float32)

    def body(builder, params):
        product = builder.emit(relax.op.multiply(params[0], params[1]))
        return [
            builder.emit(op.quantize(builder.emit(relax.op.add(product, params[1])), 0.3, 7, out_dtype="int8")),
            builder.emit(relax.op.add(builder.emit(op.dequantize(params[2], 0.5, 0)), product)),
            builder.emit(relax.op.nn.gelu(builder.emit(relax.op.add(params[0], params[3])))),
        ]

    integers = np.arange(-40, 41, dtype=np.int8).reshape(9, 9)
    inputs = [x, y, integers, step]
    module = small_module(body, [(array.shape, str(array.dtype)) for array in inputs])
    with np.errstate(all="ignore"):
        expected = interpret(module.ir, inputs)
    for found, wanted in zip(emulated(qnn_ext.build(module, target))(*inputs), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 37), 1), ((2, 5, 19), 1), ((2, 9, 5), 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_positions_of_extremes(dtype, shape, axis, cpu, rng):
    """They are compared in vectors of this CPU's registers."""
    data = rng.integers(-3, 3, shape).astype(dtype)
    module = small_module(
        lambda builder, params: [builder.emit(function(params[0], axis)) for function in (argmax, argmin)],
        [(shape, dtype)],
    )
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    for found, function in zip(engine(data), (np.argmax, np.argmin), strict=True):
        np.testing.assert_array_equal(found, function(data, axis))
