"""realize: integers that compute what the simulation says, with nothing in float between layers."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant, constant_value
from qnn_ext.op.evaluate import evaluate
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.ranges import Range
from qnn_ext.quantize.realize import realize, simulate
from tests.quantize.networks import NETWORKS, prepared, weight

from .networks import float_module


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
    pointwise = {"qnn.dequantize", "add", "multiply", "divide", "clip", "nn.relu", "qnn.piecewise", ""}
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


def test_several_matrices_with_a_scale_per_column_multiply_8_bits():
    """As the experts of a mixture have them."""
    rng = np.random.default_rng(0)
    matrices = constant((rng.normal(size=(4, 8, 6)) * np.geomspace(1, 20, 6)).astype(np.float32))
    annotated = annotate(float_module((1, 5, 8), lambda emit, x: emit(relax.op.matmul(x, matrices))), QConfig())
    ranges = {
        site.name: Range(-3.0, 3.0)
        if site.role != "weight"
        else Range(*(sign * np.abs(site.value).max((0, 1)) for sign in (-1, 1)))
        for site in sites(annotated)
    }
    module = realize(annotated, ranges, QConfig())
    assert coverage(module).share_in_8_bits == 1
    x = rng.uniform(-3, 3, size=(1, 5, 8)).astype(np.float32)
    expected, got = (next(iter(Interpreter(m).run([x]).values())) for m in (annotated, module))
    error, signal = (np.linalg.norm(array, axis=(0, 1)) for array in (got - expected, expected))
    assert (error < 0.02 * signal).all(), "of small columns too"
    compiled = qnn_ext.build(module).run([x])
    np.testing.assert_array_equal(next(iter(compiled.values())), got)


def test_few_bits():
    """4 bits: what is quantized lies in 0 … 15, weights in −7 … 7."""
    config = QConfig(target="x86-64", nbit_input=4, nbit_weight=4)
    _, annotated, table, x = prepared("bottleneck", config)
    table = {name: Range(r.low * 0.5, r.high * 0.5) if not r.per_channel else r for name, r in table.items()}
    realized = realize(annotated, table, config)
    values = {param: x for param in realized.ir["main"].params}
    largest = 0
    for binding in bindings_of(realized.ir["main"]):
        values[binding.var] = evaluate(realized.ir, binding.value, values)
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
