"""Between the first quantize and the last dequantize of the int8 and uint8 CNNs nothing is computed in float but the
requantize multiply. Read off the lowered TIR."""

from collections import Counter
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

import qnn_ext
from qnn_ext.compiling.build import lower_module
from qnn_ext.targets.names import make_target

DATA = Path(qnn_ext.__file__).parent / "data"

# What rint(f32(acc) · multiplier) and its clipping consist of
REQUANTIZE = {"Cast", "Mul", "Min", "Max", "BufferLoad", "TensorLoad", "FloatImm", "nearbyint"}
# The same in double with midpoints away from zero: LiteRT's own reference kernel of FULLY_CONNECTED
REQUANTIZE_DENSE = REQUANTIZE | {"trunc", "Select", "Add", "llvm.copysign"}
# A row of float exponentials, looked up, over their float sum, with midpoints away from zero: LiteRT's optimized kernel
SOFTMAX = REQUANTIZE | {"Div", "Add", "Select", "trunc", "floor", "llvm.copysign"}
# XNNPACK's sums and means: the zero points are part of the float that is rounded
SUM = REQUANTIZE | {"Add", "Select"}


def float_operations(function: tirx.PrimFunc) -> Counter:
    """Kinds of expression nodes with a float result, except those that only name a value."""
    found: Counter = Counter()

    def visit(node) -> None:
        dtype = str(getattr(getattr(node, "ty", None), "dtype", ""))
        if dtype.startswith(("float", "bfloat")) and not isinstance(node, (tirx.Var, tirx.Let)):
            kind = type(node).__name__
            if kind == "Call":
                kind = str(node.op.name).split(".")[-1]
            if kind == "call_llvm_pure_intrin":
                kind = tvm.target.codegen.llvm_get_intrinsic_name(int(node.args[0]))
            found[kind] += 1

    tvm_ffi.structural_walk(function.body, (ir.Expr, visit))
    return found


def operations_of(name: str, numerics: str) -> dict[str, Counter]:
    module = qnn_ext.from_tflite(DATA / f"{name}.tflite", numerics=numerics)
    mod = lower_module(module.ir, make_target("cascadelake"))
    return {var.name_hint: float_operations(f) for var, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}


@pytest.mark.parametrize("name", ["digits_cnn_int8", "digits_cnn_uint8"])
def test_tflite_numerics_hold_no_float_but_where_litert_does(name):
    for kernel, found in operations_of(name, "tflite").items():
        allowed = REQUANTIZE_DENSE if kernel.startswith("qnn_dense") else set()
        assert not set(found) - allowed, f"{kernel}: {found}"


@pytest.mark.parametrize("name", ["digits_cnn_int8", "digits_cnn_uint8"])
def test_float32_numerics_only_multiply_in_requantize(name):
    operations = operations_of(name, "float32")
    assert any(found["Mul"] for found in operations.values()), "the walk sees float nodes"
    for kernel, found in operations.items():
        allowed = SOFTMAX if kernel.startswith("qnn_softmax") else SUM if kernel.startswith("qnn_sum") else REQUANTIZE
        assert not set(found) - allowed, f"{kernel}: {found}"


def test_the_walk_would_see_a_float_model():
    found = sum(operations_of("digits_cnn_float32", "float32").values(), Counter())
    assert found["Add"] and found["Mul"]
