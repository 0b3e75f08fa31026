"""relay.frontend and relay.quantize: the flows of the deploy tutorials, on the bundled models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import qnn_ext
from qnn_ext import quantize as today
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.tvm import IRModule, cpu, ir, nd, relay, transform
from qnn_ext.compat.tvm.contrib import graph_executor
from qnn_ext.errors import InputError, QuantizationError, QuantizationWarning, ShapeError

DATA = Path(qnn_ext.__file__).parent / "data"
rng = np.random.default_rng(11)
TARGET = "llvm -mcpu=haswell"


def run(mod: IRModule, params: dict, name: str, value: np.ndarray) -> np.ndarray:
    """As in deploy_prequantized.py."""
    with transform.PassContext(opt_level=3):
        lib = relay.build(mod, target=TARGET, params=params)
    module = graph_executor.GraphModule(lib["default"](cpu(0)))
    module.set_input(name, value)
    module.run()
    return module.get_output(0).numpy()


# ---- deploy_prequantized -----------------------------------------------------------------------------------------


def test_deploy_prequantized_tflite():
    tflite = pytest.importorskip("tflite")
    content = (DATA / "digits_cnn_int8.tflite").read_bytes()
    model = tflite.Model.GetRootAsModel(content, 0)
    (spec,) = qnn_ext.from_tflite(content).inputs
    image = rng.integers(-128, 128, spec.shape).astype(np.int8)
    mod, params = relay.frontend.from_tflite(model, {spec.name: spec.shape}, {spec.name: spec.dtype})
    assert params == {}
    expected = qnn_ext.Interpreter(qnn_ext.from_tflite(content))(image)
    np.testing.assert_array_equal(run(mod, params, spec.name, image), expected)
    with pytest.raises(InputError, match="is int8 in this model, not uint8"):
        relay.frontend.from_tflite(model, dtype_dict={spec.name: "uint8"})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("source", ["TorchScript", "ExportedProgram"])
def test_deploy_prequantized_pytorch(source):
    """The output of the framework, under an input name of the script's own choice."""
    torch = pytest.importorskip("torch")
    shape = (1, 1, 8, 8)
    if source == "TorchScript":
        model = torch.jit.load(DATA / "digits_cnn_eager.pt").eval()
    else:
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
        model = torch.export.export(network.eval(), (torch.zeros(shape),))
    image = rng.normal(size=shape).astype(np.float32)
    mod, params = relay.frontend.from_pytorch(model, [("my input", (shape, "float32"))])
    assert mod["main"].params[0].name_hint == "my input"
    expected = qnn_ext.from_pytorch(model, shapes=[shape]) if source == "TorchScript" else qnn_ext.from_pytorch(model)
    engine = qnn_ext.build(expected, {"kind": "llvm", "mcpu": "haswell"})
    np.testing.assert_array_equal(run(mod, params, "my input", image), engine(image))


def test_pytorch_refusals():
    torch = pytest.importorskip("torch")
    model = torch.jit.load(DATA / "digits_cnn_eager.pt").eval()
    with pytest.raises(ShapeError, match="must be a list of"):
        relay.frontend.from_pytorch(model, {"x": (1, 1, 8, 8)})
    with pytest.raises(NotHonouredError, match="custom_convert_map"):
        relay.frontend.from_pytorch(model, [("x", (1, 1, 8, 8))], {"aten::add": None})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ["HybridBlock", "path", "Symbol"])
def test_from_mxnet(form, monkeypatch):
    """A Symbol is recognized by `tojson`, a block by `collect_params`; MXNet itself is not installable any more."""
    text = (DATA / "digits_mxnet-symbol.json").read_text()
    arrays = qnn_ext.frontends.mxnet.reader.read_params(DATA / "digits_mxnet-0000.params")
    params = {name: SimpleNamespace(asnumpy=lambda value=value: value) for name, value in arrays.items()}
    symbol = SimpleNamespace(tojson=lambda: text)
    source, given = {"path": DATA / "digits_mxnet-symbol.json", "Symbol": symbol}.get(form), {"arg_params": params}
    if form == "HybridBlock":
        fake = SimpleNamespace(sym=SimpleNamespace(Variable=lambda name: name))
        monkeypatch.setitem(__import__("sys").modules, "mxnet", fake)
        source, given = _block(symbol, params), {}
    mod, _ = relay.frontend.from_mxnet(source, {"data": (1, 1, 8, 8)}, **given)
    expected = qnn_ext.from_mxnet(text, arrays, {"data": (1, 1, 8, 8)})
    image = rng.normal(size=(1, 1, 8, 8)).astype(np.float32)
    found = qnn_ext.Interpreter(mod.model())(image)
    np.testing.assert_array_equal(found, qnn_ext.Interpreter(expected)(image))


