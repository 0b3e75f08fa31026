"""Float models of every format become integers: integer products only, and results near the float ones."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize

from .digits import DATA, calibration_images

LEAST_DECIBEL = 28.0


def check(module: QnnModule, samples: np.ndarray, products: int) -> None:
    """Quantized on the samples: so many integer products, no float one, and results near those of the float module."""
    integers = quantize(module, dataset=samples, config=QConfig(calibrate_mode="minmax"))
    names = [op_name(binding.value) for binding in bindings_of(integers.ir["main"])]
    assert not {"nn.conv1d", "nn.conv2d", "matmul", "nn.batch_norm"} & set(names)
    assert sum(names.count(f"qnn.{name}") for name in ("conv2d", "dense", "batch_matmul")) == products
    some = samples[:6]
    expected, found = (np.concatenate([Interpreter(m)(x[None]) for x in some]) for m in (module, integers))
    noise = float(np.sum((found - expected) ** 2))
    assert noise > 0
    assert 10 * np.log10(float(np.sum(expected**2)) / noise) > LEAST_DECIBEL


def test_tflite():
    pytest.importorskip("tflite", reason="reading TFLite models needs the extra 'tflite'")
    module = qnn_ext.from_tflite(DATA / "digits_cnn_float32.tflite")
    check(module, calibration_images(32).transpose(0, 2, 3, 1), products=9)


def test_pytorch():
    torch = pytest.importorskip("torch", reason="reading PyTorch models needs the extra 'torch'")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(8, 8, 3, groups=8, padding=1),
        torch.nn.Hardswish(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    ).eval()
    data = torch.randn(16, 3, 8, 8)
    module = qnn_ext.from_pytorch(torch.export.export(network, (data[:1],)))
    check(module, data.numpy(), products=3)


def test_mxnet(rng):
    nodes = [
        ("null", "data", []),
        *(("null", name, []) for name in ("conv_w", "conv_b", "gamma", "beta", "mean", "var", "fc_w", "fc_b")),
        ("Convolution", "conv", [0, 1, 2]),
        ("BatchNorm", "bn", [9, 3, 4, 5, 6]),
        ("Activation", "relu", [10]),
        ("Pooling", "pool", [11]),
        ("FullyConnected", "fc", [12, 7, 8]),
    ]
    attributes = {
        "conv": {"kernel": "(3, 3)", "num_filter": "8", "pad": "(1, 1)"},
        "bn": {"eps": "1e-5", "fix_gamma": "False"},
        "relu": {"act_type": "relu"},
        "pool": {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "max"},
        "fc": {"num_hidden": "5"},
    }
    symbol = {
        "nodes": [
            {"op": op, "name": name, "attrs": attributes.get(name, {}), "inputs": [[i, 0, 0] for i in inputs]}
            for op, name, inputs in nodes
        ],
        "heads": [[13, 0, 0]],
    }
    shapes = {"conv_w": (8, 3, 3, 3), "conv_b": (8,), "fc_w": (5, 72), "fc_b": (5,)}
    params = {f"arg:{name}": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    params |= {f"arg:{name}": rng.normal(size=8).astype(np.float32) for name in ("gamma", "beta")}
    params |= {"aux:mean": rng.normal(size=8).astype(np.float32), "aux:var": rng.uniform(1, 2, 8).astype(np.float32)}
    module = qnn_ext.from_mxnet(symbol, params, {"data": (1, 3, 6, 6)})
    check(module, rng.normal(size=(16, 3, 6, 6)).astype(np.float32), products=2)
