"""Float modules with weights in groups: the operators they become, their values by hand, and what each method gains."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule, State, TensorSpec
from qnn_ext.op.base import constant, constant_value
from qnn_ext.passes.bodies import every_binding
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize, stages
from qnn_ext.quantize.grouped.fitting import fitted
from qnn_ext.quantize.grouped.grid import GroupFormat
from tests.quantize.networks import float_module
from tests.quantize.test_loops import network as recurrent

DEPTH, HIDDEN, UNITS = 48, 40, 8


@pytest.fixture
def weights(rng):
    one, two = rng.normal(size=(DEPTH, HIDDEN)) / 7, rng.normal(size=(HIDDEN, UNITS)) / 6
    return one.astype(np.float32), two.astype(np.float32)


def two_layers(weights, rows=3):
    """relu(x · W₁) · W₂"""

    def body(emit, x):
        hidden = emit(relax.op.nn.relu(emit(relax.op.matmul(x, constant(weights[0])))))
        return emit(relax.op.matmul(hidden, constant(weights[1])))

    return float_module((rows, DEPTH), body)


def operators(module):
    return [op_name(binding.value) for binding in bindings_of(module.ir["main"])]


def names(module):
    return [str(binding.var.name) for binding in bindings_of(module.ir["main"]) if op_name(binding.value) == "matmul"]


def real(weight, *form):
    """The weight that the integers of the nearest values stand for."""
    return fitted(weight.T, GroupFormat(*form)).values.T


def by_row(x):
    """Rows of x as int8, dequantized."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(x / scale).clip(-128, 127) * scale


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(8, None), (4, 16), (2, 20)])
def test_weight_only(bits, size, symmetric, weights, rng):
    module = two_layers(weights)
    config = QConfig(weight_only=True, nbit_weight=bits, group_size=size, weight_symmetric=symmetric)
    found = quantize(module, config=config)
    assert operators(found).count("qnn.blockwise_dense") == 2 and "matmul" not in operators(found)
    x = rng.normal(size=(3, DEPTH)).astype(np.float32)
    one, two = (real(weight, bits, size or 100, symmetric) for weight in weights)
    expected = np.maximum(x @ one, 0) @ two
    np.testing.assert_allclose(Interpreter(found)(x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=1)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "size"), [(8, 65536), (4, 16)])
def test_dynamic(bits, size, weights, rng):
    """Activations as int8 with a scale for each row, one of them of zeros; kernels equal the interpreter's bits."""
    module = two_layers(weights)
    found = quantize(module, config=QConfig(dynamic=True, nbit_weight=bits, group_size=size))
    assert operators(found).count("qnn.blockwise_dense_int8") == 2
    x = rng.normal(size=(3, DEPTH)).astype(np.float32) * np.array([[1], [0], [100]], np.float32)
    one, two = (real(weight, bits, size) for weight in weights)
    expected = by_row(np.maximum(by_row(x) @ one, 0)) @ two
    results = Interpreter(found)(x)
    for row, values in zip(results, expected, strict=True):
        np.testing.assert_allclose(row, values, atol=0.02 * max(np.abs(values).max(), 1e-6))
    np.testing.assert_array_equal(qnn_ext.build(found, num_threads=1)(x), results)


def test_a_tensor_that_several_products_read_is_quantized_once(weights):
    def body(emit, x):
        one, two = (emit(relax.op.matmul(x, constant(weights[0] * factor))) for factor in (1, 2))
        return emit(relax.op.add(one, two))

    found = quantize(float_module((3, DEPTH), body), config=QConfig(dynamic=True, group_size=16))
    assert operators(found).count("qnn.quantize") == 1


def test_rows_of_several_dimensions(weights, rng):
    def body(emit, x):
        return emit(relax.op.matmul(x, constant(weights[0])))

    module = float_module((2, 3, DEPTH), body)
    x = rng.normal(size=(2, 3, DEPTH)).astype(np.float32)
    for config in (QConfig(dynamic=True, group_size=16), QConfig(weight_only=True)):
        found = Interpreter(quantize(module, config=config))(x)
        np.testing.assert_allclose(found, x @ weights[0], atol=0.1)


