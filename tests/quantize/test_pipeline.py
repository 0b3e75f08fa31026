"""quantize and build in one call: stages, accuracy, exactness, tables, parameters, and what is refused."""

import numpy as np
import pytest
import tvm
from tvm import relax

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError, QuantizationWarning
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import CalibrationTable, QConfig, Range, qconfig, quantize, stages
from qnn_ext.quantize.analysis import fidelity

from .digits import NETWORKS, accuracy, calibration_images, held_out
from .digits import network as digits_network
from .networks import float_module
from .residual import DATA, residual_network

MINMAX = QConfig(calibrate_mode="minmax")


@pytest.mark.parametrize("name", NETWORKS)
def test_one_call(name):
    """Int8 within half a point of float, compiled exactly as interpreted."""
    module = digits_network(name)
    images, labels = held_out()
    integers = quantize(module, dataset=calibration_images())
    found = qnn_ext.build(integers)(images)
    assert accuracy(found, labels) >= accuracy(qnn_ext.build(module)(images), labels) - 0.005
    np.testing.assert_array_equal(found[:4], qnn_ext.Interpreter(integers)(images[:4]))
    assert integers.notes == ()
    names = [op_name(binding.value) for binding in bindings_of(integers.ir["main"])]
    assert not {"nn.conv2d", "matmul"} & set(names)


def test_every_long_stage_is_shown(network, monkeypatch, capsys):
    rich = pytest.importorskip("rich.progress", reason="needs the package rich")
    told = []
    monkeypatch.setattr(rich.Progress, "update", lambda bar, task, description, advance: told.append(description))
    stages(network, dataset=DATA, config=QConfig(balance=False), progress=True)
    assert told == ["factors of channels", "comparison of ranges", *["rounding of weights"] * 2, "biases"]
    assert not capsys.readouterr().out.strip(), "the standard output is for results"
    stages(network, dataset=DATA)
    assert len(told) == 5


def test_the_accuracy_of_the_result(network, capsys):
    """Against the float model, on data that were given; told at the end where progress is."""
    found = stages(network, dataset=DATA, config=MINMAX)
    assert found.accuracy == found.accuracy and found.accuracy.samples == min(64, len(DATA))
    exact, integers = (qnn_ext.build(module, num_threads=1) for module in (network, found.result))
    expected = fidelity(*(np.concatenate([model(x[None]) for x in DATA[:64]]) for model in (exact, integers)))
    (name,) = found.accuracy.outputs
    assert found.accuracy.outputs[name].sqnr == pytest.approx(expected.sqnr, abs=1e-6)
    assert found.accuracy.share_in_8_bits == coverage(found.result).share_in_8_bits == 1
    assert stages(network, table=found.table).accuracy is None
    skipped = QConfig(calibrate_mode="minmax", skip_conv_layers=[0])
    quantize(network, dataset=DATA, config=skipped, progress=True)
    assert f"{name} " in (told := capsys.readouterr().err) and "% of the multiply-accumulates in 8 bits" in told
    assert stages(network, dataset=DATA, config=skipped).accuracy.share_in_8_bits < 1


def test_stages_print_parse_and_run(network):
    found = stages(network, dataset=DATA, config=MINMAX)
    assert list(found) == ["fold", "annotate", "calibrate", "simulate", "realize"]
    assert found.result is found["realize"]
    float_result = qnn_ext.Interpreter(network)(DATA[:1])
    for name, module in found.items():
        script = module.script(show_meta=True)
        tvm.ir.assert_structural_equal(tvm.script.from_source(script), module.ir)
        result = qnn_ext.Interpreter(module)(DATA[:1])
        np.testing.assert_allclose(result, float_result, atol=1e-5 if name in list(found)[:3] else 0.1)
        np.testing.assert_allclose(qnn_ext.build(module, num_threads=1)(DATA[:1]), result, rtol=1e-5, atol=1e-5)
    low, high = float(found.table["x"].low), float(found.table["x"].high)
    assert f"high={high:.6}"[:9] in found["calibrate"].script()
    assert (low, high) == (DATA.min(), DATA.max())


def test_build_is_quantize_and_build(network):
    one = qnn_ext.build(network, dataset=DATA, qconfig=MINMAX)
    with qconfig(calibrate_mode="minmax"):
        two = qnn_ext.build(network, "native", dataset=DATA)
    three = qnn_ext.build(quantize(network, dataset=DATA, config=MINMAX))
    for x in DATA[:3]:
        np.testing.assert_array_equal(one(x[None]), three(x[None]))
        np.testing.assert_array_equal(two(x[None]), three(x[None]))


def test_build_never_quantizes_unasked(network):
    with qconfig(calibrate_mode="minmax"):
        engine = qnn_ext.build(network)
    np.testing.assert_array_equal(engine(DATA[:1]), qnn_ext.build(network)(DATA[:1]))