def _block(symbol, params):
    class Block:
        def __call__(self, *inputs):
            assert inputs == ("data",)
            return symbol

        def collect_params(self):
            return {name: SimpleNamespace(data=lambda value=value: value) for name, value in params.items()}

    return Block()


def test_from_onnx():
    onnx = pytest.importorskip("onnx")
    model = onnx.load(DATA / "digits_cnn_qdq.onnx")
    (spec,) = qnn_ext.from_onnx(model).inputs
    mod, _ = relay.frontend.from_onnx(model, {spec.name: list(spec.shape)}, freeze_params=True)
    image = rng.normal(size=spec.shape).astype(np.float32)
    expected = qnn_ext.Interpreter(qnn_ext.from_onnx(model))(image)
    np.testing.assert_array_equal(qnn_ext.Interpreter(mod.model())(image), expected)
    with pytest.raises(InputError, match="is float32 in this model, not uint8"):
        relay.frontend.from_onnx(model, dtype={spec.name: "uint8"})


def test_from_onnx_open_batch():
    """relay.Any in a shape stands for batches of any size."""
    onnx = pytest.importorskip("onnx")
    shape = [2, 4]
    given, found = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "net", [given], [found])
    mod, params = relay.frontend.from_onnx(onnx.helper.make_model(graph), {"x": (relay.Any(), 4)})
    values = rng.normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(mod, params, "x", values), np.maximum(values, 0))


# ---- deploy_quantized --------------------------------------------------------------------------------------------


def images(count: int):
    """As the tutorial's `calibrate_dataset`: a generator of dicts."""
    with np.load(DATA / "digits_calibration.npz") as file:
        (name,) = file.files
        for image in file[name][:count]:
            yield {name: nd.array(image[None])}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["kl_divergence", "percentile", "global_scale"])
def test_deploy_quantized(mode):
    pytest.importorskip("onnx")
    mod, params = relay.frontend.from_onnx(str(DATA / "digits_cnn_float32.onnx"))
    fields = {"global_scale": 8.0} if mode == "global_scale" else {"weight_scale": "max"}
    with relay.quantize.qconfig(calibrate_mode=mode, skip_conv_layers=None, **fields):
        quantized = relay.quantize.quantize(mod, params, dataset=None if mode == "global_scale" else images(16))
    extra = {"percentile": 99.999} if mode == "percentile" else {}
    config = today.QConfig.relay(calibrate_mode=mode, skip_conv_layers=None, **fields, **extra)
    dataset = None if mode == "global_scale" else [{k: v.numpy() for k, v in sample.items()} for sample in images(16)]
    expected = today.quantize(mod.model(), dataset=dataset, config=config)
    sample = [value.numpy() for value in next(images(1)).values()]
    result = relay.create_executor("vm", quantized, cpu(), TARGET).evaluate()(*sample).numpy()
    np.testing.assert_array_equal(result, qnn_ext.build(expected, {"kind": "llvm", "mcpu": "haswell"})(*sample))
    assert "qnn.conv2d" in quantized.astext()


