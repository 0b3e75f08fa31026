"""relay.testing's networks: shapes, layouts, weights, and the start of the tuning tutorials."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compat.tvm import cpu, relay
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


def test_layouts():
    """NHWC with the same weights, transposed, is the same network."""
    options = {"num_layers": 8, "num_classes": 10}
    nchw, params = relay.testing.resnet.get_workload(image_shape=(3, 8, 8), **options)
    nhwc, other = relay.testing.resnet.get_workload(image_shape=(8, 8, 3), layout="NHWC", **options)
    assert set(params) == set(other)
    turned = {name: value.numpy() for name, value in params.items()}
    turned = {name: value.transpose(2, 3, 1, 0) if value.ndim == 4 else value for name, value in turned.items()}
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
    ],
)
def test_full_size(name, options, channels):
    """ImageNet's shapes: what the classifier reads, and the type of the result."""
    net = getattr(relay.testing, name).get_net(**options)
    shapes = {param.name_hint: param.type_annotation.shape for param in net.params}
    weight = next(shapes[key] for key in ("fc1_weight", "fc_weight", "fc8_weight") if key in shapes)
    assert (shapes["data"], weight) == ((1, 3, 224, 224), (1000, channels))


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
        (lambda: relay.testing.synthetic.get_net(wtype="int8"), "weights have the data's dtype"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ShapeError, match=message):
        call()
