"""Every operator prints as TVMScript, parses back and survives tvm.ir.save_json: nothing of a module gets lost."""

import pytest
import tvm
from tvm import relax

from qnn_ext import op
from tests.cases.samples import SAMPLES

from .helpers import var


def module(name: str) -> tvm.IRModule:
    """A module whose main function is one call of the operator."""
    variables, call = SAMPLES[name]
    params = [var(*variable) for variable in variables]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call(*params)))
        builder.emit_func_output(result)
    return builder.get()


def test_every_operator_has_a_sample():
    assert set(SAMPLES) == set(op.OPS)


def test_relay_operators_are_covered():
    relay = {
        "quantize",
        "dequantize",
        "requantize",
        "conv2d",
        "conv2d_transpose",
        "dense",
        "contrib_dense_pack",
        "batch_matmul",
        "add",
        "subtract",
        "mul",
        "concatenate",
        "tanh",
        "exp",
        "sqrt",
        "rsqrt",
        "erf",
        "sigmoid",
        "hardswish",
        "log",
        "abs",
        "leaky_relu",
        "softmax",
        "avg_pool2d",
        "simulated_quantize",
        "simulated_dequantize",
    }
    assert len(relay) == 26
    assert relay <= set(op.OPS)


@pytest.mark.parametrize("name", SAMPLES)
def test_script(name):
    mod = module(name)
    script = mod.script(show_meta=True)
    assert f"R.qnn.{name}(" in script
    tvm.ir.assert_structural_equal(tvm.script.from_source(script), mod)


@pytest.mark.parametrize("name", SAMPLES)
def test_json(name):
    mod = module(name)
    tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
