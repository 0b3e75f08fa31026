"""relay.testing's networks: shapes, layouts, weights, and the start of the tuning tutorials."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compat.tvm import cpu, relay
from qnn_ext.compat.workloads import Branch
from qnn_ext.errors import ShapeError

CASES = {
    "mlp": ((2, 1, 28, 28), {"batch_size": 2}),
    "resnet": ((1, 3, 28, 28), {"num_layers": 8, "image_shape": (3, 28, 28), "num_classes": 10}),
    "mobilenet": ((1, 3, 32, 32), {"image_shape": (3, 32, 32), "num_classes": 10}),
    "vgg": ((1, 3, 32, 32), {"batch_size": 1, "image_shape": (3, 32, 32), "num_classes": 10, "batch_norm": True}),
    "squeezenet": ((1, 3, 64, 64), {"version": "1.1", "image_shape": (3, 64, 64), "num_classes": 10}),
    "synthetic": ((1, 3, 24, 12), {}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["synthetic", "mobilenet", "vgg", "resnet", "mlp", "squeezenet"])
def test_workload(name):
    """Probabilities that depend on the input."""
    shape, options = CASES[name]
    module = getattr(relay.testing, name)
    mod, params = module.get_workload(**options)
    engine = relay.build(mod, "llvm -mcpu=haswell", params=params).engine
    (spec,) = engine.inputs
    assert (spec.name, spec.shape) == ("data", shape)
    data = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    one, two = engine(data), engine(-data)
    assert one.shape == (shape[0], 10)
    np.testing.assert_allclose(one.sum(axis=1), 1, rtol=1e-5)
    assert np.abs(one - two).max() > 1e-4


def test_parameters():
    """The same at every call, for every variable but the input; or by a function of the script's own."""
    mod, params = relay.testing.synthetic.get_workload()
    again = relay.testing.synthetic.get_workload()[1]
    assert {param.name_hint for param in mod["main"].params} == {"data", *params}
    assert all((params[name].numpy() == again[name].numpy()).all() for name in params)
    _, ones = relay.testing.create_workload(mod["main"], lambda name, array: array.fill(1))
    assert all((value.numpy() == 1).all() for value in ones.values())


def layered(layout: str) -> relay.Function:
    """A layer of each kind that knows a layout."""
    image = (3, 8, 8) if layout == "NCHW" else (8, 8, 3)
    net = Branch.start(1, image, layout, "float32").conv("conv", 4).norm("bn").max_pool(3, 2, 1)
    net = net.conv("depthwise", 4, depthwise=True).conv("wide", 5, (1, 3), padding=(0, 1), bias=True)
    return net.average().flat().dense("fc", 3).function()


def test_layouts():
    """NHWC with the same weights, transposed, is the same network."""
    nchw, params = relay.testing.create_workload(layered("NCHW"))
    nhwc, other = relay.testing.create_workload(layered("NHWC"))
    assert set(params) == set(other)
    turned = {name: value.numpy() for name, value in params.items()}
    turned = {name: value.transpose(2, 3, 1, 0) if value.ndim == 4 else value for name, value in turned.items()}
    turned["depthwise_weight"] = params["depthwise_weight"].numpy().transpose(2, 3, 0, 1)
    data = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    one = qnn_ext.Interpreter(nchw.model(params))(data)
    two = qnn_ext.Interpreter(nhwc.model(turned))(data.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(two, one, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "channels"),
    [
        ("resnet", {"num_layers": 18}, 512),
        ("resnet", {"num_layers": 50}, 2048),
        ("mobilenet", {}, 1024),
        ("vgg", {"batch_size": 1, "num_layers": 16}, 4096),
        ("inception_v3", {}, 2048),
        ("densenet", {"batch_size": 1}, 1024),
    ],
)
def test_full_size(name, options, channels):
    """ImageNet's shapes: what the classifier reads, and the type of the result."""
    net = getattr(relay.testing, name).get_net(**options)
    shapes = {param.name_hint: param.type_annotation.shape for param in net.params}
    weight = next(shapes[key] for key in ("fc1_weight", "fc_weight", "fc8_weight", "dense_weight") if key in shapes)
    pixels = 299 if name == "inception_v3" else 224
    assert (shapes["data"], weight) == ((1, 3, pixels, pixels), (1000, channels))


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("inception_v3", {"image_shape": (3, 75, 75), "num_classes": 10}, (1, 10)),
        ("densenet", {"image_shape": (3, 32, 32), "classes": 10, "densenet_size": 169}, (4, 10)),
        ("dcgan", {"batch_size": 2, "ngf": 4}, (2, 3, 64, 64)),
        ("dcgan", {"batch_size": 2, "ngf": 4, "layout": "NHWC", "oshape": (64, 64, 3)}, (2, 64, 64, 3)),
        ("dqn", {"batch_size": 2}, (2, 18)),
        ("lstm", {"iterations": 3, "num_hidden": 8, "batch_size": 2}, (2, 8)),
    ],
)
def test_types_of_more_networks(name, options, shape):
    """Networks of other tutorials, whose layers fit together."""
    mod, params = getattr(relay.testing, name).get_workload(**options)
    assert mod["main"].checked_type.ret_type.shape == shape
    assert all(np.isfinite(value.numpy()).all() for value in params.values())


