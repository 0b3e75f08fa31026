"""What becomes one kernel, and that float32 tails inside a kernel equal the interpreter bit for bit."""

import time

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.numerics.annotations import COMPOSITE
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize, fuse
from qnn_ext.passes.fuse import find_groups
from qnn_ext.passes.rewrite import bindings_of, op_name

from .modules import compile_and_run, inputs_of, module

IMAGE = ((1, 6, 6, 16), "uint8")
CHANNELS = 16


def composites(mod) -> list[str]:
    fused = fuse(canonicalize(mod))
    return sorted(str(f.attrs[COMPOSITE]) for f in fused.functions.values() if f.attrs and COMPOSITE in f.attrs)


def check(mod, rng, targets=("native",)):
    """Fusion changes nothing, and neither does compiling it."""
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    results = [interpret(fuse(canonicalize(mod)), inputs)]
    results += [compile_and_run(mod, target, inputs) for target in targets]
    for result in results:
        for actual, wanted in zip(result, expected, strict=True):
            assert actual.dtype == wanted.dtype
            np.testing.assert_array_equal(actual, wanted)


def convolution(emit, rng, x, kernel=1):
    weight = rng.integers(-128, 128, (CHANNELS, kernel, kernel, CHANNELS)).astype(np.int8)
    margin = (kernel // 2,) * 4
    return emit(qnn.conv2d(x, constant(weight), 3, 0, 0.1, 0.02, padding=margin))


def per_channel(rng, low=1e-4, high=1e-3):
    return constant(rng.uniform(low, high, CHANNELS).astype(np.float32))


def residual_block(emit, rng, x, other):
    """The float tail of a residual block, in the order of its framework."""
    real = emit(qnn.dequantize(convolution(emit, rng, x), per_channel(rng), 0, axis=3))
    biased = emit(relax.op.add(real, per_channel(rng, -1, 1)))
    total = emit(relax.op.add(biased, emit(qnn.dequantize(other, 0.02, 5))))
    return emit(qnn.quantize(emit(relax.op.nn.relu(total)), 0.03, 2, out_dtype="uint8"))


def test_a_residual_block_is_one_kernel_of_8_bit_inputs(rng):
    mod = module([IMAGE, IMAGE], lambda emit, x, y: residual_block(emit, rng, x, y))
    assert composites(mod) == ["conv2d_accumulate+add+dequantize+add+dequantize+add+nn.relu+quantize"]
    kernel = next(f for f in fuse(canonicalize(mod)).functions.values() if f.attrs and COMPOSITE in f.attrs)
    assert [str(param.ty.dtype) for param in kernel.params] == ["uint8", "uint8"]
    check(mod, rng, ("native", "haswell"))


def test_a_float_sum_of_two_integers_is_one_kernel(rng):
    def body(emit, x, y):
        total = emit(relax.op.add(emit(qnn.dequantize(x, 0.02, 5)), emit(qnn.dequantize(y, 0.013, 7))))
        return qnn.quantize(total, 0.03, 2, out_dtype="uint8")

    mod = module([IMAGE, IMAGE], body)
    assert composites(mod) == ["dequantize+dequantize+add+quantize"]
    check(mod, rng)


def test_a_value_that_two_kernels_read_stays_in_8_bits(rng):
    def body(emit, x):
        first = residual_block(emit, rng, x, x)
        real = emit(qnn.dequantize(first, 0.03, 2))
        return [
            emit(qnn.quantize(emit(relax.op.nn.relu(real)), 0.05, 1, out_dtype="uint8")),
            emit(qnn.quantize(emit(relax.op.negative(real)), 0.06, 1, out_dtype="uint8")),
        ]

    mod = module([IMAGE], body)
    assert composites(mod)[1:] == ["dequantize+negative+quantize", "dequantize+nn.relu+quantize"]
    check(mod, rng)


def test_branches_that_meet_again_are_one_kernel(rng):
    """x · σ(x) of an accumulator."""

    def body(emit, x):
        real = emit(qnn.dequantize(convolution(emit, rng, x), per_channel(rng), 0, axis=3))
        swish = emit(relax.op.multiply(real, emit(relax.op.sigmoid(real))))
        return qnn.quantize(swish, 0.03, 2, out_dtype="uint8")

    mod = module([IMAGE], body)
    assert composites(mod) == ["conv2d_accumulate+add+dequantize+sigmoid+multiply+quantize"]
    check(mod, rng, ("native", "haswell"))


def test_a_branch_that_leaves_ends_the_kernel(rng):
    """σ(x) is a result too, so x would have to leave the kernel as well."""

    def body(emit, x):
        real = emit(qnn.dequantize(convolution(emit, rng, x), per_channel(rng), 0, axis=3))
        gate = emit(relax.op.sigmoid(real))
        return [emit(qnn.quantize(emit(relax.op.multiply(real, gate)), 0.03, 2, out_dtype="uint8")), gate]

    mod = module([IMAGE], body)
    assert composites(mod)[0] == "conv2d_accumulate+add+dequantize"
    check(mod, rng)


def test_the_data_of_a_convolution_is_no_side_input(rng):
    """An elementwise result that the convolution reads is computed once, not per window."""

    def body(emit, x, y):
        mixed = emit(qnn.add(x, y, 0.5, 3, 0.4, 2, 0.6, 4, out_dtype="uint8"))
        acc = convolution(emit, rng, mixed, kernel=3)
        scaled = emit(qnn.requantize(acc, 0.001, 0, 0.6, 4, out_dtype="uint8"))
        return qnn.add(scaled, mixed, 0.6, 4, 0.6, 4, 0.9, 4, out_dtype="uint8")

    mod = module([IMAGE, IMAGE], body)
    assert composites(mod) == ["add", "conv2d_accumulate+add+requantize+add"]
    check(mod, rng)


def test_a_gate_is_computed_once_per_channel(rng):
    """Squeeze and excite: what is broadcast over the pixels is not computed in their kernel, but dequantized there."""

    def body(emit, x, squeezed):
        real = emit(qnn.dequantize(squeezed, 0.03, 120))
        gate = emit(qnn.quantize(emit(relax.op.sigmoid(real)), 1 / 256, 0, out_dtype="uint8"))
        product = emit(relax.op.multiply(emit(qnn.dequantize(x, 0.1, 3)), emit(qnn.dequantize(gate, 1 / 256, 0))))
        return qnn.quantize(product, 0.05, 4, out_dtype="uint8")

    mod = module([IMAGE, ((1, 1, 1, 16), "uint8")], body)
    assert composites(mod) == ["dequantize+dequantize+multiply+quantize", "dequantize+sigmoid+quantize"]
    check(mod, rng)


def test_float_operators_in_front_of_a_quantize(rng):
    """A kernel may start at a float operator, and end with one."""

    def body(emit, x):
        real = emit(relax.op.astype(x, "float32"))
        scaled = emit(relax.op.divide(real, constant(np.float32(0.7))))
        moved = emit(relax.op.permute_dims(scaled, [0, 2, 1, 3]))
        q = emit(qnn.quantize(emit(relax.op.subtract(moved, per_channel(rng, 1, 100))), 0.5, 9, out_dtype="uint8"))
        return emit(relax.op.exp(emit(qnn.dequantize(q, 0.01, 200))))

    mod = module([IMAGE], body)
    assert composites(mod) == ["subtract+quantize+dequantize+exp"]
    check(mod, rng)


FLOAT_OPERATORS = {
    "negative": relax.op.negative,
    "abs": relax.op.abs,
    "relu": relax.op.nn.relu,
    "relu6": lambda x: relax.op.clip(x, 0, 6),
    "floor": relax.op.floor,
    "ceil": relax.op.ceil,
    "round": relax.op.round,
    "square": relax.op.square,
    "exp": relax.op.exp,
    "tanh": relax.op.tanh,
    "sigmoid": relax.op.sigmoid,
    "erf": relax.op.erf,
    "gelu": relax.op.nn.gelu,
    "gelu_tanh": relax.op.nn.gelu_tanh,
    "silu": relax.op.nn.silu,
    "leaky_relu": lambda x: relax.op.nn.leakyrelu(x, 0.1),
    "prelu": lambda x: relax.op.nn.prelu(x, constant(np.linspace(-0.5, 2, int(x.ty.shape[-1])).astype(np.float32)), -1),
    "prelu_scalar": lambda x: relax.op.nn.prelu(x, constant(np.float32([0.3])), 1),
    "sqrt": lambda x: relax.op.sqrt(relax.op.abs(x)),
    "rsqrt": lambda x: relax.op.rsqrt(relax.op.add(relax.op.abs(x), constant(np.float32(0.3)))),
    "log": lambda x: relax.op.log(relax.op.add(relax.op.abs(x), constant(np.float32(0.3)))),
    "power": lambda x: relax.op.power(relax.op.abs(x), constant(np.float32(1.7))),
    "divide": lambda x: relax.op.divide(constant(np.float32(1.7)), relax.op.add(x, constant(np.float32(50.3)))),
    "maximum": lambda x: relax.op.maximum(x, constant(np.float32(0.4))),
    "minimum": lambda x: relax.op.minimum(x, constant(np.float32(0.4))),
    "products_and_sums": lambda x: relax.op.subtract(
        relax.op.add(relax.op.multiply(x, constant(np.float32(1.1))), constant(np.float32(0.37))),
        relax.op.multiply(x, x),
    ),
}


@pytest.mark.parametrize("name", FLOAT_OPERATORS)
def test_float_operator_in_a_kernel(name, rng):
    """Every value of 16 bits in an elementwise kernel, and in the register tile of a convolution.

    The tail goes on with a sum, which must not contract with a product in front of it.
    """
    values = np.arange(-(1 << 15), 1 << 15, dtype=np.int16).reshape(256, 256)
    accumulators = constant(rng.uniform(1e-5, 2e-4, CHANNELS).astype(np.float32))

    def normal(emit, expr):
        return emit(relax.op.add(expr, constant(np.float32(0.123))))

    def body(emit, q, x):
        real = emit(qnn.dequantize(q, 0.0013, 0))
        tile = emit(qnn.dequantize(convolution(emit, rng, x), accumulators, 0, axis=3))
        return [normal(emit, flat(emit, FLOAT_OPERATORS[name](value))) for value in (real, tile)]

    mod = module([(values.shape, "int16"), IMAGE], body)
    assert len(composites(mod)) == 2
    inputs = [values, inputs_of(rng, mod)[1]]
    for actual, expected in zip(compile_and_run(mod, "native", inputs), interpret(mod, inputs), strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(actual, expected)


def flat(emit, expr):
    """Nested calls as bindings."""
    if not isinstance(expr, relax.Call):
        return expr
    args = [flat(emit, arg) for arg in expr.args]
    return emit(relax.Call(expr.op, args, expr.attrs, expr.ty_args))


@pytest.mark.parametrize("seed", range(6))
def test_random_elementwise_graphs(seed):
    """Whatever the graph: groups are convex and results stay."""
    rng = np.random.default_rng(seed)

    def body(emit, x, y):
        floats = [emit(qnn.dequantize(v, 0.02, 100)) for v in (x, y)]
        floats.append(emit(qnn.dequantize(convolution(emit, rng, x), per_channel(rng), 0, axis=3)))
        integers = [x, y]
        for _ in range(14):
            kind = rng.integers(6)
            a, b = (floats[i] for i in rng.integers(max(0, len(floats) - 5), len(floats), 2))
            if kind == 0:
                integers.append(emit(qnn.quantize(a, 0.05, 90, out_dtype="uint8")))
            elif kind == 1:
                floats.append(emit(qnn.dequantize(integers[rng.integers(len(integers))], 0.03, 80)))
            elif kind == 2:
                floats.append(emit(relax.op.nn.relu(a)))
            elif kind == 3:
                floats.append(emit(qnn.dequantize(convolution(emit, rng, integers[-1]), per_channel(rng), 0, axis=3)))
            else:
                floats.append(emit((relax.op.add, relax.op.maximum)[kind - 4](a, b)))
        return [emit(qnn.quantize(value, 0.05, 90, out_dtype="uint8")) for value in floats[-3:]] + integers[-2:]

    check(module([IMAGE, IMAGE], body), rng)


def test_many_layers_in_little_time(rng):
    weight = constant(rng.integers(-128, 128, (CHANNELS, 1, 1, CHANNELS)).astype(np.int8))

    def body(emit, x):
        for _ in range(600):
            acc = emit(qnn.conv2d_accumulate(x, weight))
            window = emit(relax.op.multiply(emit(qnn.window_sum(x, kernel=(1, 1))), constant(np.int32(3))))
            x = emit(qnn.requantize(emit(relax.op.subtract(acc, window)), 0.1, 0, 9.0, 3, out_dtype="uint8"))
        return x

    mod = module([IMAGE], body)
    bindings = bindings_of(mod["main"])
    start = time.perf_counter()
    groups = find_groups(mod["main"], bindings)
    assert time.perf_counter() - start < 2
    assert len(groups) == 600
    assert {op_name(bindings[group.members[-1]].value) for group in groups} == {"qnn.requantize"}


def test_mish_has_a_kernel_of_its_own(rng):
    """Behind a product TVM would take minutes for its levels of softplus."""

    def body(emit, x):
        real = emit(qnn.dequantize(convolution(emit, rng, x), per_channel(rng), 0, axis=3))
        inner = emit(qnn.float_function(emit(qnn.float_function(real, "softplus")), "tanh"))
        return emit(relax.op.multiply(real, inner))

    mod = module([IMAGE], body)
    assert composites(mod)[0] == "conv2d_accumulate+add+dequantize"
    check(mod, rng)