def test_the_target_of_build_chooses_the_dtype(network, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "qnn_ext.quantize.quantize", lambda module, params, dataset, config, table: chosen.append(config) or module
    )
    qnn_ext.build(network, "x86-64", dataset=DATA)
    qnn_ext.build(network, ["avx2", "x86-64"], dataset=DATA, qconfig=QConfig(target="x86-64"))
    qnn_ext.build(network, ["avx2", "x86-64"], dataset=DATA)
    assert [config.target for config in chosen] == ["x86-64", "x86-64", "avx2"]


def test_a_table_in_place_of_data(network, tmp_path):
    found = stages(network, dataset=DATA, config=MINMAX)
    path = tmp_path / "table.json"
    found.table.save(path)
    for table in (path, str(path), found.table):
        again = quantize(network, config=MINMAX, table=table)
        tvm.ir.assert_structural_equal(again.ir, found.result.ir)
    edited = found.table.with_ranges({"x": Range(-1.0, 1.0)})
    changed = quantize(network, config=MINMAX, table=edited)
    assert np.abs(qnn_ext.Interpreter(changed)(DATA[:1]) - qnn_ext.Interpreter(found.result)(DATA[:1])).max() > 0.01
    assert qnn_ext.build(network, table=path)(DATA[:1]).shape == (1, 5)


def test_tables_that_do_not_fit(network, tmp_path):
    table = stages(network, dataset=DATA, config=MINMAX).table
    other = residual_network(np.random.default_rng(4))
    with pytest.raises(QuantizationError, match="made for another model"):
        quantize(other, table=table)
    with pytest.raises(QuantizationError, match="unknown sites"):
        quantize(network, config=QConfig(skip_dense_layer=True), table=table)
    missing = CalibrationTable({name: found for name, found in table.items() if name != "x"})
    with pytest.raises(QuantizationError, match="no range for 'x'"):
        quantize(network, table=missing)
    with pytest.raises(QuantizationError, match="the range has 2 channels"):
        quantize(network, table=table.with_ranges({"x": Range([0.0, 1.0], [1.0, 2.0])}))
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(QuantizationError, match=r"table\.json: not a calibration table"):
        quantize(network, table=tmp_path / "table.json")


def with_weight_input() -> tuple[tvm.IRModule, np.ndarray]:
    """x · w as an IRModule with two inputs and one output that is not a tuple."""
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in (("x", (1, 8)), ("w", (8, 3))))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.matmul(x, w)))
        builder.emit_func_output(y)
    return builder.get(), np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def test_parameters_of_an_irmodule():
    mod, weight = with_weight_input()
    data = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    integers = quantize(mod, {"w": weight}, data)
    assert [spec.name for spec in integers.inputs] == ["x"]
    assert "qnn.dense" in integers.script()
    np.testing.assert_allclose(qnn_ext.build(integers)(data[:1]), data[:1] @ weight, atol=0.1)
    with pytest.raises(QuantizationError, match="no input 'v'; the inputs are 'x', 'w'"):
        quantize(mod, {"v": weight}, data)
    with pytest.raises(QuantizationError, match=r"'w' must be float32 \(8, 3\), found float32 \(3, 8\)"):
        quantize(mod, {"w": weight.T}, data)
    with pytest.raises(QuantizationError, match=r"params must be a dictionary.*found list; .* given as dataset="):
        quantize(mod, [{"x": row} for row in data])


def test_build_with_parameters_alone():
    mod, weight = with_weight_input()
    float_module_ = stages(mod, {"w": weight}, config=QConfig(calibrate_mode="global_scale"))["fold"]
    assert len(float_module_.inputs) == 1
    module = qnn_ext.QnnModule(
        mod,
        (qnn_ext.TensorSpec("x", (1, 8), "float32"), qnn_ext.TensorSpec("w", (8, 3), "float32")),
        (qnn_ext.TensorSpec("y", (1, 3), "float32"),),
    )
    x = np.ones((1, 8), np.float32)
    engine = qnn_ext.build(module, params={"w": weight})
    np.testing.assert_allclose(engine(x), x @ weight, rtol=1e-5)


def test_what_is_quantized_already(network):
    integers = quantize(network, dataset=DATA, config=MINMAX)
    with pytest.raises(QuantizationError, match=r"is already quantized: it has .* integer products"):
        quantize(integers, dataset=DATA)
    with pytest.raises(QuantizationError, match="already annotated"):
        quantize(stages(network, dataset=DATA, config=MINMAX)["annotate"], dataset=DATA)


