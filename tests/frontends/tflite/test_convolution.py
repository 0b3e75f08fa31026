"""CONV_2D and DEPTHWISE_CONV_2D: against LiteRT's reference kernels."""

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of, run_case
from .schema_models import conv_sketch

EVERY = cases_of("CONV_2D DEPTHWISE_CONV_2D")


def case_named(name):
    (case,) = (case for case in load_cases() if case.name == name)
    return case


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("name", ["CONV_2D/int16/per_channel_same", "DEPTHWISE_CONV_2D/uint8/per_tensor_batch2"])
def test_float32_numerics_elsewhere_within_one_step(name):
    case = case_named(name)
    for outputs, expected in zip(run_case(case, "float32"), case.default, strict=True):
        assert np.abs(outputs[0].astype(int) - expected[0].astype(int)).max() <= 1


@pytest.mark.parametrize("name", ["CONV_2D/hybrid/per_channel_same", "DEPTHWISE_CONV_2D/hybrid/per_channel_same"])
def test_hybrid_layers_run_in_integers(name):
    module = from_tflite(case_named(name).model)
    script = module.script()
    assert "R.qnn.conv2d" in script and "R.nn.conv2d" not in script
    assert not module.notes


def test_hybrid_zeros_give_the_bias():
    case = case_named("CONV_2D/hybrid/per_channel_same")
    (output,) = Interpreter(from_tflite(case.model)).run([np.zeros_like(case.inputs[0][0])]).values()
    assert np.all(output == output[:, :1, :1])


def test_batch_size_can_change():
    case = case_named("CONV_2D/int8/per_channel_stride2_same_relu6")
    images = np.concatenate([trial[0] for trial in case.inputs])
    module = from_tflite(case.model, numerics="tflite", shapes={"input0": images.shape})
    (output,) = Interpreter(module).run([images]).values()
    np.testing.assert_array_equal(output, np.concatenate([trial[0] for trial in case.reference]))


def test_strides_of_zero_are_refused():
    sketch = conv_sketch()
    sketch.graph.operators[0].builtinOptions.strideW = 0
    with pytest.raises(ModelFormatError, match=r"CONV_2D #0 .*strides"):
        from_tflite(sketch.bytes())


def test_a_bias_of_the_wrong_length_is_refused():
    sketch = conv_sketch()
    bias = sketch.graph.tensors[2]
    bias.shape = [2]
    sketch.model.buffers[bias.buffer].data = np.zeros(8, np.uint8)
    bias.quantization = None
    with pytest.raises(ModelFormatError, match=r"CONV_2D #0 .*bias of shape \(2,\) does not match 3"):
        from_tflite(sketch.bytes())


def test_weight_scales_along_another_dimension_are_refused():
    sketch = conv_sketch()
    sketch.graph.tensors[1].quantization.quantizedDimension = 2
    with pytest.raises(UnsupportedOperatorError, match=r"CONV_2D #0 .*scales along dimension 2"):
        from_tflite(sketch.bytes())