def test_lstm():
    """Against the equations, on an input for each step."""
    mod, params = relay.testing.lstm.get_workload(2, 3)
    module = mod.model(params)
    steps = [np.random.default_rng(step).normal(size=(1, 3)).astype(np.float32) for step in range(2)]
    hidden = cell = np.zeros((1, 3))
    for step, data in enumerate(steps):
        weights = [params[f"{kind}_{step}_weight"].numpy() for kind in ("i2h", "h2h")]
        gates = data @ weights[0].T + hidden @ weights[1].T
        kept, forgotten, new, shown = np.split(gates, 4, axis=1)
        cell = cell / (1 + np.exp(-forgotten)) + np.tanh(new) / (1 + np.exp(-kept))
        hidden = np.tanh(cell) / (1 + np.exp(-shown))
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(*steps), hidden, rtol=1e-5, atol=1e-7)


def test_quantized_workload():
    """As in a tuning script: float, quantized, tasks, the network with its softmax replaced."""
    mod, params = relay.testing.synthetic.get_workload()
    with relay.quantize.qconfig(skip_conv_layers=None, skip_dense_layer=False):
        quantized = relay.quantize.quantize(mod, params)
    from qnn_ext.compat.tvm import autotvm

    tasks = autotvm.task.extract_from_program(quantized["main"], {}, "llvm -mcpu=haswell")
    assert {type(task.args[0]).__name__ for task in tasks} >= {"Conv2dWorkload", "DenseWorkload"}
    net = quantized["main"]
    doubled = relay.Function(net.params, net.body + net.body)
    data = np.ones((1, 3, 24, 12), np.float32)
    executor = relay.create_executor("graph", device=cpu(), target="llvm -mcpu=haswell")
    np.testing.assert_allclose(executor.evaluate(doubled)(data).numpy(), 2 * executor.evaluate(net)(data).numpy())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: relay.testing.resnet.get_net(num_layers=19), "num_layers must be 18, 34, 50, 101, 152"),
        (lambda: relay.testing.resnet.get_net(num_layers=9, image_shape=(3, 28, 28)), r"must be 6n \+ 2"),
        (lambda: relay.testing.vgg.get_net(1, num_layers=12), "num_layers must be 11, 13, 16, 19"),
        (lambda: relay.testing.squeezenet.get_net(version="2"), "version must be 1.0 or 1.1"),
        (lambda: relay.testing.mobilenet.get_net(layout="NCHWc"), "NCHW or NHWC"),
        (lambda: relay.testing.densenet.get_net(122), "densenet_size must be 121, 161, 169, 201"),
        (lambda: relay.testing.dcgan.get_net(1, oshape=(3, 32, 32)), "must be of 64 × 64 pixels"),
        (lambda: relay.testing.synthetic.get_net(wtype="int8"), "weights have the data's dtype"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ShapeError, match=message):
        call()
