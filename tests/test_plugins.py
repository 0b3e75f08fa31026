"""Plugins: operators, converters and kernels registered from files outside of the package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, te
from tvm.script import tirx as T

import qnn_ext
from qnn_ext import QnnError, entry_points, plugins, quantize
from qnn_ext import op as qnn
from qnn_ext.frontends.mxnet.registry import CONVERTERS as MXNET
from qnn_ext.frontends.onnx.registry import CONVERTERS as ONNX
from qnn_ext.frontends.pytorch.exported.registry import CONVERTERS as EXPORTED
from qnn_ext.frontends.pytorch.torchscript.registry import CONVERTERS as TORCHSCRIPT
from qnn_ext.frontends.tflite.registry import CONVERTERS as TFLITE
from qnn_ext.op.base import OPS
from qnn_ext.passes.qdq_to_integer.registry import RULES
from qnn_ext.topi_int8 import DenseWorkload, strategy
from qnn_ext.topi_int8.generic.stages import BOUNDED, STAGES
from tests.frontends.onnx.single_op import const, single_op
from tests.frontends.tflite.schema_models import Sketch
from tests.passes.modules import checked_module

with suppress(ImportError):  # PyTorch is not installed
    import_module("qnn_ext.frontends.pytorch.exported.converters")  # so that `registries` finds them

TUTORIALS = Path(__file__).parents[1] / "tutorials"
REGISTRIES = (OPS, STAGES, RULES, ONNX, TFLITE, MXNET, TORCHSCRIPT, EXPORTED)

_numbers = count()

# y = factor · x + 1: converters for every format, its kernel in TE
PLUGIN = """
import numpy as np
from tvm import te
from qnn_ext import plugins

def reference(data, *, factor):
    return (data * np.float32(factor) + np.float32(1)).astype(np.float32)

def kernel(data, *, factor):
    return te.compute(data.shape, lambda *i: plugins.fence(data(*i) * np.float32(factor)) + 1.0, name="line")

line = plugins.operator("NAME", "data", infer=lambda data, factor: (data.shape, "float32"),
                        reference=reference, kernel=kernel)

@plugins.onnx_converter("NAME", domain="com.acme")
def _onnx(node):
    return line.call(node.input(0), factor=node.attribute("factor", 1.0))

@plugins.tflite_converter("NAME")
def _tflite(node):
    return line.call(node.input(0), factor=float(node.operator.custom_options[0]))

@plugins.mxnet_converter("NAME")
def _mxnet(node):
    return line.call(node.inputs[0], factor=3.0)

@plugins.torchscript_converter("acme::NAME")
def _torchscript(node):
    return line.call(node.expr("x"), factor=node["factor"])

@plugins.torch_export_converter("acme.NAME.default")
def _program(importer, x, factor):
    return line.call(x, factor=factor)
"""


@pytest.fixture(autouse=True)
def registries():
    """What tests register is forgotten, but for TVM's own list of operators."""
    before = [dict(registry) for registry in REGISTRIES]
    bounded = set(BOUNDED)
    yield
    for registry, content in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(content)
    BOUNDED.intersection_update(bounded)


@pytest.fixture
def name() -> str:
    """An operator's name that no test has used."""
    return f"acme_op{next(_numbers)}"


def load(path: Path):
    """Import a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plugin(tmp_path, name):
    path = tmp_path / f"{name}.py"
    path.write_text(PLUGIN.replace("NAME", name))
    return load(path)


@pytest.fixture
def data(rng) -> np.ndarray:
    return rng.normal(size=(3, 5)).astype(np.float32)


def module_of(function, *arrays: np.ndarray) -> qnn_ext.QnnModule:
    """A module that returns function(emit, *inputs)."""
    return checked_module(lambda builder, *params: [function(builder.emit, *params)], *arrays)


def check(module: qnn_ext.QnnModule, inputs, expected) -> None:
    """The module's single result, interpreted and compiled, is `expected` bit for bit."""
    np.testing.assert_array_equal(qnn_ext.Interpreter(module)(*inputs), expected)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(*inputs), expected)