def test_mixed_by_layer(weights, rng):
    module = two_layers(weights)
    first, second = names(module)
    overrides = {"*": {"nbit_weight": 4, "group_size": 16}, second: {"nbit_weight": 8, "weight_symmetric": False}}
    found = quantize(module, config=QConfig(weight_only=True, overrides=overrides))
    products = [binding.value for binding in bindings_of(found.ir["main"]) if "dense" in op_name(binding.value)]
    assert [str(call.attrs["weight_dtype"]) for call in products] == ["int4", "uint8"]
    skipped = quantize(module, config=QConfig(weight_only=True, overrides={first: {"precision": "float32"}}))
    assert operators(skipped).count("matmul") == 1 and operators(skipped).count("qnn.blockwise_dense") == 1
    assert [note.reason for note in skipped.notes] == ["the qconfig keeps this layer in float"]
    last = quantize(module, config=QConfig(weight_only=True, last_layer="float32"))
    assert operators(last).count("matmul") == 1


def embedding_and_head(rng):
    """Rows of a table, and the same table as the head: tied weights."""
    table = rng.normal(size=(50, 24)).astype(np.float32)
    tokens = relax.Var("tokens", relax.TensorType((1, 4), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [tokens]):
        with builder.dataflow():
            rows = builder.emit(relax.op.take(constant(table), tokens, 0, mode="clip"), name_hint="embedding")
            head = builder.emit(relax.op.permute_dims(constant(table)))
            logits = builder.emit(relax.op.matmul(builder.emit(relax.op.tanh(rows)), head), name_hint="head")
            result = builder.emit_output(relax.Tuple([logits]))
        builder.emit_func_output(result)
    inputs, outputs = TensorSpec("tokens", (1, 4), "int64"), TensorSpec("logits", (1, 4, 50), "float32")
    return QnnModule(builder.get(), (inputs,), (outputs,)), table


@pytest.mark.parametrize("embeddings", [True, False])
def test_embeddings_and_head(embeddings, rng):
    module, table = embedding_and_head(rng)
    config = QConfig(weight_only=True, nbit_weight=4, group_size=8, embeddings=embeddings)
    found = quantize(module, config=config)
    assert ("qnn.blockwise_dequantize" in operators(found)) == embeddings
    tokens = np.array([[0, 49, 7, 7]])
    packed = fitted(table, GroupFormat(4, 8)).values
    expected = np.tanh((packed if embeddings else table)[tokens]) @ packed.T
    np.testing.assert_allclose(Interpreter(found)(tokens), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=1)(tokens), expected, rtol=1e-4, atol=1e-4)


def test_an_embedding_by_name(rng):
    module, _ = embedding_and_head(rng)
    overrides = {"embedding": {"nbit_weight": 8}}
    found = quantize(module, config=QConfig(weight_only=True, nbit_weight=4, embeddings=True, overrides=overrides))
    calls = {op_name(binding.value): binding.value for binding in bindings_of(found.ir["main"])}
    assert str(calls["qnn.blockwise_dequantize"].attrs["weight_dtype"]) == "int8"
    assert str(calls["qnn.blockwise_dense"].attrs["weight_dtype"]) == "int4"
    with pytest.raises(QuantizationError, match="pattern 'embedding' matches no layer"):
        quantize(module, config=QConfig(weight_only=True, overrides=overrides))


