"""Quantized averages: oneDNN multiplies the sums by 1/n in float32, which moves midpoints of some n."""

import numpy as np
import pytest

from qnn_ext import Interpreter
from qnn_ext.frontends.mxnet import from_mxnet


@pytest.mark.parametrize("count", [10, 14, 26, 30, 56])
def test_midpoints_of_global_averages(count):
    edges = [[0, 0, 0], [0, 1, 0], [0, 2, 0]]
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {
            "op": "_contrib_quantize_v2", "name": "q", "inputs": [[0, 0, 0]],
            "attrs": {"out_type": "uint8", "min_calib_range": "0.0", "max_calib_range": "255.5"},
        },
        {
            "op": "_contrib_quantized_pooling", "name": "pool", "inputs": [[1, *edge[1:]] for edge in edges],
            "attrs": {"pool_type": "avg", "global_pool": "True", "kernel": "(1, 1)"},
        },
        {"op": "_contrib_dequantize", "name": "real", "inputs": [[2, *edge[1:]] for edge in edges]},
    ]  # fmt: skip
    totals = np.arange(40) * count + count // 2  # midpoints between integers
    x = np.zeros((1, 40, 2, count // 2), np.float32)
    flat = x.reshape(40, count)
    flat += (totals // count)[:, None]
    flat[:, : count // 2] += 1
    module = from_mxnet({"nodes": nodes, "heads": [[3, 0, 0]]}, {}, {"data": x.shape})
    found = np.rint(Interpreter(module)(x).ravel() * np.float32(255 / 255.5))
    np.testing.assert_array_equal(found, np.rint(totals.astype(np.float32) * np.float32(1 / count)))
