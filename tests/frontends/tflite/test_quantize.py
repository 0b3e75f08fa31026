"""QUANTIZE, DEQUANTIZE, FAKE_QUANT, CAST: against LiteRT's reference and default kernels."""

import numpy as np
import pytest

from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of, run_case

EVERY = cases_of("DEQUANTIZE FAKE_QUANT CAST")


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("numerics", ["tflite", "float32"])
@pytest.mark.parametrize("case", cases_of("QUANTIZE"))
def test_quantize_equals_litert(case, numerics):
    """Except beyond int32, where C's conversion of LiteRT is undefined (it gives the minimum) and ours saturates."""
    expected = case.reference if numerics == "tflite" else case.default
    for (data,), (output,), (wanted,) in zip(case.inputs, run_case(case, numerics), expected, strict=True):
        if data.dtype.kind == "f":
            scale = float(from_tflite(case.model).outputs[0].qparams.scale)
            beyond = data / np.float32(scale) >= 2.0**31
            assert (output[beyond] == np.iinfo(output.dtype).max).all()
            output, wanted = output[~beyond], wanted[~beyond]
        np.testing.assert_array_equal(output, wanted)


def test_narrow_range_is_refused_as_in_litert():
    (case,) = (c for c in load_cases("FAKE_QUANT") if c.name == "FAKE_QUANT/float32/bits8_signed")
    from ai_edge_litert import schema_py_generated as schema

    from .schema_models import pack

    model = schema.ModelT.InitFromPackedBuf(case.model)
    model.subgraphs[0].operators[0].builtinOptions.narrowRange = True
    with pytest.raises(UnsupportedOperatorError, match=r"FAKE_QUANT #0 .*narrow_range"):
        from_tflite(pack(model))
