"""annotate: which tensors are quantized, and as what."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import quantize
from qnn_ext.quantize.annotate import annotate, float_filters, sites
from qnn_ext.quantize.config import QConfig

from .networks import float_module

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


def weight(*shape: int) -> relax.Expr:
    return constant(RNG.normal(size=shape).astype(np.float32))


def conv(emit, x, name, channels=4, groups=1, kernel=1):
    w = weight(channels, int(x.ty.shape[1]) // groups, kernel, kernel)
    padding = (kernel // 2, kernel // 2)
    y = emit(relax.op.nn.conv2d(x, w, groups=groups, padding=padding), f"{name}_part")
    return emit(relax.op.add(y, weight(1, channels, 1, 1)), name)


def config(**fields) -> QConfig:
    return QConfig(**{"target": "x86-64", **fields})


def activations(body, shape=(1, 4, 6, 6), **fields) -> dict[str, str]:
    """Site -> role of all sites that are not weights."""
    found = sites(annotate(float_module(shape, body), config(**fields)))
    return {site.name: site.role for site in found if site.role != "weight"}


def test_quantized_behind_the_whole_chain():
    """Not between convolution, bias and what follows pointwise; moves and max pools keep the site in front of them."""

    def body(emit, x):
        y = emit(relax.op.nn.gelu(emit(relax.op.clip(conv(emit, x, "a"), -1, 1), "clip")), "gelu")
        y = emit(relax.op.reshape(emit(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2)), "pool"), [1, 4, 9]), "flat")
        return emit(relax.op.matmul(y, weight(9, 3)), "fc")

    assert activations(body) == {"x": "input", "gelu": "input"}


def test_gelu_as_a_table():
    def body(emit, x):
        return conv(emit, emit(relax.op.nn.gelu(conv(emit, x, "a")), "gelu"), "b")

    assert activations(body, float_functions=()) == {"x": "input", "a": "activation", "gelu": "input"}


def test_branches_that_meet_again_stay_in_registers():
    """hard-swish written as x · clip(x / 6 + ½, 0, 1)."""

    def body(emit, x):
        y = conv(emit, x, "a")
        gate = emit(relax.op.add(emit(relax.op.multiply(y, constant(np.float32(1 / 6)))), constant(np.float32(0.5))))
        return conv(emit, emit(relax.op.multiply(y, emit(relax.op.clip(gate, 0, 1))), "swish"), "b")

    assert activations(body) == {"x": "input", "swish": "input"}


def residual(emit, x):
    a = emit(relax.op.nn.relu(conv(emit, x, "a")), "relu")
    total = emit(relax.op.nn.relu(emit(relax.op.add(conv(emit, a, "b"), a), "sum")), "total")
    return conv(emit, total, "c")


def test_residual_sum_adds_in_registers():
    assert activations(residual) == {"x": "input", "relu": "input", "total": "input"}


def test_residual_sum_of_quantized_tensors():
    found = activations(residual, nbit_activation=8, dtype_activation="uint8")
    assert found == {"x": "input", "relu": "input", "b": "activation", "total": "input"}


def test_of_two_convolutions_that_meet_the_later_stays_in_registers():
    def body(emit, x):
        return conv(emit, emit(relax.op.add(conv(emit, x, "a"), conv(emit, x, "b")), "sum"), "c")

    assert activations(body) == {"x": "input", "a": "activation", "sum": "input"}


def test_concat_shares_its_scale_with_what_only_it_reads():
    def body(emit, x):
        a, b = conv(emit, x, "a"), conv(emit, x, "b")
        joined = emit(relax.op.concat([a, emit(relax.op.nn.max_pool2d(b, (1, 1)))], 1), "cat")
        return emit(relax.op.add(conv(emit, joined, "c"), b))

    assert activations(body) == {"x": "input", "b": "activation", "cat": "input"}


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: relax.op.mean(x, [2, 3], keepdims=True),
        lambda x: relax.op.nn.avg_pool2d(x, (2, 2), strides=(2, 2)),
        lambda x: relax.op.nn.adaptive_avg_pool2d(x, (1, 1)),
    ],
)
def test_pools(pool):
    def body(emit, x):
        return conv(emit, emit(pool(conv(emit, x, "a")), "pool"), "b")

    assert activations(body) == {"x": "input", "a": "activation", "pool": "input"}


def attention(emit, x):
    q, k, v = (emit(relax.op.matmul(x, weight(8, 8)), name) for name in "qkv")
    scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 2, 1]))), "scores")
    p = emit(relax.op.nn.softmax(emit(relax.op.divide(scores, constant(np.float32(8**0.5)))), -1), "p")
    return emit(relax.op.matmul(emit(relax.op.matmul(p, v), "mixed"), weight(8, 8)), "out")


def test_attention_keeps_softmax_in_float():
    """Both products of run-time tensors are integers; the scores stay an accumulator."""
    assert activations(attention, (1, 5, 8)) == {
        "x": "input", "q": "input", "k": "input", "v": "input", "p": "input", "mixed": "input",
    }  # fmt: skip


def test_softmax_on_integers():
    found = activations(attention, (1, 5, 8), float_functions=())
    assert [name for name, role in found.items() if role == "activation"] == ["lv1"]  # scores / √8


def layer_norm(emit, x):
    """As exported before ONNX 17."""
    centered = emit(relax.op.subtract(x, emit(relax.op.mean(x, [-1], keepdims=True))))
    square = emit(relax.op.power(centered, constant(np.float32(2))))
    variance = emit(relax.op.add(emit(relax.op.mean(square, [-1], keepdims=True)), constant(np.float32(1e-5))))
    scaled = emit(relax.op.divide(centered, emit(relax.op.sqrt(variance))))
    return emit(relax.op.add(emit(relax.op.multiply(scaled, weight(8))), weight(8)), "norm")


def unit_length(emit, x):
    length = emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(x, x)), [-1], keepdims=True))))
    return emit(relax.op.divide(x, emit(relax.op.broadcast_to(length, [1, 5, 8]))), "norm")


def softmax(emit, x):
    power = emit(relax.op.exp(emit(relax.op.subtract(x, emit(relax.op.max(x, [-1], keepdims=True))))))
    return emit(relax.op.divide(power, emit(relax.op.sum(power, [-1], keepdims=True))), "norm")


@pytest.mark.parametrize("norm", [layer_norm, unit_length, softmax])
def test_normalizations_in_single_operators_stay_float(norm):
    """Nothing is quantized between what they read, which a sum quantizes anyway, and their result."""

    def body(emit, x):
        y = emit(relax.op.matmul(x, weight(8, 8)), "y")
        n = emit(relax.op.matmul(norm(emit, y), weight(8, 8)), "z")
        return emit(relax.op.matmul(emit(relax.op.add(n, y), "sum"), weight(8, 8)))

    assert set(activations(body, (1, 5, 8))) == {"x", "y", "norm", "sum"}


def test_squeeze_and_excite_is_no_normalization():
    def body(emit, x):
        y = conv(emit, x, "a")
        gate = emit(relax.op.sigmoid(conv(emit, emit(relax.op.mean(y, [2, 3], keepdims=True), "mean"), "b")), "gate")
        return conv(emit, emit(relax.op.multiply(y, gate), "product"), "c")

    assert set(activations(body)) == {"x", "a", "mean", "gate", "product"}


def test_weights_have_a_scale_per_output_channel():
    def body(emit, x):
        y = conv(emit, x, "plain", channels=6, kernel=3)
        y = conv(emit, y, "depthwise", channels=6, groups=6, kernel=3)
        y = emit(relax.op.nn.conv2d_transpose(y, weight(6, 5, 2, 2), strides=(2, 2)), "up")
        y = emit(relax.op.matmul(emit(relax.op.reshape(y, [1, 5 * 144])), weight(720, 7)), "fc")
        return emit(relax.op.matmul(weight(3, 1), y), "left")

    found = [s for s in sites(annotate(float_module((1, 4, 6, 6), body), config())) if s.role == "weight"]
    assert {site.name: (site.shape, site.axis) for site in found} == {
        "plain.weight": ((6, 4, 3, 3), 0),
        "depthwise.weight": ((6, 1, 3, 3), 0),
        "up.weight": ((6, 5, 2, 2), 1),
        "fc.weight": ((720, 7), 1),
        "left.weight": ((3, 1), 0),
    }
    assert all(site.value is not None and site.symmetric and site.dtype == "int8" for site in found)


def test_dtypes_follow_the_target():
    for target, dtype in (("x86-64", "uint8"), ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "int8")):
        found = sites(annotate(float_module((1, 4, 6, 6), residual), QConfig(target=target)))
        assert {site.dtype for site in found if site.role != "weight"} == {dtype}


def test_annotated_module_computes_the_same():
    module = float_module((1, 4, 6, 6), residual)
    x = np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(Interpreter(annotate(module, config()))(x), Interpreter(module)(x))


def test_the_first_layer_that_asks_decides():
    fields = {"overrides": {"a": {"range": (-2.0, 3.0), "calibrate_mode": "minmax"}, "c": {"nbit_input": 5}}}
    found = {s.name: s for s in sites(annotate(float_module((1, 4, 6, 6), residual), config(**fields)))}
    assert found["x"].range == (-2.0, 3.0) and found["x"].calibrate_mode == "minmax"
    assert (found["relu"].bits, found["total"].bits) == (8, 5)


def test_a_fixed_range_holds_for_the_data_input_whoever_asked_first():
    def body(emit, x):
        a = conv(emit, x, "a")
        return emit(relax.op.add(conv(emit, conv(emit, a, "b"), "c"), conv(emit, a, "d")))

    fields = {"overrides": {"d": {"range": (-1.0, 5.0)}, "c": {"range": (-3.0, 3.0)}}}
    found = {s.name: s for s in sites(annotate(float_module((1, 4, 6, 6), body), config(**fields)))}
    assert {name: site.range for name, site in found.items() if site.range} == {"a": (-1.0, 5.0), "b": (-3.0, 3.0)}
    assert found["a"].layer == "b"


@pytest.mark.parametrize(
    "fields,expected",
    [
        ({"skip_conv_layers": [0]}, {"relu", "total"}),
        ({"skip_conv_layers": [0, 1]}, {"total"}),
        ({"overrides": {"b": {"precision": "float32"}}}, {"x", "total"}),
        ({"first_layer": "float32"}, {"relu", "total"}),
        ({"last_layer": "float32"}, {"x", "relu"}),
        ({"debug_enabled_ops": ["nn.conv2d"]}, {"x", "relu", "total"}),
    ],
)
def test_layers_that_stay_float(fields, expected):
    assert set(activations(residual, **fields)) == expected


def test_float16_layers_get_casts():
    module = annotate(float_module((1, 4, 6, 6), residual), config(overrides={"b": {"precision": "float16"}}))
    products = [b.value for b in bindings_of(module.ir["main"]) if op_name(b.value) == "nn.conv2d"]
    assert [str(call.args[0].ty.dtype) for call in products] == ["float32", "float16", "float32"]
    assert all(str(call.ty.dtype) == "float32" for call in products)
    assert "b.weight" not in {site.name for site in sites(module)}


def test_nothing_to_quantize():
    module = annotate(float_module((1, 4, 6, 6), residual), config(overrides={"*": {"precision": "float32"}}))
    with pytest.raises(QuantizationError, match="no tensor of this module is marked"):
        sites(module)


def test_pattern_of_no_layer():
    with pytest.raises(QuantizationError, match=r"'features\.\*' matches no layer; this model's layers are 'a', 'b'"):
        annotate(float_module((1, 4, 6, 6), residual), config(overrides={"features.*": {"precision": "float32"}}))


# ---- logarithms --------------------------------------------------------------------------------------------------


def spectrum(emit, x):
    """Filters, their power in bands, in decibels; then a network."""
    filtered = conv(emit, conv(emit, x, "earlier"), "filters")
    power = emit(relax.op.square(filtered), "power")
    bands = emit(relax.op.nn.conv2d(power, weight(4, 4, 1, 1)), "bands")
    level = emit(relax.op.log(emit(relax.op.maximum(bands, constant(np.float32(1e-9))))), "level")
    return conv(emit, emit(relax.op.subtract(level, emit(relax.op.mean(level))), "normalized"), "network")


def test_spectra_stay_in_float_up_to_the_filters():
    found = activations(spectrum)
    assert found == {"x": "input", "normalized": "input"}
    assert set(activations(spectrum, float_functions=())) > {*found, "power"}
    kept = activations(spectrum, overrides={"bands": {"precision": "int16"}})
    assert "power" in kept, "what the user says of a layer holds"


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_the_power_of_a_spectrum_stays_in_float_behind_filters_of_integers(precision):
    """Real and imaginary parts as the accumulators that they come from, squared and added in float."""

    def body(emit, x):
        parts = emit(relax.op.split(conv(emit, x, "filters"), 2, axis=1))
        real, imaginary = (emit(relax.TupleGetItem(parts, index)) for index in range(2))
        squares = emit(relax.op.multiply(real, real)), emit(relax.op.square(imaginary))
        total = emit(relax.op.sum(emit(relax.op.add(*squares), "sum"), [1], keepdims=True), "total")
        largest = emit(relax.op.maximum(total, emit(relax.op.add(*squares), "again")), "largest")
        bands = emit(relax.op.nn.conv2d(largest, weight(4, 2, 1, 1)), "bands")
        return conv(emit, emit(relax.op.log(bands), "level"), "network")

    found = activations(body, overrides={"filters": {"precision": precision}})
    assert found == {"x": "input", "level": "input"}


def test_filters_that_only_a_spectrum_keeps_in_float():
    module = float_module((1, 4, 6, 6), spectrum)
    assert float_filters(module, config()) == ["filters"]
    assert not float_filters(module, config(float_functions=()))
    for precision in ("float32", "int16"):
        assert not float_filters(module, config(overrides={"filt*": {"precision": precision}})), "the user says so"


def test_octaves_that_are_joined_stay_in_float_up_to_the_filters_that_halve_their_rate():
    def body(emit, x):
        halved = emit(relax.op.nn.conv2d(conv(emit, x, "earlier"), weight(4, 1, 3, 3), padding=1, groups=4), "halved")
        octaves = [conv(emit, one, name) for one, name in ((halved, "low"), (x, "high"))]
        loud = [emit(relax.op.sqrt(emit(relax.op.square(one)))) for one in octaves]
        joined = emit(relax.op.concat(loud, axis=1), "joined")
        level = emit(relax.op.log(emit(relax.op.multiply(joined, joined))), "level")
        return emit(relax.op.nn.conv2d(level, weight(4, 8, 1, 1)), "network")

    assert activations(body) == {"x": "input", "level": "input"}
    assert float_filters(float_module((1, 4, 6, 6), body), config()) == ["halved", "low", "high"]
    eight = activations(body, overrides={name: {"precision": "int8"} for name in ("halved", "low", "high")})
    assert "joined" not in eight, "the power stays in float"


def test_the_logarithm_of_a_softmax_keeps_no_product_in_float():
    def body(emit, x):
        scores = conv(emit, x, "scores")
        total = emit(relax.op.sum(emit(relax.op.exp(scores)), [1], keepdims=True))
        return emit(relax.op.subtract(scores, emit(relax.op.log(total))))

    assert activations(body)["x"] == "input"


# ---- divisions ---------------------------------------------------------------------------------------------------


def linear_attention(emit, x, together):
    """(q·KᵀV) / (q·Kᵀ1) with q, k ≥ 0; together: both as one product, as EfficientViT has them, with the reciprocal's
    product in the other form."""
    rng = np.random.default_rng(7)
    matrices = [constant(rng.normal(size=(8, 8)).astype(np.float32)) for _ in range(4)]
    q, k, v = (emit(relax.op.matmul(x, matrix), name) for name, matrix in zip("qkv", matrices, strict=False))
    q, k = (emit(relax.op.nn.relu(one)) for one in (q, k))
    turned = emit(relax.op.permute_dims(k, [0, 2, 1]))
    if together:
        padded = emit(relax.op.nn.pad(v, [0, 0, 0, 0, 0, 1], pad_value=1.0), "padded")
        both = emit(relax.op.matmul(q, emit(relax.op.matmul(turned, padded), "state")), "both")
        above = emit(relax.op.strided_slice(both, [2], [0], [8], [1]))
        below = emit(relax.op.strided_slice(both, [2], [8], [9], [1]))
        below = emit(relax.op.add(below, constant(np.float32(1e-12))))
        result = emit(relax.op.divide(above, below), "result")
    else:
        state = emit(relax.op.matmul(turned, v), "state")
        total = emit(relax.op.sum(turned, [2], keepdims=True), "total")
        below = emit(relax.op.add(emit(relax.op.matmul(q, total), "below"), constant(np.float32(1e-12))))
        inverse = emit(relax.op.divide(constant(np.float32(1)), below))
        result = emit(relax.op.multiply(emit(relax.op.matmul(q, state), "above"), inverse), "result")
    return emit(relax.op.matmul(result, matrices[3]), "project")


@pytest.mark.parametrize("together", [True, False])
def test_products_divided_by_products_of_the_same_rows_stay_float(together):
    found = set(activations(lambda emit, x: linear_attention(emit, x, together), (1, 6, 8)))
    assert "result" in found and not found & {"both", "above", "below", "state", "total"}
    kept = set(activations(lambda emit, x: linear_attention(emit, x, together), (1, 6, 8), float_functions=()))
    assert "state" in kept, "without the rule the products are quantized"


@pytest.mark.parametrize("together", [True, False])
def test_linear_attention_keeps_rows_of_every_size(together):
    """Rows of q that are smaller than others are as exact as those: with integers they are 0 / 0, or noise."""
    rng = np.random.default_rng(3)
    model = float_module((1, 6, 8), lambda emit, x: linear_attention(emit, x, together))
    data = [rng.normal(size=(1, 6, 8)).astype(np.float32) for _ in range(16)]

    def sqnr(**fields):
        found = quantize(model, dataset=data, config=config(calibrate_mode="minmax", **fields))
        want = np.stack([next(iter(Interpreter(model).run([x]).values())) for x in data]).astype(np.float64)
        with np.errstate(all="ignore"):
            got = np.stack([next(iter(Interpreter(found).run([x]).values())) for x in data])
            return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())

    best = sqnr()
    assert best > 25
    assert not sqnr(float_functions=("softmax", "gelu", "log")) > best - 6, "NaN, or much worse"


@pytest.mark.parametrize("function", ["silu", "softsign", "residual", "constant"])
def test_divisions_within_a_kernel_or_behind_other_functions_keep_no_product_in_float(function):
    def body(emit, x):
        y = emit(relax.op.matmul(x, weight(8, 8)), "y")
        if function == "silu":
            gate = emit(relax.op.reshape(emit(relax.op.matmul(x, weight(8, 8)), "gate"), [6, 8]))
            below = emit(relax.op.add(emit(relax.op.exp(gate)), constant(np.float32(1))))
            below = emit(relax.op.reshape(below, [1, 6, 8]))
        elif function == "residual":
            below = emit(relax.op.add(emit(relax.op.matmul(x, weight(8, 8)), "branch"), x))
            below = emit(relax.op.permute_dims(emit(relax.op.permute_dims(below, [0, 2, 1])), [0, 2, 1]))
        elif function == "softsign":
            below = emit(relax.op.add(emit(relax.op.abs(y)), constant(np.float32(1))))
        else:
            below = constant(np.float32(3))
        return emit(relax.op.matmul(emit(relax.op.divide(y, below), "divided"), weight(8, 8)))

    found = activations(body, (1, 6, 8))
    assert found["x"] == found["divided"] == "input"


# ---- statistics --------------------------------------------------------------------------------------------------


def pooled(emit, x, attentive=False):
    """Mean and deviation over time of what a layer computes, which a dense layer reads, as in networks for voices."""
    rng = np.random.default_rng(8)
    first, second, scores, last = (
        constant(rng.normal(size=shape).astype(np.float32)) for shape in ((8, 8), (8, 8), (8, 8), (16, 5))
    )
    y = emit(relax.op.nn.relu(emit(relax.op.matmul(emit(relax.op.nn.relu(emit(relax.op.matmul(x, first)))), second))))
    y = emit(relax.op.add(y, constant(np.full(8, 20, np.float32))), "y")  # the mean is much larger than the deviation
    if attentive:
        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(y, scores)), 1))
        mean, square = (emit(relax.op.multiply(weights, one)) for one in (y, emit(relax.op.multiply(y, y))))
        mean, square = (emit(relax.op.sum(one, [1]), name) for one, name in ((mean, "mean"), (square, "square")))
    else:
        mean = emit(relax.op.mean(y, [1]), "mean")
        turned = emit(relax.op.permute_dims(y, [0, 2, 1]))
        square = emit(relax.op.mean(emit(relax.op.multiply(turned, turned)), [2]), "square")
    variance = emit(relax.op.subtract(square, emit(relax.op.multiply(mean, mean))))
    deviation = emit(relax.op.sqrt(emit(relax.op.maximum(variance, constant(np.float32(1e-6))))), "deviation")
    return emit(relax.op.matmul(emit(relax.op.concat([mean, deviation], 1), "pooled"), last), "z")


@pytest.mark.parametrize("attentive", [False, True])
def test_statistics_stay_in_float(attentive):
    """Up to the sums' own data, which they read before these are rounded for a product."""
    model = float_module((1, 24, 8), lambda emit, x: pooled(emit, x, attentive))
    annotated = annotate(model, config())
    found = {site.name for site in sites(annotated) if site.role != "weight"}
    assert not found & {"mean", "square", "deviation"} and len(found) == (4 if attentive else 3)
    marked = {binding.var: binding.value for binding in bindings_of(annotated.ir["main"])}
    read = {arg for value in marked.values() if op_name(value) in ("multiply", "sum", "mean") for arg in value.args}
    assert not any(op_name(marked.get(arg)) == "qnn.observe" for arg in read)

    rng = np.random.default_rng(4)
    data = [rng.normal(size=(1, 24, 8)).astype(np.float32) * rng.uniform(0.5, 2) for _ in range(16)]

    def sqnr(**fields):
        found = quantize(model, dataset=data, config=config(calibrate_mode="minmax", **fields))
        want, got = (
            np.stack([next(iter(Interpreter(one).run([x]).values())) for x in data]).astype(np.float64)
            for one in (model, found)
        )
        return 10 * np.log10(np.square(want - want.mean(0)).sum() / np.square(got - want).sum())

    best = sqnr()
    assert best > 25 and sqnr(float_functions=("softmax", "gelu", "log")) < best - 6, best


def test_means_without_deviations_are_no_statistics():
    def body(emit, x):
        y = emit(relax.op.nn.relu(conv(emit, x, "a")))
        mean = emit(relax.op.mean(y, [2, 3], keepdims=True), "mean")
        return conv(emit, emit(relax.op.subtract(y, mean), "less"), "b")

    assert set(activations(body)) >= {"x", "less"}


# ---- the way to the outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_by_a_product", [False, True])
def test_heads_are_joined_in_float_unless_a_product_reads_them(read_by_a_product):
    def body(emit, x):
        shared = conv(emit, x, "shared")
        heads = [emit(relax.op.reshape(conv(emit, shared, name), [1, 4, 36])) for name in ("boxes", "classes")]
        joined = emit(relax.op.concat(heads, 1), "joined")
        decoded = emit(relax.op.sigmoid(joined), "decoded")
        return emit(relax.op.matmul(decoded, weight(36, 3))) if read_by_a_product else decoded

    behind = {"joined": "activation", "decoded": "input"} if read_by_a_product else {}
    assert activations(body) == {"x": "input", "shared": "input", **behind}
    assert set(activations(body, nbit_activation=8, dtype_activation="uint8")) > {"shared", "joined"}
