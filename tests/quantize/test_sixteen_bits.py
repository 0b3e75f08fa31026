"""Layers in 16 bits: int16 activations times int8 weights, exact when compiled, closer to float."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.quantize import QConfig, annotate, fold, sites

from .networks import float_module, weight
from .residual import DATA, calls, error, quantized

WIDE = {"precision": "int16"}


def operand_dtypes(module):
    products = calls(module, "qnn.conv2d") + calls(module, "qnn.dense")
    return [tuple(str(arg.ty.dtype) for arg in call.args[:2]) for call in products]


def test_all_layers(network):
    wide = quantized(network, overrides={"*": WIDE})
    assert set(operand_dtypes(wide)) == {("int16", "int8")} and len(operand_dtypes(wide)) == 3
    assert error(network, wide) < error(network, quantized(network))
    engine = qnn_ext.build(wide, num_threads=1)
    for x in DATA[:3]:
        np.testing.assert_array_equal(engine(x[None]), Interpreter(wide)(x[None]))


def test_some_layers(network):
    config = QConfig(target="x86-64")
    names = list(
        dict.fromkeys(site.layer for site in sites(annotate(fold(network, config), config)) if site.value is not None)
    )
    found = operand_dtypes(quantized(network, overrides={names[0]: WIDE}))
    assert found == [("int16", "int8"), ("uint8", "int8"), ("uint8", "int8")]


@pytest.mark.parametrize("wide", [0, 1])
def test_a_tensor_read_by_both_kinds_has_16_bits(wide):
    def body(emit, x):
        one, two = (emit(relax.op.matmul(x, weight(6, 5)), name_hint=name) for name in ("one", "two"))
        return emit(relax.op.add(one, two))

    module = fold(float_module((3, 6), body), QConfig())
    config = QConfig(target="x86-64", overrides={("one", "two")[wide]: WIDE})
    (site,) = (site for site in sites(annotate(module, config)) if site.name == "x")
    assert (site.name, site.role, site.dtype, site.bits, site.symmetric) == ("x", "input", "int16", 16, True)


def test_unknown_precision_names_the_known_ones():
    with pytest.raises(QuantizationError, match="'int8', 'int16', 'bfloat16', 'float16', 'float32'"):
        QConfig(overrides={"*": {"precision": "int4"}})
