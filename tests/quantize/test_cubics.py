"""Float functions behind products become cubics: which do, how accurate they are, and that nothing else changes."""

import math

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.interpreter import Interpreter
from qnn_ext.numerics.piecewise import evaluated
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.cubics import TOLERANCE, Target, _behind_factors, cubics
from qnn_ext.quantize.realize import realize, simulate

from .networks import conv, prepared

R = relax.op
CONFIG = QConfig(target="x86-64")
SHAPE = (1, 3, 8, 8)


def scalar(value: float) -> relax.Expr:
    return constant(np.float32(value))


def silu(emit, x):
    return emit(R.multiply(x, emit(R.sigmoid(x))))


def gelu(emit, x):
    """As in ONNX before opset 20."""
    total = emit(R.add(emit(R.erf(emit(R.divide(x, scalar(math.sqrt(2)))))), scalar(1)))
    return emit(R.multiply(emit(R.multiply(x, total)), scalar(0.5)))


def gelu_tanh(emit, x):
    cube = emit(R.multiply(emit(R.power(x, scalar(3))), scalar(0.044715)))
    inner = emit(R.multiply(emit(R.add(x, cube)), scalar(math.sqrt(2 / math.pi))))
    total = emit(R.add(emit(R.tanh(inner)), scalar(1)))
    return emit(R.multiply(emit(R.multiply(x, total)), scalar(0.5)))


def softplus(emit, x):
    """As PyTorch writes it: x above 20."""
    log = emit(R.log(emit(R.add(emit(R.exp(x)), scalar(1)))))
    return emit(R.where(emit(R.greater(x, scalar(20))), x, log))


def mish(emit, x):
    return emit(R.multiply(x, emit(R.tanh(softplus(emit, x)))))


def elu(emit, x):
    below = emit(R.subtract(emit(R.exp(emit(R.minimum(x, scalar(0))))), scalar(1)))
    return emit(R.where(emit(R.greater(x, scalar(0))), x, below))


def hard_swish(emit, x):
    clipped = emit(R.clip(emit(R.add(x, scalar(3))), 0, 6))
    return emit(R.divide(emit(R.multiply(x, clipped)), scalar(6)))


FUNCTIONS = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "mish": mish,
    "softplus": softplus,
    "elu": elu,
    "hard_swish": hard_swish,
    "leaky_relu": lambda emit, x: emit(R.nn.leakyrelu(x, 0.1)),
    **{
        name: lambda emit, x, operator=operator: emit(operator(x))
        for name, operator in {
            "sigmoid": R.sigmoid,
            "tanh": R.tanh,
            "exp": R.exp,
            "nn.silu": R.nn.silu,
            "nn.gelu": R.nn.gelu,
            "nn.gelu_tanh": R.nn.gelu_tanh,
            "nn.softplus": R.nn.softplus,
            "nn.selu": R.nn.selu,
        }.items()
    },
}


def names(module) -> list[str]:
    return [op_name(binding.value) for binding in bindings_of(module.ir["main"])]


def network(function, shape=SHAPE):
    return lambda emit, x: conv(emit, function(emit, conv(emit, x, 8)), 4), shape


def steps_apart(body) -> np.ndarray:
    """How far the integers' results are from the simulation's, as a share of their range; also checks the kernels."""
    _, annotated, table, x = prepared(body, CONFIG)
    realized = realize(annotated, table, CONFIG)
    found, exact = (np.asarray(Interpreter(module)(x)) for module in (realized, simulate(annotated, table, CONFIG)))
    np.testing.assert_array_equal(qnn_ext.build(realized, num_threads=1)(x), found)
    return np.abs(found - exact) / np.ptp(exact)


@pytest.mark.sampled("name", whole="silu")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_an_accumulator(name):
    """One operator instead of the function; few of the integers behind it change, and by one step."""
    _, annotated, table, _ = prepared(network(FUNCTIONS[name]), CONFIG)
    found = names(realize(annotated, table, CONFIG))
    assert found.count("qnn.piecewise") == 1
    assert not {"sigmoid", "erf", "tanh", "exp", "power", "where", "divide", name} & set(found)
    assert steps_apart(network(FUNCTIONS[name])).mean() < 1e-3


def test_summand():
    """Before a residual sum, whose rounding is what its error is measured by."""

    def body(emit, x):
        y = conv(emit, x, 8)
        return conv(emit, emit(R.add(silu(emit, conv(emit, y, 8)), y)), 4)

    _, annotated, table, _ = prepared((body, SHAPE), CONFIG)
    assert names(realize(annotated, table, CONFIG)).count("qnn.piecewise") == 1
    assert steps_apart((body, SHAPE)).mean() < 1e-3


