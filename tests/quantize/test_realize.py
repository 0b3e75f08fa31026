"""realize: integers that compute what the simulation says, with nothing in float between layers."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter, _evaluate
from qnn_ext.op.base import call_attributes, constant, constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.fold import fold
from qnn_ext.quantize.ranges import Range
from qnn_ext.quantize.realize import realize, simulate

from .networks import float_module

RNG = np.random.default_rng(11)
START = RNG.bit_generator.state


def weight(*shape: int) -> relax.Expr:
    fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return constant((RNG.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32))


def conv(emit, x, channels, kernel=3, groups=1, **attributes):
    w = weight(channels, int(x.ty.shape[1]) // groups, kernel, kernel)
    y = emit(relax.op.nn.conv2d(x, w, groups=groups, padding=(kernel // 2, kernel // 2), **attributes))
    return emit(relax.op.add(y, weight(1, channels, 1, 1)))


def bottleneck(emit, x):
    """A small MobileNet: stem, depthwise, residual sum, squeeze and excite, global mean, classifier."""
    relu, clip = relax.op.nn.relu, relax.op.clip
    x = emit(clip(conv(emit, x, 8, strides=(2, 2)), 0, 6))
    y = emit(clip(conv(emit, x, 8, groups=8), 0, 6))
    y = emit(relax.op.add(conv(emit, y, 8, 1), x))
    gate = emit(relu(conv(emit, emit(relax.op.mean(y, [2, 3], keepdims=True)), 4, 1)))
    y = emit(relax.op.multiply(y, emit(relax.op.sigmoid(conv(emit, gate, 8, 1)))))
    y = emit(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2)))
    return emit(relax.op.matmul(emit(relax.op.mean(y, [2, 3])), weight(8, 5)))


def encoder(emit, x):
    """Attention and a feed-forward layer with gelu, normalized before, residual."""
    hidden, ones, zeros = 16, constant(np.ones(16, np.float32)), constant(np.zeros(16, np.float32))

    def dense(x, n):
        return emit(relax.op.add(emit(relax.op.matmul(x, weight(int(x.ty.shape[-1]), n))), weight(n)))

    def heads(x, axes):
        return emit(relax.op.permute_dims(emit(relax.op.reshape(x, [1, 6, 2, hidden // 2])), axes))

    n = emit(relax.op.nn.layer_norm(x, ones, zeros, axes=[-1]))
    q, k, v = (heads(dense(n, hidden), axes) for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    p = emit(relax.op.nn.softmax(emit(relax.op.divide(emit(relax.op.matmul(q, k)), constant(np.float32(8**0.5)))), -1))
    mixed = emit(relax.op.permute_dims(emit(relax.op.matmul(p, v)), [0, 2, 1, 3]))
    x = emit(relax.op.add(dense(emit(relax.op.reshape(mixed, [1, 6, hidden])), hidden), x))
    n = emit(relax.op.nn.layer_norm(x, ones, zeros, axes=[-1]))
    return emit(relax.op.add(dense(emit(relax.op.nn.gelu(dense(n, 32))), hidden), x))


def decoder(emit, x):
    """A skip connection, upsampled by interpolation and by a transposed convolution."""
    y = emit(relax.op.nn.relu(conv(emit, x, 6, strides=(2, 2))))
    up = emit(relax.op.image.resize2d(y, (8, 8), method="linear", coordinate_transformation_mode="half_pixel"))
    learned = emit(relax.op.nn.conv2d_transpose(y, weight(6, 3, 2, 2), strides=(2, 2)))
    joined = emit(relax.op.concat([up, learned, x], 1))
    return conv(emit, emit(relax.op.nn.pad(joined, [0, 0, 0, 0, 1, 0, 0, 1])), 4)


NETWORKS = {
    "bottleneck": (bottleneck, (1, 3, 8, 8)),
    "encoder": (encoder, (1, 6, 16)),
    "decoder": (decoder, (1, 3, 8, 8)),
}


def prepared(name: str, config: QConfig):
    """The folded and the annotated network, the ranges of random data, and such data."""
    RNG.bit_generator.state = START  # the same weights in every test
    body, shape = NETWORKS[name] if isinstance(name, str) else name
    folded = fold(float_module(shape, body), config)
    annotated = annotate(folded, config)
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    table = ranges(annotated, x)
    return folded, annotated, table, x


def ranges(annotated, x) -> dict[str, Range]:
    """Smallest and largest value of each site on `x`."""
    values = {param: x for param in annotated.ir["main"].params}
    table = {}
    for binding in bindings_of(annotated.ir["main"]):
        values[binding.var] = _evaluate(annotated.ir, binding.value, values)
        if op_name(binding.value) == "qnn.observe":
            attributes = call_attributes(binding.value)
            table[attributes["site"]] = Range.of(values[binding.var], attributes["axis"])
    return table


def sqnr(exact: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(exact**2) / np.sum((exact - found) ** 2)))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", ["x86-64", {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}], ids=["uint8", "int8"])
def test_integers_everywhere(name, target):
    """All products in integers, close to float, compiled equal to interpreted."""
    config = QConfig(target=target)
    folded, annotated, table, x = prepared(name, config)
    realized = realize(annotated, table, config)
    assert coverage(realized).share == 1.0
    expected = Interpreter(realized)(x)
    assert sqnr(Interpreter(folded)(x), expected) > 25
    np.testing.assert_array_equal(qnn_ext.build(realized, num_threads=1)(x), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_simulation_computes_what_integers_will(name):
    """Both round the same real values; where sums are rounded in another order they differ by single steps."""
    config = QConfig(target="x86-64")
    _, annotated, table, x = prepared(name, config)
    simulated, integers = (Interpreter(f(annotated, table, config))(x) for f in (simulate, realize))
    assert sqnr(simulated, integers) > 40
    np.testing.assert_array_equal(Interpreter(realize(annotated, table, QConfig(do_simulation=True)))(x), simulated)


def floats_between(module) -> list[str]:
    """Float operators between the first quantize and the last dequantize that are not part of a kernel's epilogue."""
    bindings = bindings_of(module.ir["main"])
    names = [op_name(binding.value) for binding in bindings if "float32" in str(binding.var.ty)]
    pointwise = {"qnn.dequantize", "add", "multiply", "divide", "clip", "nn.relu", "nn.gelu", "sigmoid", ""}
    return [name for name in names if name not in pointwise]