# ---- converters --------------------------------------------------------------------------------------------------


def test_onnx(plugin, name, data):
    model, feeds = single_op(name, [data], ["float32"], domain="com.acme", factor=0.7)
    check(qnn_ext.from_onnx(model), feeds.values(), data * np.float32(0.7) + 1)


def test_tflite(plugin, name, data):
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    sketch = Sketch()
    tensors = [sketch.tensor(data.shape, schema.TensorType.FLOAT32, name=label) for label in ("x", "y")]
    sketch.operator(schema.BuiltinOperator.CUSTOM, tensors[:1], tensors[1:], custom=name, custom_options=b"\3")
    sketch.graph.inputs, sketch.graph.outputs = tensors[:1], tensors[1:]
    check(qnn_ext.from_tflite(sketch.bytes()), [data], data * 3 + 1)


def test_mxnet(plugin, name, data):
    symbol = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": name, "name": "line", "attrs": {}, "inputs": [[0, 0, 0]]},
        ],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
    }
    check(qnn_ext.from_mxnet(symbol, {}, shapes={"data": data.shape}), [data], data * 3 + 1)


def test_pytorch(plugin, name, data):
    torch = pytest.importorskip("torch")

    def line(x, factor):
        return x * factor + 1

    schema = "(Tensor x, float factor) -> Tensor"
    operator = torch.library.custom_op(f"acme::{name}", line, mutates_args=(), schema=schema)
    operator.register_fake(lambda x, factor: torch.empty_like(x))

    class Network(torch.nn.Module):
        def forward(self, x):
            return getattr(torch.ops.acme, name)(x, 2.0)

    example = (torch.from_numpy(data),)
    traced = torch.jit.trace(Network().eval(), example)
    exported = torch.export.export(Network().eval(), example)
    for model in (traced, exported):
        check(qnn_ext.from_pytorch(model, example), [data], data * 2 + 1)


# ---- entry points ------------------------------------------------------------------------------------------------


def install(folder: Path, package: str, entries: dict[str, str], **modules: str) -> None:
    """What an installed package leaves in a folder on sys.path."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    listed = "".join(f"{key} = {value}\n" for key, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{entry_points.GROUP}]\n{listed}")


def test_entry_points(tmp_path, monkeypatch, name, data):
    """The first import of a model loads all plugins; one that fails is left out, with a warning that names it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(entry_points, "_loaded", False)
    good, bad = f"good_{name}", f"bad_{name}"
    install(tmp_path, f"acme_{name}", {"line": good, "broken": f"{bad}:register"}, **{
        good: PLUGIN.replace("NAME", name),
        bad: "def register():\n    raise ValueError('no such GPU')\n",
    })  # fmt: skip
    model, feeds = single_op(name, [data], ["float32"], domain="com.acme", factor=2.0)
    message = f"plugin 'broken' of acme_{name} 1.5 .{bad}:register. cannot be loaded .*ValueError: no such GPU"
    with pytest.warns(RuntimeWarning, match=message) as warned:
        module = qnn_ext.from_onnx(model)
    check(module, feeds.values(), data * 2 + 1)
    qnn_ext.from_onnx(model)
    assert len([one for one in warned if "qnn_ext plugin" in str(one.message)]) == 1