def test_the_file_has_the_packed_weights(rng, tmp_path):
    weight = rng.normal(size=(256, 512)).astype(np.float32)
    module = float_module((1, 256), lambda emit, x: emit(relax.op.matmul(x, constant(weight))))
    sizes = {}
    for bits in (4, 8):
        config = QConfig(weight_only=True, nbit_weight=bits, group_size=32, group_scales="float16")
        path = tmp_path / f"{bits}.qnn"
        qnn_ext.build(quantize(module, config=config), num_threads=1).save(path)
        sizes[bits] = path.stat().st_size
        x = rng.normal(size=(1, 256)).astype(np.float32)
        np.testing.assert_allclose(qnn_ext.load(path)(x), x @ weight, atol=0.3 if bits == 8 else 8)
    assert sizes[8] - sizes[4] == pytest.approx(weight.size // 2, rel=0.02)
    assert sizes[4] < weight.nbytes // 4


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_products_in_loops(mode, rng):
    model = recurrent(rng)
    found = quantize(model, config=QConfig(group_size=4, **mode))
    assert sum("dense" in op_name(binding.value) for binding, _ in every_binding(found.ir)) == 3
    x = rng.normal(size=(5, 8)).astype(np.float32)
    expected = Interpreter(model)(x)
    for run in (Interpreter(found), qnn_ext.build(found, num_threads=1)):
        assert 0 < np.abs(run(x) - expected).max() < 0.05


# ---- methods with data -------------------------------------------------------------------------------------------


def error(module, config, data, unseen):
    """The squared error of the quantized module on data that it was not made with, relative to the float module's."""
    found = Interpreter(quantize(module, dataset=data, config=config))
    exact = Interpreter(module)
    pairs = [(exact(x), found(x)) for x in unseen]
    return sum(np.square(one - two).sum() for one, two in pairs) / sum(np.square(one).sum() for one, _ in pairs)


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_gptq_is_better_than_the_nearest(mode, weights, rng):
    mixing = rng.normal(size=(10, DEPTH))
    data = [(rng.normal(size=(3, 10)) @ mixing).astype(np.float32) for _ in range(60)]
    config = QConfig(nbit_weight=4, group_size=16, **mode)
    nearest, found = (
        error(two_layers(weights), replace(config, weight_rounding=rounding), data[:40], data[40:])
        for rounding in ("nearest", "gptq")
    )
    assert found < 0.6 * nearest


def normalized(weights, gamma):
    """A layer normalization in front of two products that read it."""

    def body(emit, x):
        y = emit(relax.op.nn.layer_norm(x, constant(gamma), constant(np.zeros_like(gamma)), axes=[-1]))
        one, two = (emit(relax.op.matmul(y, constant(weight))) for weight in (weights[0], weights[0][:, ::2]))
        return emit(relax.op.concat([one, two], -1))

    return float_module((3, DEPTH), body)


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_awq_is_better_than_the_nearest(mode, weights, rng):
    """A few channels are much larger than the others: their weights are the ones that count."""
    gamma = np.where(np.arange(DEPTH) % 16 == 3, 30, 1).astype(np.float32)
    data = [rng.normal(size=(3, DEPTH)).astype(np.float32) for _ in range(20)]
    config = QConfig(nbit_weight=4, group_size=DEPTH, **mode)
    module = normalized(weights, gamma)
    nearest, found = (error(module, replace(config, smooth=smooth), data[:10], data[10:]) for smooth in (None, "awq"))
    assert found < 0.7 * nearest


def test_awq_changes_nothing_but_the_rounding(weights, rng):
    """With 8 bits the module still computes the float module's function."""
    gamma = np.where(np.arange(DEPTH) % 16 == 3, 30, 1).astype(np.float32)
    data = [rng.normal(size=(3, DEPTH)).astype(np.float32) for _ in range(5)]
    module = normalized(weights, gamma)
    config = QConfig(weight_only=True, smooth="awq", weight_rounding="gptq")
    assert error(module, config, data, data) < 1e-4


def with_state(weights):
    """state' = tanh(x · W₁ + state), y = state' · W₂: what the second product reads depends on the batches before."""
    x = relax.Var("x", relax.TensorType((1, DEPTH), "float32"))
    state = relax.Var("state", relax.TensorType((1, HIDDEN), "float32"))
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [x, state], attrs={"num_input": 1}):
        with builder.dataflow():
            new = emit(relax.op.tanh(emit(relax.op.add(emit(relax.op.matmul(x, constant(weights[0]))), state))))
            y = emit(relax.op.matmul(new, constant(weights[1])))
            result = builder.emit_output(relax.Tuple([y, new]))
        builder.emit_func_output(result)
    return QnnModule(
        builder.get(),
        (TensorSpec("x", (1, DEPTH), "float32"),),
        (TensorSpec("y", (1, UNITS), "float32"),),
        states=(State("state", np.zeros((1, HIDDEN), np.float32)),),
    )