def test_joined():
    def body(emit, x):
        y = conv(emit, x, 8)
        return conv(emit, emit(R.concat([silu(emit, conv(emit, y, 8)), silu(emit, conv(emit, y, 6))], 1)), 4)

    _, annotated, table, _ = prepared((body, SHAPE), CONFIG)
    assert names(realize(annotated, table, CONFIG)).count("qnn.piecewise") == 2
    assert steps_apart((body, SHAPE)).mean() < 1e-3


@pytest.mark.parametrize("largest, step", [(1, 1), (4, 8 / 79**0.5), (1e4, 4e-4)])
def test_factors_of_channels(largest, step):
    """Errors of all channels add up: one with a larger factor does not decide alone, unless it is far beyond."""
    factors = np.ones((64, 1, 1), np.float32)
    factors[3] = largest
    multiply = R.multiply(relax.Var("x", relax.TensorType((1, 64, 4, 4), "float32")), constant(factors))
    found = _behind_factors(multiply, Target(1.0, -10.0, 20.0))
    assert found is not None and (found.low, found.high) == (-10, 20)
    assert found.step == pytest.approx(step)

    def body(emit, x):
        return emit(R.multiply(silu(emit, x), constant(factors[:8])))

    assert steps_apart(network(body)).mean() < 1e-3


def bounds(emit, x):
    return emit(R.clip(emit(R.maximum(x, scalar(-1))), 0, 6))


def of_two_tensors(emit, x):
    return emit(R.multiply(conv(emit, x, 8), emit(R.sigmoid(conv(emit, x, 8)))))


def per_channel(emit, x):
    slopes = constant(np.linspace(0.5, 2, 8).astype(np.float32).reshape(1, 8, 1, 1))
    return emit(R.sin(emit(R.multiply(x, slopes))))


@pytest.mark.parametrize("function", [bounds, of_two_tensors, per_channel, lambda emit, x: emit(R.sin(x))])
def test_what_stays(function):
    """Bounds, functions of two tensors or of a constant per channel, and what sixteen cubics do not follow."""
    _, annotated, table, _ = prepared(network(function), CONFIG)
    assert "qnn.piecewise" not in names(realize(annotated, table, CONFIG))


def test_results_of_the_module_stay():
    def to_result(emit, x):
        return silu(emit, conv(emit, x, 8))

    _, annotated, table, _ = prepared((to_result, SHAPE), CONFIG)
    assert "qnn.piecewise" not in names(realize(annotated, table, CONFIG))


def test_a_function_of_integers_is_a_table():
    """What is quantized before and after it."""

    def body(emit, x):
        y = emit(R.nn.max_pool2d(conv(emit, x, 8), (2, 2), strides=(2, 2)))
        return emit(R.add(conv(emit, silu(emit, y), 4), conv(emit, y, 4)))

    _, annotated, table, _ = prepared((body, SHAPE), CONFIG)
    found = names(realize(annotated, table, CONFIG))
    assert "qnn.table" in found and "qnn.piecewise" not in found


def numpy_silu(x):
    return x / (1 + np.exp(-np.clip(x, -700, 700)))


def numpy_mish(x):
    return x * np.tanh(np.logaddexp(0, x))


def numpy_hard_swish(x):
    return x * np.clip(x + 3, 0, 6) / 6


def numpy_selu(x):
    return 1.0507 * np.where(x > 0, x, 1.6733 * np.expm1(np.minimum(x, 0)))


@pytest.mark.parametrize("highest", [0.7, 1.3, 3.0, 6.0, 20.0, 100.0, 3000.0])
@pytest.mark.parametrize(
    "function", [numpy_silu, numpy_mish, numpy_selu, numpy_hard_swish, np.tanh, lambda x: np.logaddexp(0, x)]
)
@pytest.mark.parametrize("direct", [True, False])
def test_error(function, highest, direct):
    """Less than a sixteenth of a step wherever the result is not clipped, at every size of the range."""
    low = -0.28
    step = (highest - low) / 255
    found = cubics(function, Target(step, low, highest, direct))
    assert found is not None
    x = np.linspace(-30, highest + 30, 100_003).astype(np.float32)
    y = evaluated(x, *found).astype(np.float64) * (step if direct else 1)
    expected = function(x.astype(np.float64))
    wanted = np.clip(expected, low, highest), np.clip(y, low, highest)
    assert np.abs(wanted[0] - wanted[1]).max() <= 1.5 * TOLERANCE * step


@pytest.mark.parametrize(
    "function", [np.sin, np.arctan, lambda x: np.where(x > 0, np.nan, x), np.zeros_like, np.square]
)
def test_functions_that_cubics_do_not_follow(function):
    """Without end, with long tails, undefined, or constant; of a square, the range leaves a part that they follow."""
    found = cubics(function, Target(0.01, -1.0, 1.55, True))
    assert (found is None) == (function is not np.square)
