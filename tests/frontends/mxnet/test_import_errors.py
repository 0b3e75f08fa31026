"""What from_mxnet refuses, and that it says which node, why and what to do."""

import json

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from qnn_ext.frontends.mxnet import from_mxnet

from .goldens import EMPTY_PARAMS, load


def variable(name, **attrs):
    return {"op": "null", "name": name, "attrs": attrs, "inputs": []}


def model(*nodes, heads=None):
    """A symbol from nodes; inputs are given by name."""
    places = {node["name"]: i for i, node in enumerate(nodes)}
    nodes = [{**node, "inputs": [[places[name], 0, 0] for name in node.get("inputs", [])]} for node in nodes]
    return {"nodes": nodes, "heads": heads or [[len(nodes) - 1, 0, 0]]}


def flatten(**attrs):
    return model(variable("data", **attrs), {"op": "Flatten", "name": "flat", "inputs": ["data"]})


def edited(golden, change):
    """The golden's symbol after `change` of its nodes by name."""
    tree = json.loads(golden.symbol)
    change({node["name"]: node for node in tree["nodes"]})
    return tree


def test_shapes_from_the_symbol():
    module = from_mxnet(flatten(__shape__="(2, 3, 4)"), {})
    assert module.inputs[0].shape == (2, 3, 4)
    assert [(spec.name, spec.shape) for spec in module.outputs] == [("flat_output", (2, 12))]


@pytest.mark.parametrize("attrs", [{}, {"__shape__": "(0, 3, 4)"}, {"__shape__": "()"}])
def test_missing_shape(attrs):
    with pytest.raises(ShapeError, match=r"'data'.*give its shape"):
        from_mxnet(flatten(**attrs), {})


@pytest.mark.parametrize("shape", [(0, 3), (-1, 3), "ab", (2.5, 1), 7])
def test_bad_shapes(shape):
    with pytest.raises(QnnError, match="data"):
        from_mxnet(flatten(), {}, {"data": shape})


def test_unknown_input_name():
    with pytest.raises(ShapeError, match=r"'image'.*'data'"):
        from_mxnet(flatten(), {}, {"image": (1, 2)})


def test_absurdly_big_input():
    with pytest.raises(ModelFormatError, match="elements, and the limit is"):
        from_mxnet(flatten(), {}, {"data": (1 << 20, 1 << 20)})


def test_unknown_sum_mode():
    with pytest.raises(QnnError, match="intended, mxnet"):
        from_mxnet(flatten(), {}, {"data": (1, 2)}, sum_mode="exact")


def test_wrong_params_file():
    golden = load("fused")["conv/auto"]
    with pytest.raises(ShapeError, match=r"'c_weight'.*wrong .params file"):
        from_mxnet(golden.symbol, EMPTY_PARAMS, golden.shapes)


def test_unknown_operator():
    with pytest.raises(UnsupportedOperatorError, match=r"'x' \(_contrib_ROIAlign\)"):
        from_mxnet(
            model(variable("data"), {"op": "_contrib_ROIAlign", "name": "x", "inputs": ["data"]}), {}, {"data": (1,)}
        )


@pytest.mark.parametrize("op", ["_contrib_quantized_conv", "_contrib_quantized_fully_connected"])
def test_unfused_form_is_refused(op):
    with pytest.raises(UnsupportedOperatorError, match=r"does not work in MXNet itself.*quantize_model_mkldnn"):
        from_mxnet(model(variable("data"), {"op": op, "name": "x", "inputs": ["data"]}), {}, {"data": (1, 2)})


@pytest.mark.parametrize("name", ["conv_relu6", "conv_bn_relu6", "dense_clip_dense", "bn_alone"])
def test_uncalibrated_models_that_mxnet_computes_wrongly(name):
    golden = load("uncalibrated")[name]
    with pytest.raises(UnsupportedOperatorError, match=r"MXNet .*calib_mode='naive'"):
        from_mxnet(golden.symbol, golden.params, golden.shapes)


def test_uncalibrated_range_of_a_calibrated_operator():
    golden = load("fused")["conv/auto"]

    def forget(nodes):
        del nodes["data_quantize"]["attrs"]["min_calib_range"]

    with pytest.raises(UnsupportedOperatorError, match=r"range computed at run time.*calib_mode='naive'"):
        from_mxnet(edited(golden, forget), golden.params, golden.shapes)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("kernel", "(5, 5)", "do not match"),
        ("stride", "(0, 1)", "at least 1"),
        ("stride", "(1, 1, 1)", "2 integers"),
        ("pad", "(a, b)", "must be an integer"),
        ("num_group", "3", "does not match"),
        ("layout", "NHWC", "supported: NCHW"),
        ("no_bias", "perhaps", "True or False"),
    ],
)
def test_bad_attributes_of_the_fused_convolution(attribute, value, message):
    golden = load("fused")["conv/auto"]

    def change(nodes):
        fused = next(node for node in nodes.values() if node["op"] == "_sg_mkldnn_conv")
        inner = next(node for node in fused["subgraphs"][0]["nodes"] if node["op"] == "Convolution")
        inner["attrs"][attribute] = value

    with pytest.raises(QnnError, match=message) as error:
        from_mxnet(edited(golden, change), golden.params, golden.shapes)
    assert "_sg_mkldnn_conv" in str(error.value) or "Convolution" in str(error.value)


def test_a_label_needs_no_shape():
    tree = model(
        variable("data"),
        variable("softmax_label"),
        {"op": "SoftmaxOutput", "name": "softmax", "inputs": ["data", "softmax_label"]},
    )
    module = from_mxnet(tree, {}, {"data": (2, 5)})
    assert [spec.name for spec in module.inputs] == ["data"]
    y = qnn_ext.Interpreter(module)(np.zeros((2, 5), np.float32))
    np.testing.assert_allclose(y, np.full((2, 5), 0.2), rtol=1e-6)


def test_batch_norm_folds_into_the_convolution():
    golden = load("float")["convolution_bn"]
    script = from_mxnet(golden.symbol, golden.params, golden.shapes).script()
    assert "R.nn.conv2d" in script and "R.multiply" not in script


def test_quantized_output_carries_its_scale():
    golden = load("fused")["conv/auto"]
    tree = json.loads(golden.symbol)
    conv = next(i for i, node in enumerate(tree["nodes"]) if node["op"] == "_sg_mkldnn_conv")
    limits = tree["nodes"][conv]["attrs"]
    module = from_mxnet({**tree, "heads": [[conv, 0, 0], [conv, 1, 0]]}, golden.params, golden.shapes)
    qparams = module.outputs[0].qparams
    largest = max(abs(float(limits[key])) for key in ("min_calib_range", "max_calib_range"))
    assert qparams.dtype == "int8" and qparams.scale == pytest.approx(largest / 127.5, rel=1e-6)
    assert module.outputs[1].qparams is None