def test_data_of_a_model_with_states_are_a_sequence(weights, rng):
    """GPTQ's integers are those of the data that the states lead to: the same as with these data given by hand."""
    module = with_state(weights)
    data = [np.full((1, DEPTH), value, np.float32) * rng.normal(size=(1, DEPTH)).astype(np.float32) for value in (3, 0)]
    config = QConfig(weight_only=True, nbit_weight=4, group_size=8, weight_rounding="gptq")
    found = quantize(module, dataset=data, config=config)
    hidden, rows = np.zeros((1, HIDDEN)), []
    for x in data:
        hidden = np.tanh(x.astype(np.float64) @ weights[0] + hidden)
        rows.append(hidden[0])
    moment = np.stack(rows).T @ np.stack(rows)
    expected = fitted(weights[1].T, GroupFormat(4, 8), "max", "gptq", moment)
    calls = [binding.value for binding in bindings_of(found.ir["main"]) if "dense" in op_name(binding.value)]
    packed = constant_value(calls[1].args[1])
    assert np.mean(packed == expected.grid.stored(expected.integers)[0]) > 0.98


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"weight_only": True, "dynamic": True}, "choose one"),
        ({"group_size": 32}, "group_size is for weights in groups: give weight_only=True"),
        ({"weight_scale": "hqq"}, "weight_scale='hqq' is for weights in groups"),
        ({"embeddings": True, "dynamic": True}, "embeddings is for weights in groups"),
        ({"smooth": "awq"}, "smooth='awq' is for weights in groups"),
        ({"weight_only": True, "nbit_weight": 3}, "2, 4 or 8 bits, but nbit_weight is 3"),
        (
            {"weight_only": True, "weight_rounding": "adaround"},
            "weight_only=True cannot be combined with weight_roundi",
        ),
        ({"dynamic": True, "group_size": 8, "bias_correction": True}, "group_size cannot be combined with bias_corr"),
        ({"weight_only": True, "last_layer": "int16"}, "no precisions but 'int8' and 'float32'"),
        ({"weight_only": True, "overrides": {"*": {"precision": "bfloat16"}}}, "no precisions but"),
        ({"weight_only": True, "group_size": 0}, "group_size must be None or a whole number from 1 to 65536, found 0"),
        ({"weight_only": True, "group_size": 2.5}, "group_size must be None or a whole number"),
        ({"weight_only": True, "overrides": {"*": {"group_size": "8"}}}, "group_size.* must be None or a whole number"),
        ({"weight_only": True, "group_scales": "int8"}, "group_scales must be one of 'float32', 'float16', 'bfloat16'"),
    ],
)
def test_contradictions(settings, found):
    with pytest.raises(QuantizationError, match=found):
        QConfig(**settings)


@pytest.mark.parametrize("needs", [{"weight_rounding": "gptq"}, {"smooth": "awq"}])
def test_methods_that_need_data(needs, weights):
    with pytest.raises(QuantizationError, match="needs data: give a dataset"):
        quantize(two_layers(weights), config=QConfig(weight_only=True, **needs))


def test_nothing_to_quantize(weights):
    module = float_module((2, 3), lambda emit, x: emit(relax.op.tanh(x)))
    with pytest.raises(
        QuantizationError, match="has no product with constant weights that the configuration quantizes in groups"
    ):
        quantize(module, config=QConfig(weight_only=True))


def test_weights_and_data_that_are_not_finite(weights):
    bad = weights[0].copy()
    bad[3, 4] = np.nan
    with pytest.raises(QuantizationError, match=r"layer '.*': the weights are NaN or infinite"):
        quantize(two_layers((bad, weights[1])), config=QConfig(weight_only=True))
    huge = [np.full((3, DEPTH), 3e38, np.float32)]
    config = QConfig(weight_only=True, weight_rounding="gptq")
    with pytest.raises(QuantizationError, match="NaN, infinite or too large on the data"):
        quantize(two_layers(weights), dataset=huge, config=config)


def test_it_is_not_quantized_twice(weights):
    found = quantize(two_layers(weights), config=QConfig(dynamic=True, group_size=16))
    with pytest.raises(QuantizationError, match="already quantized"):
        quantize(found, config=QConfig(weight_only=True))


def test_stages(weights):
    done = stages(two_layers(weights), config=QConfig(weight_only=True))
    assert list(done) == ["fold", "realize"] and not len(done.table)