def test_what_stays_float_is_what_the_policy_says():
    config = QConfig(target="x86-64")
    for name, expected in (("bottleneck", []), ("decoder", []), ("encoder", ["nn.softmax"])):
        _, annotated, table, _ = prepared(name, config)
        found = floats_between(realize(annotated, table, config))
        assert sorted(set(found) - {"qnn.normalize", "nn.layer_norm"}) == expected


def test_notes_name_the_choice():
    config = QConfig(target="x86-64")
    _, annotated, table, _ = prepared((attention_probabilities, (1, 4, 4)), config)
    (note,) = realize(annotated, table, config).notes
    assert (note.operator, note.reason) == ("nn.softmax", "the qconfig keeps softmax in float")
    config = QConfig(target="x86-64", last_layer="float32")
    _, annotated, table, _ = prepared("bottleneck", config)
    (note,) = realize(annotated, table, config).notes
    assert (note.operator, note.reason) == ("matmul", "the qconfig keeps this layer in float")


def attention_probabilities(emit, x):
    return emit(relax.op.nn.softmax(emit(relax.op.matmul(x, weight(4, 4)))))


def test_float_functions_on_integers():
    config = QConfig(target="x86-64", float_functions=())
    _, annotated, table, x = prepared("encoder", config)
    realized = realize(annotated, table, config)
    names = [op_name(binding.value) for binding in bindings_of(realized.ir["main"])]
    assert "qnn.softmax" in names and "qnn.table" in names and "nn.softmax" not in names and "nn.gelu" not in names
    np.testing.assert_array_equal(qnn_ext.build(realized, num_threads=1)(x), Interpreter(realized)(x))


