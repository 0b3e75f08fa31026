"""Float operators legalized to our own formulas: what stays alone equals the interpreter, products are close to it."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op
from qnn_ext.compiling.build import lower_module
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.cases.elementary import ELEMENTARY, nn

from .modules import run_lowered


def evaluate(build, arrays, cpu="native"):
    """(compiled, interpreted) results of build(emit, *variables)."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(arrays)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, *params))
        builder.emit_func_output(result)
    target = make_target(cpu, 1)
    return run_lowered(lower_module(builder.get(), target), arrays, target)[0], interpret(builder.get(), arrays)[0]


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_alone(rng, name):
    x = (rng.standard_normal((3, 5, 37)) * 5).astype(np.float32)
    np.testing.assert_array_equal(*evaluate(lambda emit, x: emit(ELEMENTARY[name](x)), [x]))


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_of_float64(rng, name):
    x = (rng.standard_normal((3, 37)) * 5).astype(np.float64)
    np.testing.assert_allclose(*evaluate(lambda emit, x: emit(ELEMENTARY[name](x)), [x]), rtol=1e-12)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_softmax(rng, axis):
    x = (rng.standard_normal((4, 39, 50)) * 3).astype(np.float32)
    np.testing.assert_array_equal(*evaluate(lambda emit, x: emit(nn.softmax(x, axis)), [x]))


@pytest.mark.parametrize("mean", [0, 100])
@pytest.mark.parametrize("groups", [1, 3, None])
@pytest.mark.parametrize("shape", [(2, 6, 7, 5), (3, 6, 50)])
def test_group_norm(rng, shape, groups, mean):
    """Also where the variance is small beside the mean: the sum of squares would lose it."""
    x = rng.normal(mean, 0.1, shape).astype(np.float32)
    gamma, beta = (rng.standard_normal(6).astype(np.float32) for _ in range(2))
    axes = list(range(2, len(shape)))

    def build(emit, x):
        parameters = (x, constant(gamma), constant(beta))
        return emit(nn.group_norm(*parameters, groups, 1, axes) if groups else nn.instance_norm(*parameters, 1, axes))

    compiled, interpreted = evaluate(build, [x])
    np.testing.assert_array_equal(compiled, interpreted)
    rows = x.astype(np.float64).reshape(shape[0], groups or 6, -1)
    unit = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    column = (-1, *(1 for _ in axes))
    expected = unit.reshape(shape) * gamma.reshape(column) + beta.reshape(column)
    np.testing.assert_allclose(interpreted, expected, atol=1e-3 if mean else 2e-6)


@pytest.mark.parametrize("axes", [[-1], [1, 2]])
def test_layer_norm(rng, axes):
    x = rng.standard_normal((4, 6, 50)).astype(np.float32)
    gamma, beta = (
        rng.standard_normal(x.shape[axes[0] :] if axes == [-1] else x.shape[1:]).astype("float32") for _ in "gb"
    )
    build = lambda emit, x, g, b: emit(nn.layer_norm(x, g, b, axes))  # noqa: E731
    actual, expected = evaluate(build, [x, gamma, beta])
    np.testing.assert_allclose(actual, expected, **({"rtol": 0} if axes == [-1] else {"atol": 1e-5}))


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_quantize_ends_the_kernel(rng, name):
    x = rng.standard_normal((4, 50)).astype(np.float32)
    gamma, beta = (constant(rng.standard_normal(50).astype(np.float32)) for _ in "gb")

    def build(emit, x):
        y = emit(nn.softmax(x, -1) if name == "softmax" else nn.layer_norm(x, gamma, beta, [-1]))
        return emit(op.quantize(y, 0.01, 3, out_dtype="uint8"))

    np.testing.assert_array_equal(*evaluate(build, [x]))