def test_a_float_model_with_8_bit_inputs_is_quantized(rng):
    """A dequantize at the boundary is no product."""
    weight = rng.normal(size=(3, 8)).astype(np.float32)
    x = relax.Var("x", relax.TensorType((1, 8), "uint8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            real = builder.emit(qnn.dequantize(x, relax.const(np.float32(0.05)), relax.const(np.int32(128))))
            y = builder.emit(relax.op.matmul(real, relax.const(weight.T.copy())))
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    module = qnn_ext.QnnModule(
        builder.get(), (qnn_ext.TensorSpec("x", (1, 8), "uint8"),), (qnn_ext.TensorSpec("y", (1, 3), "float32"),)
    )
    data = rng.integers(0, 256, size=(16, 8)).astype(np.uint8)
    integers = quantize(module, dataset=data, config=MINMAX)
    assert coverage(integers).share == 1
    found = np.concatenate([qnn_ext.Interpreter(integers)(row[None]) for row in data])
    assert fidelity((data.astype(np.float32) - 128) * 0.05 @ weight.T, found).sqnr > 30


NAN = DATA.copy()
NAN[5, 0, 0, 0] = np.nan


@pytest.mark.parametrize(
    "dataset,message",
    [
        ([], "the data set is empty"),
        (DATA[:, :2], r"input 'x' must have shape \(N, 4, 6, 6\), found \(8, 2, 6, 6\)"),
        (NAN, "input 'x' holds 1 values that are NaN or infinite"),
        ([{"image": DATA}], "no input 'x'; found 'image'"),
        (DATA.astype(np.uint8), "must be float32, found uint8"),
    ],
)
def test_bad_data(network, dataset, message):
    with pytest.raises(QuantizationError, match=message):
        qnn_ext.build(network, dataset=dataset)


def test_no_data(network):
    with pytest.raises(QuantizationError, match="'kl_divergence' needs data: give a dataset or a calibration table"):
        quantize(network, config=QConfig(calibrate_mode="kl_divergence"))
    with pytest.warns(QuantizationWarning, match="global_scale"):
        quantize(network)


def test_layers_that_do_not_exist(network):
    with pytest.raises(QuantizationError, match=r"pattern 'block\*' matches no layer"):
        quantize(network, dataset=DATA, config=QConfig(overrides={"block*": {"precision": "float32"}}))
    with pytest.raises(QuantizationError, match="no convolution 2; this model has 2"):
        quantize(network, dataset=DATA, config=QConfig(skip_conv_layers=[2]))


def test_operators_that_do_not_exist(network):
    with pytest.raises(QuantizationError, match=r"debug_enabled_ops: 'nn\.conv4d' cannot be quantized; .* conv2d, "):
        quantize(network, dataset=DATA, config=QConfig(debug_enabled_ops=["nn.conv2d", "nn.conv4d"]))


def test_nothing_left_to_quantize(network):
    with pytest.raises(QuantizationError, match="keeps all of them in float"):
        quantize(network, dataset=DATA, config=QConfig(debug_enabled_ops=[]))


def test_activations_that_overflow():
    """NaN inside the network names its tensor."""
    weight = np.full((1, 4, 1, 1), 3e38, np.float32)

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, constant(weight)))
        return emit(relax.op.nn.conv2d(y, constant(np.ones((1, 1, 1, 1), np.float32))))

    with pytest.raises(QuantizationError, match=r"site 'lv'.*(NaN|infinit)"):
        quantize(float_module((1, 4, 6, 6), body), dataset=DATA, config=MINMAX)


def test_activations_that_are_constant():
    """A relu that is always zero, and a layer with constant output: quantized with a warning, and correct."""

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, constant(np.full((4, 4, 1, 1), 1e-3, np.float32))))
        y = emit(relax.op.nn.relu(emit(relax.op.add(y, constant(np.full((1, 4, 1, 1), -50, np.float32))))))
        y = emit(relax.op.nn.conv2d(y, constant(np.ones((2, 4, 1, 1), np.float32))))
        y = emit(relax.op.add(y, constant(np.full((1, 2, 1, 1), 2.5, np.float32))))
        return emit(relax.op.nn.conv2d(y, constant(np.ones((1, 2, 1, 1), np.float32))))

    with pytest.warns(QuantizationWarning, match="all values are zero"):
        module = quantize(float_module((1, 4, 6, 6), body), dataset=DATA, config=MINMAX)
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(DATA[:1]), np.full((1, 1, 6, 6), 5.0), rtol=0.01)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"qconfig": "kl_divergence"}, "must be a QConfig, found str"),
        ({"dataset": DATA, "table": {"x": (0, 1)}}, "must be a CalibrationTable or the path of one, found dict"),
    ],
)
def test_arguments_of_a_wrong_kind(network, arguments, message):
    with pytest.raises(QuantizationError, match=message):
        qnn_ext.build(network, **arguments)
    with pytest.raises(QuantizationError, match="found str: import files with from_onnx"):
        quantize("model.onnx")


def test_a_model_of_larger_batches():
    """Samples of any number are gathered to the model's batch of two, and read again for bias correction."""
    weight = np.random.default_rng(0).normal(size=(3, 4, 3, 3)).astype(np.float32)
    module = float_module((2, 4, 6, 6), lambda emit, x: emit(relax.op.nn.conv2d(x, constant(weight))))
    integers = quantize(module, dataset=(x for x in DATA), config=QConfig(bias_correction=True))
    again = quantize(module, dataset=[DATA[:3], DATA[3:]], config=QConfig(bias_correction=True))
    tvm.ir.assert_structural_equal(integers.ir, again.ir)
    expected = qnn_ext.Interpreter(module)(DATA[:2])
    np.testing.assert_allclose(qnn_ext.Interpreter(integers)(DATA[:2]), expected, atol=0.2)