def test_quantized_expressions():
    """A float network written in Relay, with weights as parameters and a batch normalization that is folded."""
    x = relay.var("x", shape=(1, 3, 6, 6))
    y = relay.nn.conv2d(x, relay.var("w", shape=(4, 3, 3, 3)), padding=(1, 1), channels=4, kernel_size=(3, 3))
    statistics = [relay.var(name, shape=(4,)) for name in ("gamma", "beta", "mean", "var")]
    z = relay.nn.relu(relay.nn.batch_norm(y, *statistics)[0])
    params = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        **{name: rng.uniform(0.5, 1, 4).astype(np.float32) for name in ("gamma", "beta", "mean", "var")},
    }
    mod = relay.quantize.prerequisite_optimize(IRModule.from_expr(z), params)
    assert [param.name_hint for param in mod["main"].params] == ["x"]
    data = rng.normal(size=(1, 3, 6, 6)).astype(np.float32)
    with relay.quantize.qconfig(calibrate_mode="percentile", weight_scale="max", skip_conv_layers=None):
        quantized = relay.quantize.quantize(IRModule.from_expr(z), params, [{"x": data}])
    assert "R.nn.batch_norm" not in quantized.astext() and "qnn.conv2d" in quantized.astext()
    exact, found = (qnn_ext.Interpreter(one.model())(data) for one in (mod, quantized))
    np.testing.assert_allclose(found, exact, atol=0.03 * np.abs(exact).max())


def test_qconfig():
    """Relay's defaults, its 15 fields as attributes, entered twice and left in order."""
    config = relay.quantize.qconfig(nbit_weight=4, skip_conv_layers=[0, 2])
    assert (config.nbit_weight, config.skip_conv_layers, config.skip_dense_layer) == (4, (0, 2), True)
    assert (config.global_scale, config.weight_scale, config.rounding) == (8.0, "power2", "UPWARD")
    default = relay.quantize.current_qconfig()
    assert (default.nbit_weight, default.calibrate_mode, default.do_simulation) == (8, "global_scale", False)
    with config as outer:
        assert outer is config
        with relay.quantize.qconfig(global_scale=4.0), config:
            assert relay.quantize.current_qconfig().nbit_weight == 4
        assert relay.quantize.current_qconfig().nbit_weight == 4
    assert relay.quantize.current_qconfig().nbit_weight == 8
    with pytest.warns(QuantizationWarning, match="there is no field 'nbits', it is ignored"):
        relay.quantize.qconfig(nbits=8)
    assert config.get_nbit_by_kind(relay.quantize.QAnnotateKind.WEIGHT) == 4
    assert config.get_dtype_by_kind(relay.quantize.QAnnotateKind.ACTIVATION) == "int32"
    with pytest.raises(AttributeError, match="where the configuration is made"):
        config.nbit_weight = 8
    with pytest.raises(AttributeError, match=r"qnn_ext\.quantize\.stages"):
        relay.quantize.collect_stats  # noqa: B018


def convolution(**options) -> relay.Expr:
    """Of `data`, with a weight whose shape follows from the data."""
    data = relay.var("data", shape=(1, 4, 8, 8))
    return relay.nn.conv2d(data, relay.var("weight"), kernel_size=(3, 3), padding=(1, 1), channels=8, **options)


def workload(expr: relay.Expr) -> tuple[IRModule, dict]:
    return relay.testing.create_workload(relay.Function(relay.analysis.free_vars(expr), expr))


def test_stages():
    """Each stage is a pass of the script's own pipeline; together they are `quantize`."""
    mod, params = workload(relay.nn.relu(convolution()))
    dataset = [{"data": rng.normal(size=(1, 4, 8, 8))} for _ in range(3)]  # float64, as Relay's executor took it
    with relay.quantize.qconfig(calibrate_mode="kl_divergence", skip_conv_layers=None):
        calibrate = transform.module_pass(relay.quantize.calibrate(dataset), opt_level=1, name="QuantizeCalibrate")
        first = [relay.quantize.partition(), relay.quantize.annotate(), calibrate, relay.transform.InferType()]
        with relay.quantize.quantize_context():
            found = transform.Sequential([*first, relay.quantize.realize()])(
                relay.quantize.prerequisite_optimize(mod, params)
            )
        ir.assert_structural_equal(found, relay.quantize.quantize(mod, params, dataset))
        with pytest.raises(QuantizationError, match=r"realize takes a module that relay\.quantize\.calibrate"):
            relay.quantize.realize()(mod)
    with relay.quantize.qconfig(equalize=True), pytest.raises(QuantizationError, match="equalize takes all stages"):
        relay.quantize.partition()(mod)
    with pytest.raises(ValueError, match="StructuralEqual check failed"):
        ir.assert_structural_equal(found, mod)