def test_biases_are_int32_in_units_of_the_accumulator():
    """q_bias = rint(bias / (s_x · s_w)), so that the sum needs no float at all."""
    bias = np.float32([0.5, -2.0, 0.0])

    def body(emit, x):
        y = emit(relax.op.matmul(x, constant(np.float32([[1.0, 2.0, 4.0], [-1.0, 0.5, 3.0]]))))
        return emit(relax.op.matmul(emit(relax.op.add(y, constant(bias))), constant(np.eye(3, dtype=np.float32))))

    config = QConfig(target="x86-64", symmetric=True, dtype_input="int8")
    annotated = annotate(float_module((1, 2), body), config)
    table = {s.name: Range.of(s.value, s.axis) if s.value is not None else Range(-12.7, 12.7) for s in sites(annotated)}
    realized = realize(annotated, table, config)
    (added,) = (b.value for b in bindings_of(realized.ir["main"]) if op_name(b.value) == "add")
    scale = np.float32(0.1) * np.float32([1.0, 2.0, 4.0]) / np.float32(127)
    np.testing.assert_array_equal(constant_value(added.args[1]).reshape(-1), np.rint(bias / scale))


def test_few_bits():
    """4 bits: what is quantized lies in 0 … 15, weights in −7 … 7."""
    config = QConfig(target="x86-64", nbit_input=4, nbit_weight=4)
    _, annotated, table, x = prepared("bottleneck", config)
    table = {name: Range(r.low * 0.5, r.high * 0.5) if not r.per_channel else r for name, r in table.items()}
    realized = realize(annotated, table, config)
    values = {param: x for param in realized.ir["main"].params}
    largest = 0
    for binding in bindings_of(realized.ir["main"]):
        values[binding.var] = _evaluate(realized.ir, binding.value, values)
        if op_name(binding.value) in ("qnn.conv2d", "qnn.dense"):
            largest = max(largest, values[binding.value.args[0]].max())
            assert np.abs(constant_value(binding.value.args[1])).max() == 7
    assert largest == 15


def test_powers_of_two():
    config = QConfig(quantization_formula="cambricon")
    _, annotated, table, x = prepared("bottleneck", config)
    realized = realize(annotated, table, config)
    for binding in bindings_of(realized.ir["main"]):
        if op_name(binding.value) == "qnn.requantize":
            assert (np.frexp(constant_value(binding.value.args[1]))[0] == 0.5).all()
            assert not constant_value(binding.value.args[4]).any()
    np.testing.assert_array_equal(qnn_ext.build(realized, num_threads=1)(x), Interpreter(realized)(x))


def test_float16_layer():
    """Operands rounded to float16, float32 sums: 11 bits are closer than 8."""
    config = QConfig(target="x86-64", overrides={"*": {"precision": "float16"}, "lv": {"precision": "int8"}})
    assert config.layer("lv", "nn.conv2d").quantized
    folded, annotated, table, x = prepared("bottleneck", config)
    realized = realize(annotated, table, config)
    exact, found = Interpreter(folded)(x), Interpreter(realized)(x)
    everything = QConfig(target="x86-64")
    _, all_int8, ranges_int8, _ = prepared("bottleneck", everything)
    assert sqnr(exact, found) > sqnr(exact, Interpreter(realize(all_int8, ranges_int8, everything))(x)) + 3
    np.testing.assert_allclose(qnn_ext.build(realized, num_threads=1)(x), found, rtol=1e-5, atol=1e-6)


def test_missing_range():
    config = QConfig(target="x86-64")
    _, annotated, table, _ = prepared("bottleneck", config)
    first = next(iter(table))
    with pytest.raises(QuantizationError, match="no range for 'x'"):
        realize(annotated, {name: found for name, found in table.items() if name != first}, config)
