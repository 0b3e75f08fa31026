"""Every operator and fused form against MXNet's own answer, bit for bit; compiled against interpreted as well."""

import json

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.mxnet import from_mxnet
from qnn_ext.interpreter import Interpreter

from .goldens import load

# uncalibrated models that MXNet computes wrongly, and we refuse
REFUSED = ("conv_relu6", "conv_clip_low", "conv_bn_relu6", "dense_clip_dense", "bn_alone")
CASES = [
    (archive, name)
    for archive in ("fused", "operators", "uncalibrated")
    for name in load(archive)
    if archive != "uncalibrated" or not name.startswith(REFUSED)
]
# float functions behind the quantized part, where MXNet's own are approximations
FLOAT_TAIL = {"conv_sigmoid/auto": 1e-7, "conv_sigmoid": 1e-7, "dense_softrelu_dense": 1e-7}
# what MXNet spoils: the residual sum computed in the operand's dtype, weights of several groups with each other's
# scales, averages over windows that hang over
SPOILED = (
    "conv_int8_sum_relu",
    "conv_groups",
    "residual_preact",
    "conv_sum/",
    "conv_sum_first",
    "pool_avg_full",
    "pool_int8_avg_full",
)
BUILT = (
    "conv_bn_sum_relu",
    "conv_int8_sum_relu",
    "conv_leaky",
    "concat_mixed",
    "dense_relu_dense",
    "bn_alone",
    "add_alone",
)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("archive", "name"), CASES, ids=[f"{archive}-{name}" for archive, name in CASES])
def test_equals_mxnet(archive, name):
    golden = load(archive)[name]
    if golden.y is None:
        pytest.skip("MXNet does not run this graph")
    module = from_mxnet(golden.symbol, golden.params, golden.shapes, sum_mode="mxnet")
    (output,) = Interpreter(module).run([golden.x]).values()
    np.testing.assert_allclose(output, golden.y, rtol=0, atol=FLOAT_TAIL.get(name, 0.0))


@pytest.mark.parametrize("name", [name for name in load("fused") if not name.startswith(SPOILED)])
def test_modes_agree_where_mxnet_is_right(name):
    golden = load("fused")[name]
    results = [
        Interpreter(from_mxnet(golden.symbol, golden.params, golden.shapes, sum_mode=mode))(golden.x)
        for mode in ("intended", "mxnet")
    ]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("archive", "name"),
    [("fused", f"{name}/auto") for name in BUILT]
    + [("uncalibrated", name) for name in ("conv_bn_sum_relu", "add_alone")],
)
def test_compiled_equals_interpreter(archive, name):
    golden = load(archive)[name]
    for mode in ("intended", "mxnet"):
        module = from_mxnet(golden.symbol, golden.params, golden.shapes, sum_mode=mode)
        engine = qnn_ext.build(module, num_threads=1)
        np.testing.assert_array_equal(engine(golden.x), Interpreter(module)(golden.x))


def test_vectors_are_dequantized():
    """Of one dimension: a scale for all elements needs no axis of channels."""
    attrs = {"min_calib_range": "-2", "max_calib_range": "2", "out_type": "int8"}
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "_contrib_quantize_v2", "name": "q", "attrs": attrs, "inputs": [[0, 0, 0]]},
        {"op": "_contrib_dequantize", "name": "d", "inputs": [[1, 0, 0], [1, 1, 0], [1, 2, 0]]},
    ]
    symbol = json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[2, 0, 0]]})
    x = np.array([-3, -1, 0, 0.5, 2], np.float32)
    steps = np.clip(np.rint(x * np.float32(127.5 / 2)), -128, 127)
    found = Interpreter(from_mxnet(symbol, {}, {"data": x.shape}))(x)
    np.testing.assert_array_equal(found, steps.astype(np.float32) * np.float32(2 / 127.5))


def test_intended_sum_is_nearer_to_the_float_sum():
    """relu(conv + conv): MXNet clips the uint8 result at 127, in the buffer of the int8 operand."""
    golden = load("fused")["conv_int8_sum_relu/auto"]
    wide, clipped = (
        Interpreter(from_mxnet(golden.symbol, golden.params, golden.shapes, sum_mode=mode))(golden.x)
        for mode in ("intended", "mxnet")
    )
    assert wide.max() > clipped.max()
    np.testing.assert_array_equal(np.minimum(wide, clipped.max()), clipped)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", load("float"))
def test_float_operators(name):
    """Float operators are TVM's own: equal up to the order of float32 sums."""
    golden = load("float")[name]
    if golden.y is None:
        pytest.skip("MXNet does not run this graph")
    module = from_mxnet(golden.symbol, golden.params, golden.shapes)
    (output,) = Interpreter(module).run([golden.x]).values()
    assert output.dtype == golden.y.dtype
    np.testing.assert_allclose(output, golden.y, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("name", ["pool_int8_avg_full_True", "pool_uint8_avg_full_True"])
def test_intended_average_counts_as_in_float(name):
    """The last row and column of the "full" convention: MXNet's integer kernel divides by cells that do not exist."""
    golden = load("operators")[name]
    tree = json.loads(golden.symbol)
    pool = next(node for node in tree["nodes"] if node["op"] == "_contrib_quantized_pooling")
    float_pool = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "Pooling", "name": "pool", "attrs": pool["attrs"], "inputs": [[0, 0, 0]]},
        ],
        "heads": [[1, 0, 0]],
    }
    step = 3.3 / (127.5 if "_int8" in name else 255.5)
    clipped = np.clip(golden.x, 0 if "_uint8" in name else -3.3, 3.3)
    expected = Interpreter(from_mxnet(float_pool, {}, golden.shapes))(clipped)
    intended = Interpreter(from_mxnet(golden.symbol, golden.params, golden.shapes))(golden.x)
    assert np.abs(intended - expected).max() <= 1.01 * step
    assert np.abs(golden.y - expected).max() > 4 * step