def test_thresholds():
    """relay.quantize.kl_divergence: outliers are left out."""
    values = np.append(rng.normal(size=20_000), 100.0)
    assert 2 < relay.quantize.kl_divergence._find_scale_by_kl(values) < 20
    assert 2.4 < relay.quantize._calibrate._find_scale_by_percentile(values, 0.99) < 2.7


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", ["product with a run-time tensor", "batch_matmul", "large weights", "add of an input"])
def test_quantized_graphs(case):
    """Graphs that Relay's quantization once failed on: built, and close to the float model."""
    float_data = relay.var("data", shape=(1, 4, 64) if case == "batch_matmul" else (1, 8, 1, 1))
    result = {
        "product with a run-time tensor": lambda: relay.nn.relu(convolution()) * relay.sigmoid(float_data),
        "batch_matmul": lambda: relay.nn.batch_matmul(
            relay.reshape(relay.nn.batch_flatten(convolution()), [1, 8, 64]), relay.sigmoid(float_data)
        ),
        "large weights": lambda: relay.nn.relu(convolution()),
        "add of an input": lambda: relay.nn.global_avg_pool2d(relay.add(float_data, convolution())),
    }[case]()
    mod, params = workload(result)
    if case == "large weights":
        params = {name: nd.array(256 * value.numpy()) for name, value in params.items()}
    specs = mod.model(params).inputs
    data = {spec.name: rng.uniform(size=spec.shape).astype(np.float32) for spec in specs}
    with relay.quantize.qconfig(calibrate_mode="percentile", skip_conv_layers=[], weight_scale="max"):
        quantized = relay.quantize.quantize(mod, params, [data])
    found = relay.build(quantized, TARGET, params=params).engine.run(data)
    (exact,) = qnn_ext.Interpreter(mod.model(params)).run(data).values()
    np.testing.assert_allclose(*found.values(), exact, atol=0.05 * np.abs(exact).max())
    assert "qnn." in quantized.astext()


# ---- MXNet's ranges ----------------------------------------------------------------------------------------------


def test_mxnet_ranges():
    """relay.frontend.mxnet_qnn_op_utils: 255.5 or 127.5 steps from zero to the largest magnitude."""
    utils = relay.frontend.mxnet_qnn_op_utils
    assert utils.get_mkldnn_int8_scale(-51.0, 10.0) == 0.4 and utils.get_mkldnn_uint8_scale(0.0, 51.1) == 0.2
    x = relay.var("x", shape=(4,), dtype="uint8")
    run = relay.create_executor("graph", IRModule.from_expr(utils.dequantize_mxnet_min_max(x, 0, 51.1, "uint8")), cpu())
    np.testing.assert_allclose(run.evaluate()(np.array([0, 1, 5, 255], np.uint8)).numpy(), [0, 0.2, 1, 51], rtol=1e-6)
    quantized, scale, zero_point = utils.quantize_mxnet_min_max(relay.var("y", shape=(3,)), -51.0, 10.0)
    assert (scale, zero_point) == (0.4, 0)
    run = relay.create_executor("graph", IRModule.from_expr(quantized), cpu())
    assert run.evaluate()(np.array([-51, 0.5, 10], np.float32)).numpy().tolist() == [-128, 1, 25]
    scales = nd.array(np.array([0.5, 0.6]))
    bias = utils.quantize_conv_bias_mkldnn_from_var(relay.var("b", shape=(2,)), scales)
    assert (bias.op.name, bias.attrs.axis, bias.attrs.out_dtype) == ("qnn.quantize", 0, "int32")
    assert bias.args[1].data == scales


def test_all_layers_skipped():
    """As in Relay, a model of which the qconfig keeps every layer in float is still a model that can be built."""
    data, weight = relay.var("data", shape=(1, 2, 6, 6)), relay.var("weight", shape=(2, 2, 3, 3))
    mod, params = relay.testing.create_workload(relay.nn.conv2d(data, weight, channels=2, kernel_size=(3, 3)))
    with (
        relay.quantize.qconfig(skip_conv_layers=[0]),
        pytest.warns(QuantizationWarning, match="keeps all of them in float: it stays as it is"),
    ):
        quantized = relay.quantize.quantize(mod, params)
    image = rng.normal(size=(1, 2, 6, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(quantized, {}, "data", image), run(mod, params, "data", image))
