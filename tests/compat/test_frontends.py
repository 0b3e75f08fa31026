"""relay.frontend and relay.quantize: the flows of the deploy tutorials, on the bundled models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import qnn_ext
from qnn_ext import quantize as today
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.tvm import IRModule, cpu, nd, relay, transform
from qnn_ext.compat.tvm.contrib import graph_executor
from qnn_ext.errors import InputError, QuantizationError, ShapeError

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
    with pytest.raises(QuantizationError, match="there is no field 'nbits'"):
        relay.quantize.qconfig(nbits=8)
    with pytest.raises(AttributeError, match="where the configuration is made"):
        config.nbit_weight = 8
    with pytest.raises(AttributeError, match=r"qnn_ext\.quantize\.stages"):
        relay.quantize.annotate  # noqa: B018