CONVOLUTIONS = {
    "3x3": ((1, 9, 9, 32), (32, 3, 3, 32), {"padding": (1, 1)}),
    "odd": ((2, 7, 5, 3), (21, 3, 2, 3), {"padding": (1, 0, 2, 1), "strides": (2, 1)}),
    "dilated": ((1, 11, 12, 5), (16, 3, 3, 5), {"dilation": (2, 3)}),
    "pointwise": ((1, 7, 7, 40), (64, 1, 1, 40), {}),
    "pointwise_strided": ((1, 8, 8, 16), (48, 1, 1, 16), {"strides": (2, 2)}),
    "depthwise": ((1, 9, 8, 24), (24, 3, 3, 1), {"groups": 24, "padding": (1, 1)}),
    "depthwise_strided": ((1, 9, 8, 16), (16, 5, 3, 1), {"groups": 16, "strides": (2, 1)}),
    "grouped": ((1, 6, 6, 8), (12, 3, 3, 4), {"groups": 2}),
    "multiplier": ((1, 6, 6, 8), (16, 3, 3, 1), {"groups": 8}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("cpu", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("kernel_layout", ["OHWI", "HWIO"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(rng, name, kernel_layout, cpu):
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    if cpu == "x86-64" and kernel_layout == "HWIO":
        pytest.skip("the layout of the weights does not depend on the CPU")
    weight = rng.standard_normal(weight_shape).astype(np.float32)
    if kernel_layout == "HWIO":
        weight = weight.transpose(1, 2, 3, 0).copy()
    bias = constant(rng.standard_normal(weight_shape[0]).astype(np.float32))

    def build(emit, x):
        layouts = {"data_layout": "NHWC", "kernel_layout": kernel_layout}
        y = emit(nn.conv2d(x, constant(weight), **attributes, **layouts))
        return emit(nn.relu(emit(relax.op.add(y, bias))))

    x = rng.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(*evaluate(build, [x], cpu), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("cpu", ["native", "haswell"])
@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize(
    "lhs,rhs",
    [
        ((3, 50, 64), (3, 64, 50)),
        ((17, 33), (33, 10)),
        ((2, 9, 20), (20, 37)),
        ((2, 9, 20), (20, 32)),
        ((30, 64), (64, 64)),
        ((1, 40), (40, 10)),
        ((2, 12, 8), (2, 8, 48)),
    ],
    ids=str,
)
def test_matmul(rng, lhs, rhs, is_constant, cpu):
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (lhs, rhs))

    def build(emit, x, *operands):
        product = emit(relax.op.matmul(x, *(operands or [constant(y)])))
        return emit(relax.op.divide(product, relax.const(8.0, "float32")))

    np.testing.assert_allclose(*evaluate(build, [x] if is_constant else [x, y], cpu), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (7,), (3, 16), (9, 7, 2), (4, 128), (2, 40, 50)])
def test_products_and_sums_round_one_by_one(rng, shape):
    """As in batch normalization, whatever LLVM keeps in registers."""
    x, scale, offset = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))

    def build(emit, x, scale, offset):
        product = emit(relax.op.multiply(x, scale))
        combined = emit(relax.op.subtract(offset, emit(relax.op.multiply(emit(relax.op.add(product, offset)), x))))
        return emit(relax.op.subtract(emit(relax.op.multiply(combined, scale)), offset))

    compiled, interpreted = evaluate(build, [x, scale, offset])
    np.testing.assert_array_equal(compiled, interpreted)
    np.testing.assert_array_equal(interpreted, (offset - (x * scale + offset) * x) * scale - offset)


def test_a_comparison_that_does_not_hold_of_nan(rng):
    """¬(x ≥ y) is not x < y."""
    x, y = (rng.integers(-2, 3, 40).astype(np.float32) for _ in range(2))
    x[::5] = np.nan

    def build(emit, x, y):
        return emit(relax.op.logical_not(emit(relax.op.greater_equal(x, y))))

    compiled, interpreted = evaluate(build, [x, y])
    np.testing.assert_array_equal(compiled, interpreted)
    np.testing.assert_array_equal(interpreted, ~(x >= y))


@pytest.mark.parametrize("name", ["equal", "not_equal", "less", "greater_equal"])
def test_comparisons_of_truth_values(name, rng):
    """As exporters write ⌊a / b⌋: (a < 0) = (b < 0)."""
    x, y = (rng.integers(-2, 3, 40).astype(np.int32) for _ in range(2))
    compare = getattr(relax.op, name)

    def build(emit, x, y):
        return emit(compare(emit(relax.op.less(x, y)), emit(relax.op.equal(x, y))))

    compiled, interpreted = evaluate(build, [x, y])
    np.testing.assert_array_equal(compiled, interpreted)
    np.testing.assert_array_equal(interpreted, getattr(np, name)(x < y, x == y))


MAGIC = np.float32(1.5 * 2**23)  # x + MAGIC − MAGIC is x rounded to an integer
CANCELLING = {
    "(x + c) - c": lambda sub, add, x, y, c: sub(add(x, c), c),
    "(c + x) - c": lambda sub, add, x, y, c: sub(add(c, x), c),
    "(x + y) - x": lambda sub, add, x, y, c: sub(add(x, y), x),
    "x - (x + y)": lambda sub, add, x, y, c: sub(x, add(x, y)),
    "(x + y) - (x + y)": lambda sub, add, x, y, c: sub(add(x, y), add(x, y)),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("cpu", ["x86-64", "native"])
@pytest.mark.parametrize("name", CANCELLING)
def test_differences_are_rounded(rng, name, cpu):
    x, y = (rng.standard_normal((3, 40)).astype(np.float32) * 9 for _ in range(2))
    x[0, ::5], y[1, ::7] = np.inf, np.nan

    def build(emit, x, y):
        steps = (lambda a, b, op=op: emit(op(a, b)) for op in (relax.op.subtract, relax.op.add))
        return CANCELLING[name](*steps, x, y, constant(MAGIC))

    compiled, interpreted = evaluate(build, [x, y], cpu)
    np.testing.assert_array_equal(compiled, interpreted)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(interpreted, CANCELLING[name](np.subtract, np.add, x, y, MAGIC))


@pytest.mark.parametrize("name", CANCELLING)
def test_differences_of_dequantized_values_are_rounded(rng, name):
    q, p = (rng.integers(-128, 128, (3, 40)).astype(np.int8) for _ in range(2))

    def build(emit, q, p):
        steps = (lambda a, b, op=op: emit(op(a, b)) for op in (relax.op.subtract, relax.op.add))
        values = (emit(op.dequantize(value, np.float32(0.07), 3)) for value in (q, p))
        return emit(op.quantize(CANCELLING[name](*steps, *values, constant(MAGIC)), np.float32(0.1), 0))

    np.testing.assert_array_equal(*evaluate(build, [q, p]))


@pytest.mark.parametrize("compare", ["equal", "not_equal", "less_equal", "greater_equal"])
def test_nan_does_not_equal_itself(compare):
    x = np.float32([np.nan, 1, np.inf, -0.0] * 9)

    def build(emit, x):
        return emit(relax.op.where(emit(getattr(relax.op, compare)(x, x)), x, constant(np.float32(7))))

    compiled, interpreted = evaluate(build, [x])
    np.testing.assert_array_equal(compiled, interpreted)
    np.testing.assert_array_equal(interpreted, np.where(getattr(np, compare)(x, x), x, 7))
