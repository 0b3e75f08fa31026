"""Scattered updates against ONNX Runtime, by themselves and in loops: they are kernels of a program like others."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx
from tests.cases.loops import check_results

from .graphs import element, model, node, onnx, run_ort, value
from .test_control_flow import graph, result

DTYPES = ("float32", "int8", "uint8", "int32", "int64", "bool")
REDUCTIONS = ("none", "add", "mul", "min", "max")
SHAPE = (4, 3, 5)


def numbers(rng, shape, dtype):
    return (rng.normal(size=shape) * 9).astype(dtype)


def check(operator, feed, **attributes):
    inputs = [value(name, array.shape, array.dtype) for name, array in feed.items()]
    output = onnx.helper.make_tensor_value_info("y", element(feed["d"].dtype), None)
    proto = model([node(operator, list(feed), ["y"], **attributes)], inputs, [output])
    engine = qnn_ext.build(from_onnx(proto), num_threads=2)
    assert engine.compiled[0].program is not None
    (expected,) = run_ort(proto, feed)
    np.testing.assert_array_equal(engine.run(feed)["y"], expected)
    np.testing.assert_array_equal(qnn_ext.Interpreter(from_onnx(proto)).run(feed)["y"], expected)


def is_in_ort(dtype, reduction):
    return reduction == "none" or dtype in ("float32", "int32", "int64")


@pytest.mark.sampled("dtype", "reduction")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements(dtype, reduction, axis, rng):
    """Positions may be negative; with a reduction several updates may meet at one."""
    if not is_in_ort(dtype, reduction):
        pytest.skip("not in ONNX Runtime")
    shape = (4, 2, 5)
    places = rng.integers(-SHAPE[axis], SHAPE[axis], shape)
    if reduction == "none":
        places = np.argsort(rng.normal(size=SHAPE), axis)[:, :2]
    feed = {"d": numbers(rng, SHAPE, dtype), "i": places, "u": numbers(rng, shape, dtype)}
    check("ScatterElements", feed, axis=axis, reduction=reduction)


@pytest.mark.sampled("dtype", "reduction")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_blocks(dtype, reduction, count, rng):
    if not is_in_ort(dtype, reduction):
        pytest.skip("not in ONNX Runtime")
    places = rng.integers(-np.array(SHAPE[:count]), SHAPE[:count], (2, 3, count))
    if reduction == "none":
        places = np.unique(places.reshape(-1, count) % SHAPE[:count], axis=0)
    feed = {
        "d": numbers(rng, SHAPE, dtype),
        "i": places,
        "u": numbers(rng, (*places.shape[:-1], *SHAPE[count:]), dtype),
    }
    check("ScatterND", feed, reduction=reduction)


def written(rounds):
    """h ← tanh(h + x[i]), y[i] ← h, as PyTorch exports `y[i] = h` in a scripted loop."""
    nodes = [
        node("Gather", ["x", "i"], ["row"]),
        node("Add", ["h", "row"], ["sum"]),
        node("Tanh", ["sum"], ["hn"]),
        node("Unsqueeze", ["i", "first"], ["index"]),
        node("Unsqueeze", ["index", "first"], ["indices"]),
        node("Unsqueeze", ["hn", "first"], ["update"]),
        node("ScatterND", ["y", "indices", "update"], ["yn"]),
        node("Identity", ["c"], ["cn"]),
    ]
    states = [("h", "f4"), ("y", "f4")]
    body = graph(nodes, [("i", "i8"), ("c", "?"), *states], [("cn", "?"), ("hn", "f4"), ("yn", "f4")])
    loop = node("Loop", [rounds, "", "h0", "y0"], ["h_last", "y_last"], body=body)
    inputs = [value("x", (6, 3)), value("h0", (3,)), value("y0", (6, 3))]
    extra = [value("n", (), np.int64)] if rounds == "n" else []
    return model([loop], [*inputs, *extra], [result("h_last"), result("y_last")], {"six": np.int64(6), "first": [0]})


@pytest.mark.parametrize("rounds", ["six", "n"])
def test_in_a_loop(rounds, rng):
    """Also where the number of rounds is known at run time only, so that the loop cannot be unrolled."""
    proto = written(rounds)
    feeds = []
    for count in (6, 0, 4):
        feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("x", (6, 3)), ("y0", (6, 3)))}
        feed["h0"] = rng.normal(size=3).astype(np.float32)
        feeds.append(feed | ({"n": np.asarray(count)} if rounds == "n" else {}))
    check_results(from_onnx(proto), ((feed, run_ort(proto, feed)) for feed in feeds), exact=False)