def test_importing_is_cheap():
    """qnn_ext looks for plugins, and imports what they need, only when it is used."""
    code = """
import sys, qnn_ext
assert "qnn_ext.plugins" not in sys.modules and "tvm.relax" not in sys.modules
assert "qnn_ext.entry_points" not in sys.modules or not qnn_ext.entry_points._loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- conflicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "register",
    [
        lambda name: plugins.operator("conv2d", "data", infer=None, reference=None, kernel=None),
        lambda name: plugins.onnx_converter("Conv")(print),
        lambda name: plugins.onnx_converter("Gather", since=19)(print),  # even if newer than the present one
        lambda name: plugins.tflite_converter("CONV_2D")(print),
        lambda name: plugins.mxnet_converter("Convolution")(print),
        lambda name: plugins.torchscript_converter("quantized::conv2d")(print),
        lambda name: plugins.integer_rule(OPS["requantize"])(print) and plugins.integer_rule(OPS["requantize"])(print),
        lambda name: plugins.implementation(DenseWorkload, strategy._registry[DenseWorkload][0]),
    ],
)
def test_taken_names(register, name):
    with pytest.raises(QnnError, match=r"already has .*; a plugin adds operators and replaces none"):
        register(name)


def test_taken_name_of_torch_export():
    pytest.importorskip("torch")
    with pytest.raises(QnnError, match=r"aten\.conv2d\.default already has"):
        plugins.torch_export_converter("aten.conv2d.default")(print)


def test_versions_of_one_plugin(name):
    """A plugin may have a converter for each version of its operator set, another plugin none."""
    plugins.onnx_converter(name, domain="com.acme", since=1)(print)

    def newer(node):
        return node.input(0)

    def foreign(node):
        return node.input(0)

    newer.__module__, foreign.__module__ = print.__module__, "elsewhere"
    plugins.onnx_converter(name, domain="com.acme", since=2)(newer)
    for function, since in ((foreign, 3), (newer, 2)):
        with pytest.raises(QnnError, match=f"com.acme operator {name} already has a converter"):
            plugins.onnx_converter(name, domain="com.acme", since=since)(function)


# ---- kernels -----------------------------------------------------------------------------------------------------


def operator(name, kernel, reference, arguments="data", infer=None, **options):
    infer = infer or (lambda data, *others, **attributes: (data.shape, data.dtype))
    return plugins.operator(name, arguments, infer=infer, reference=reference, kernel=kernel, **options)


def test_tvmscript(name, data):
    """A kernel as TVMScript, among other operators, and parsed from the script of a module."""

    def kernel(x):
        rows, columns = (int(dim) for dim in x.shape)

        @T.prim_func(s_tir=True)
        def reverse(a: T.Buffer((rows, columns), "float32"), b: T.Buffer((rows, columns), "float32")):
            for i in T.parallel(rows):
                for j in range(columns):
                    b[i, j] = a[i, columns - 1 - j]

        return reverse

    reverse = operator(name, kernel, lambda x: x[:, ::-1])
    module = module_of(lambda emit, x: reverse.call(emit(relax.op.add(x, x))), data)
    check(module, [data], (data + data)[:, ::-1])
    assert f"R.qnn.{name}(" in module.script()


def test_kernel_that_contradicts_its_type(name, data):
    wide = operator(name, lambda x: te.compute(x.shape, lambda *i: x(*i).astype("float64")), lambda x: x)
    with pytest.raises(QnnError, match=rf"kernel of qnn.{name} computes float64\(3, 5\), its type rule says float32"):
        qnn_ext.build(module_of(lambda _, x: wide.call(x), data), num_threads=1)


def test_kernel_stays_inside_its_tensors(name, rng):
    """A gather that checks nothing, with indices of any value: they are clipped."""
    table = rng.normal(size=100).astype(np.float32)
    edges = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2**31, -(2**31), 100, 99, 0, -1, 1.5], np.float32)

    def kernel(x, index):
        return te.compute(index.shape, lambda i: x(index(i).astype("int32")))

    def infer(x, index):
        return index.shape, x.dtype

    def reference(x, index):
        return x[np.clip(np.nan_to_num(index.astype(np.float64)), 0, 99).astype(int)]

    gather = operator(name, kernel, reference, "x index", infer)
    check(module_of(lambda _, x, i: gather.call(x, i), table, edges), [table, edges], reference(table, edges))


# ---- quantize ----------------------------------------------------------------------------------------------------


def test_annotations(name, rng):
    """What `annotate` names becomes integers, a constant with a scale for each slice; the rule computes with them."""
    weight = rng.normal(size=(4, 6)).astype(np.float32) * np.float32([[1], [10], [100], [1000]])
    images = [rng.normal(size=(3, 6)).astype(np.float32) for _ in range(4)]

    def kernel(x, w, side):
        k = te.reduce_axis((0, 6))
        total = te.compute((3, 4), lambda i, j: te.sum(x(i, k) * w(j, k), k))
        return te.compute((3, 4), lambda i, j: total(i, j) + side(j))

    def infer(x, w, side):
        return (x.shape[0], w.shape[0]), "float32"

    def reference(x, w, side):
        total = np.zeros((3, 4), np.float32)
        for k in range(6):
            total += x[:, k, None] * w[None, :, k]
        return total + side

    product = operator(name, kernel, reference, "x w side", infer, annotate=lambda call: {"x": None, "w": 0})

    @plugins.integer_rule(product)
    def rule(call, context):
        x, w = (context.quantized(arg) for arg in call.args[:2])
        assert w.axis == 0 and w.vectors
        acc = context.emit(qnn.dense(x.data, w.data, x.zero_point, w.zero_point, x.scale, w.scale))
        scale = plugins.constant(w.constants[0] * x.constants[0])
        real = context.emit(qnn.dequantize(acc, scale, np.int32(0), axis=1))
        return context.emit(relax.op.add(real, context.value(call.args[2])))

    side = np.float32([1, 2, 3, 4])
    module = module_of(lambda _, x: product.call(x, weight, side), images[0])
    integers = quantize.quantize(module, dataset=images)
    assert "qnn.dense" in integers.script() and name not in integers.script()
    engine, oracle = qnn_ext.build(integers, num_threads=1), qnn_ext.Interpreter(integers)
    for image in images:
        np.testing.assert_array_equal(engine(image), oracle(image))
        expected = reference(image, weight, side)
        error = np.abs(engine(image) - expected).max(0)
        assert (error <= 0.05 * np.abs(expected).max(0)).all()  # in each channel, however small its weights


# ---- the tutorial's plugin ---------------------------------------------------------------------------------------

GEOMETRIES = [
    {"pads": [1, 1, 1, 1]},
    {"pads": [2, 0, 1, 3], "strides": [2, 1], "dilations": [1, 2], "group": 2, "offset_group": 4},
    {"strides": [1, 2], "dilations": [2, 1], "group": 4, "offset_group": 2},
]


@pytest.fixture(scope="module")
def deformable():
    """The plugin, registered once and taken out again; `registered` puts it back for a test."""
    before = [dict(registry) for registry in REGISTRIES]
    bounded = set(BOUNDED)
    module = load(TUTORIALS / "deformable.py")
    added = [{k: v for k, v in r.items() if k not in old} for r, old in zip(REGISTRIES, before, strict=True)]
    for registry, entries in zip(REGISTRIES, added, strict=True):
        for name in entries:
            del registry[name]
    new = BOUNDED - bounded
    BOUNDED.intersection_update(bounded)
    return module, added, new


@pytest.fixture
def registered(deformable):
    _, added, bounded = deformable
    for registry, entries in zip(REGISTRIES, added, strict=True):
        registry.update(entries)
    BOUNDED.update(bounded)


def deform_inputs(rng, attributes):
    """data, weights, offsets that also leave the image, bias and mask"""
    (height, width), kernel = (9, 11), (3, 2)
    group, parts = attributes.get("group", 1), attributes.get("offset_group", 1)
    pads = attributes.setdefault("pads", [0] * 4)
    size = [
        (extent + pads[i] + pads[i + 2] - (kernel[i] - 1) * attributes.get("dilations", [1, 1])[i] - 1)
        // attributes.get("strides", [1, 1])[i]
        + 1
        for i, extent in enumerate((height, width))
    ]
    shapes = [(2, 8, height, width), (12, 8 // group, *kernel), (2, parts * 12, *size), (12,), (2, parts * 6, *size)]
    return [
        rng.normal(size=shape, scale=scale).astype(np.float32)
        for shape, scale in zip(shapes, (1, 1, 3, 1, 1), strict=True)
    ]


@pytest.mark.parametrize(("attributes", "optional"), [*zip(GEOMETRIES, (2, 1, 0), strict=True)])
def test_deformable_onnx(registered, rng, attributes, optional):
    """As ONNX Runtime computes it, with and without mask and bias; offsets may be anything."""
    attributes = dict(attributes)
    data, weight, offset, bias, mask = deform_inputs(rng, attributes)
    inputs = [data, const(weight), offset, *[const(bias), mask][:optional]]
    model, feeds = single_op("DeformConv", inputs, ["float32"], opset=19, **attributes)
    module = qnn_ext.from_onnx(model)
    engine, oracle = qnn_ext.build(module, num_threads=1), qnn_ext.Interpreter(module)
    session = pytest.importorskip("onnxruntime").InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(engine.run(feeds)["out0"], session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    wild = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 2**31])
    places = rng.random(offset.shape) < 0.3
    offset[places] = rng.choice(wild, places.sum())
    feeds = {key: offset if value.shape == offset.shape else value for key, value in feeds.items()}
    np.testing.assert_allclose(engine.run(feeds)["out0"], oracle.run(feeds)["out0"], rtol=1e-4, atol=1e-5)


def test_columns_are_exact(deformable, registered, rng):
    """Float and 8-bit data, bit for bit the reference's."""
    columns = deformable[0].columns
    data, _, offset, _, mask = deform_inputs(rng, {})
    data = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
    offset = offset.reshape(2, 1, 6, 2, 7, 10).transpose(0, 4, 5, 1, 2, 3).copy()
    mask = mask.reshape(2, 1, 6, 7, 10).transpose(0, 3, 4, 1, 2).copy()
    offset[0, 0, :, 0, 0] = np.nan
    geometry = {"kernel": (3, 2), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 2}

    def compare(values, scale, zero_point):
        parameters = np.float32(scale), np.int32(zero_point)
        module = module_of(lambda _, x, o, m: columns.call(x, o, m, *parameters, **geometry), values, offset, mask)
        check(module, [values, offset, mask], columns.reference(values, offset, mask, *parameters, **geometry))

    compare(data, 1.0, 0)
    compare((data * 40).astype(np.int8), 0.05, 3)


def torchvision() -> Any:
    """torchvision; None if it is not installed, or made for another torch, such as one for GPUs."""
    try:
        return import_module("torchvision")
    except (ImportError, RuntimeError, OSError):
        return None


def test_deformable_torchvision(registered, rng):
    """torchvision's operator, here only declared: its results are ONNX's."""
    torch = pytest.importorskip("torch")
    ort = pytest.importorskip("onnxruntime")
    attributes = {"pads": [1, 2, 1, 2], "strides": [2, 1], "offset_group": 2}
    inputs = deform_inputs(rng, attributes)
    model, feeds = single_op("DeformConv", inputs, ["float32"], opset=19, **attributes)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    if torchvision() is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        tensors = ", ".join(f"Tensor {name}" for name in ("input", "weight", "offset", "mask", "bias"))
        pairs = ", ".join(f"SymInt {name}_h, SymInt {name}_w" for name in ("stride", "pad", "dilation"))
        rest = "SymInt groups, SymInt offset_groups, bool use_mask"
        library.define(f"deform_conv2d({tensors}, {pairs}, {rest}) -> Tensor")
        empty = lambda x, w, offset, *_: x.new_empty((x.shape[0], w.shape[0], *offset.shape[2:]))  # noqa: E731
        library.impl("deform_conv2d", empty, "CompositeExplicitAutograd")

    class Network(torch.nn.Module):
        def forward(self, x, weight, offset, bias, mask):
            return torch.ops.torchvision.deform_conv2d(x, weight, offset, mask, bias, 2, 1, 1, 2, 1, 1, 1, 2, True)

    network, example = Network().eval(), tuple(map(torch.from_numpy, inputs))
    for model in (torch.jit.trace(network, example, check_trace=False), torch.export.export(network, example)):
        engine = qnn_ext.build(qnn_ext.from_pytorch(model, example), num_threads=1)
        np.testing.assert_allclose(engine(*inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_deformable_layer_of_torchvision(registered, rng, masked):
    """torchvision's own layer, traced, scripted and exported, gives torchvision's numbers."""
    torch = pytest.importorskip("torch")
    if (installed := torchvision()) is None:
        pytest.skip("needs a torchvision made for the installed torch")
    ops = installed.ops

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.masked = masked
            self.layer = ops.DeformConv2d(8, 6, 3, stride=2, padding=1, groups=2, bias=masked)

        def forward(self, x, offset, mask):
            return self.layer(x, offset, mask if self.masked else None)

    shapes = [(2, 8, 9, 11), (2, 36, 5, 6), (2, 18, 5, 6)]  # two parts of the channels, each with its own offsets
    inputs = [rng.normal(size=shape, scale=2).astype(np.float32) for shape in shapes]
    network, example = Network().eval(), tuple(map(torch.from_numpy, inputs))
    with torch.no_grad():
        expected = network(*example).numpy()
        traced = torch.jit.trace(network, example)
    for model in (traced, torch.jit.freeze(torch.jit.script(network)), torch.export.export(network, example)):
        engine = qnn_ext.build(qnn_ext.from_pytorch(model, example), num_threads=1)
        given = inputs[: len(engine.inputs)]
        np.testing.assert_allclose(engine(*given), expected, rtol=1e-4, atol=1e-5)


def restoring(rng):
    """As EDVR: features, offsets computed from them, a deformable convolution, and ×2 by a pixel shuffle."""
    helper = pytest.importorskip("onnx").helper

    def conv(name, x, out, depth, operator="Conv", others=(), **attributes):
        weight = rng.normal(size=(out, depth, 3, 3), scale=(9 * depth) ** -0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"{name}.weight"))
        nodes.append(helper.make_node(operator, [x, f"{name}.weight", *others], [name], pads=[1] * 4, **attributes))

    from onnx import TensorProto, numpy_helper

    nodes, constants = [], []
    conv("features", "image", 8, 3)
    nodes.append(helper.make_node("Relu", ["features"], ["active"]))
    conv("offset", "active", 36, 8)
    conv("aligned", "active", 8, 8, "DeformConv", ["offset"], offset_group=2)
    conv("wide", "aligned", 12, 8)
    nodes.append(helper.make_node("DepthToSpace", ["wide"], ["large"], blocksize=2, mode="CRD"))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", (1, 3, 6, 7)), ("large", (1, 3, 12, 14)))
    ]
    graph = helper.make_graph(nodes, "restoring", ports[:1], ports[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])


@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_a_deformable_network_is_one_engine(registered, rng, target):
    """In 8 bits, with its pixel shuffle in the last convolution's kernel, on the emulated GPU too."""
    images = [rng.normal(size=(1, 3, 6, 7)).astype(np.float32) for _ in range(3)]
    module = quantize.quantize(qnn_ext.from_onnx(restoring(rng)), dataset=[(image,) for image in images])
    engine = qnn_ext.build(module, target)
    products = [kernel.operators for kernel in engine.kernels if kernel.operators.startswith("conv2d_accumulate")]
    assert len(products) == 4 and products[-1].endswith("reshape+permute_dims")
    expected = qnn_ext.Interpreter(module)(images[0])
    if target == "native":
        found = engine(images[0])
    else:
        (found,) = pytest.importorskip("tests.cuda.models").run_model(module, target, images[:1])
    np.testing.assert_allclose(found, expected, atol=1e-5)
