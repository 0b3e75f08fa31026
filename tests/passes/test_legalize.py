"""Legalize: the dtypes that each target wants, without changing a bit, and at no cost in the middle of a model."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.target import Target

import qnn_ext
from qnn_ext import QnnModule
from qnn_ext import op as qnn
from qnn_ext.compiling.build import qnn_pipeline
from qnn_ext.op.base import constant, constant_value
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import channels_last, fold_padding, legalize
from qnn_ext.passes.inline import inlined
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.config import preferred_dtype
from qnn_ext.targets.features import operand_dtypes
from qnn_ext.targets.names import make_target

from .modules import CONVOLUTIONS, assert_same, conv_module, inputs_of, module, stages

ARM = {"mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+dotprod"]}
DATA = Path(qnn_ext.__file__).parent / "data"
WANTED = {
    "cascadelake": ("uint8", "int8"),
    "alderlake": ("uint8", "int8"),
    "haswell": None,
    "x86-64": None,
    "dotprod": ("int8", "int8"),
    "neon": ("int8", "int8"),
    "armv7": ("int8", "int8"),
}
TARGETS = {
    "dotprod": ARM,
    "neon": {"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "armv7": {"mtriple": "armv7l-linux-gnueabihf", "mattr": ["+v7", "+vfp3", "+neon"], "mfloat-abi": "hard"},
}


def target_of(name: str) -> Target:
    return make_target(TARGETS.get(name, name), 1)


def is_shift(call: relax.Expr) -> bool:
    """Whether a call only moves 8-bit values to the other signedness."""
    if op_name(call) != "qnn.requantize":
        return False
    values = [constant_value(arg) for arg in call.args[1:5]]
    if any(value is None for value in values):
        return False
    dtypes = {str(call.args[0].ty.dtype), str(call.ty.dtype)}
    return dtypes == {"int8", "uint8"} and bool((values[0] == values[2]).all())


def operand_dtypes_of(mod: IRModule, operator: str) -> list[list[str]]:
    calls = [binding.value for binding in bindings_of(mod["main"])]
    return [[str(arg.ty.dtype) for arg in call.args[:2]] for call in calls if op_name(call) == operator]


@pytest.mark.parametrize("name", WANTED)
def test_what_targets_want(name):
    assert operand_dtypes(target_of(name)) == WANTED[name]
    assert preferred_dtype(TARGETS.get(name, name)) == (WANTED[name] or ("uint8",))[0]


def test_cuda_wants_signed_operands():
    assert operand_dtypes(Target({"kind": "cuda", "arch": "sm_80"})) == ("int8", "int8")


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("data, weight", [("int8", "uint8"), ("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_operands_of_a_convolution(rng, name, data, weight):
    mod = conv_module(rng, data=((1, 5, 5, 8), data), weight=((4, 3, 3, 8), weight), out=("int8", 0))
    (found,) = operand_dtypes_of(legalize(mod, target_of(name)), "qnn.conv2d")
    assert tuple(found) == (WANTED[name] or (data, weight))


def test_targets_that_widen_are_left_alone(rng):
    mod = conv_module(rng, data=((1, 5, 5, 8), "int8"), zero_points=(-3, 0), out=("int8", 0))
    assert legalize(mod, make_target("haswell")).script() == mod.script()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_through_every_pass(rng, name):
    mod = conv_module(rng, **CONVOLUTIONS[name])
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for target in (ARM, "cascadelake"):
        for stage, rewritten in stages(mod, target):
            assert_same(interpret(rewritten, inputs), expected, f"{stage} for {target}")


@pytest.mark.parametrize("name", ["cascadelake", "dotprod"])
@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("y_dtype", ["int8", "uint8"])
def test_both_operands_of_run_time(rng, name, x_dtype, y_dtype):
    def body(emit, x, y):
        acc = emit(qnn.batch_matmul(x, y, 5, 3, 0.1, 0.02))
        return qnn.requantize(acc, np.float32(0.002), 0, 0.9, 4, out_dtype="int8")

    mod = module([((2, 5, 12), x_dtype), ((2, 7, 12), y_dtype)], body)
    inputs = inputs_of(rng, mod)
    legal = legalize(mod, target_of(name))
    assert tuple(operand_dtypes_of(legal, "qnn.batch_matmul")[0]) == WANTED[name]
    assert_same(interpret(legal, inputs), interpret(mod, inputs), name)


@pytest.mark.parametrize("name, dtype", [("cascadelake", "int8"), ("dotprod", "uint8")])
def test_values_move_as_twins(rng, name, dtype):
    """Shape operators, pooling, padding, concat, clips and tables between two convolutions carry the shifted values."""
    w1, w2 = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((8, 3, 3, 4), (5, 1, 1, 8)))
    low = np.iinfo(dtype).min
    entries = rng.integers(low, low + 256, 256).astype(dtype)

    def body(emit, x):
        acc = emit(qnn.conv2d(x, constant(w1), low + 125, 0, 0.1, 0.02, padding=(1, 1, 1, 1)))
        y = emit(qnn.requantize(acc, np.float32(0.002), 0, 0.8, low + 108, out_dtype=dtype))
        y = emit(relax.op.nn.max_pool2d(y, (2, 2), (2, 2), padding=(1, 1, 0, 0), layout="NHWC"))
        y = emit(relax.op.nn.pad(y, [0, 0, 1, 0, 0, 2, 0, 0], pad_mode="constant", pad_value=low + 108))
        left, right = (emit(part) for part in emit(relax.op.split(y, 2, axis=3)))
        y = emit(relax.op.concat([emit(qnn.table(left, constant(entries))), right], axis=3))
        y = emit(relax.op.clip(y, low + 28, low + 178))
        acc = emit(qnn.conv2d(y, constant(w2), low + 108, 0, 0.8, 0.01))
        return [qnn.requantize(acc, np.float32(0.008), 0, 0.9, low + 132, out_dtype=dtype), y]

    mod = module([((1, 6, 6, 4), dtype)], body)
    inputs = inputs_of(rng, mod)
    legal = legalize(mod, target_of(name))
    assert_same(interpret(legal, inputs), interpret(mod, inputs), name)
    shifts = [binding for binding in bindings_of(legal["main"]) if is_shift(binding.value)]
    assert len(shifts) == 2, "the input's, and that of the result that a convolution reads too"


@pytest.mark.parametrize("name, dtype", [("cascadelake", "int8"), ("dotprod", "uint8")])
def test_zero_points_of_run_time_move_with_the_data(rng, name, dtype):
    """A tensor quantized with a run-time zero point comes shifted from its producer; the zero point moves once."""
    weight = rng.integers(-128, 128, (6, 9)).astype(np.int8)

    def body(emit, x, zero_point):
        q = emit(qnn.quantize(x, 0.1, zero_point, out_dtype=dtype))
        return [qnn.dense(q, constant(weight), zero_point, 0, 0.1, 0.02) for _ in range(2)]

    mod = module([((4, 9), "float32"), ((), "int32")], body)
    inputs = [rng.normal(0, 6, (4, 9)).astype(np.float32), np.asarray(np.iinfo(dtype).min + 77, np.int32)]
    legal = legalize(mod, target_of(name))
    assert_same(interpret(legal, inputs), interpret(mod, inputs), name)
    names = [op_name(binding.value) for binding in bindings_of(legal["main"])]
    assert (names.count("add"), names.count("qnn.requantize")) == (1, 0)
    assert operand_dtypes_of(legal, "qnn.dense") == [list(WANTED[name])] * 2


@pytest.mark.parametrize("name, dtype", [("cascadelake", "int8"), ("dotprod", "uint8")])
@pytest.mark.parametrize("rounding, shifts", [("TONEAREST_EVEN", 1), ("TFLITE", 1), ("UPWARD", 2)])
def test_a_zero_point_that_is_rounded_with_the_value_stays(rng, name, dtype, rounding, shifts):
    """Relay's float32 routes add it before they round: moving it could change the last bit. The result is shifted."""
    weight = rng.integers(-128, 128, (6, 9)).astype(np.int8)
    route = {"compute_dtype": "float32"} if rounding == "UPWARD" else {}

    def body(emit, x):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.1, 0.02))
        y = emit(qnn.requantize(acc, np.float32(0.002), 0, 0.9, 4, out_dtype=dtype, rounding=rounding, **route))
        return qnn.dense(y, constant(weight[:, :6].copy()), 4, 0, 0.9, 0.02)

    mod = module([((4, 9), dtype)], body)
    inputs = inputs_of(rng, mod)
    legal = legalize(mod, target_of(name))
    assert_same(interpret(legal, inputs), interpret(mod, inputs), rounding)
    assert sum(is_shift(binding.value) for binding in bindings_of(legal["main"])) == shifts


# ---- bundled models ----------------------------------------------------------------------------------------------

# file -> shifts that stay: of a model's input, or behind an operator whose sum is rounded in float with its zero point
UINT8_MODELS = {
    "digits_cnn_uint8.tflite": 1,
    "digits_cnn_qdq.onnx": 1,
    "digits_cnn_qoperator.onnx": 1,
    "digits_cnn_dynamic.onnx": 0,
    "digits_transformer_qdq.onnx": 2,
}


@cache
def bundled(file: str) -> QnnModule:
    return (qnn_ext.from_tflite if file.endswith(".tflite") else qnn_ext.from_onnx)(DATA / file)


def values_for(mod: IRModule, rng: np.random.Generator) -> list[np.ndarray]:
    shapes = [([int(dim) for dim in param.ty.shape], str(param.ty.dtype)) for param in mod["main"].params]
    return [
        rng.random(shape).astype(dtype) if dtype == "float32" else rng.integers(0, 256, shape).astype(dtype)
        for shape, dtype in shapes
    ]


@pytest.mark.parametrize("file", UINT8_MODELS)
def test_bundled_uint8_models_become_int8(rng, file):
    mod = channels_last(fold_padding(inlined(bundled(file).ir)))
    legal = legalize(mod, target_of("dotprod"))
    inputs = values_for(mod, rng)
    assert_same(interpret(legal, inputs), interpret(mod, inputs), file)
    for operator in ("qnn.conv2d", "qnn.dense", "qnn.batch_matmul"):
        for dtypes in operand_dtypes_of(legal, operator):
            assert dtypes == ["int8", "int8"]
    shifts = [binding.value for binding in bindings_of(legal["main"]) if is_shift(binding.value)]
    assert len(shifts) == UINT8_MODELS[file]


@pytest.mark.parametrize("file", UINT8_MODELS)
def test_no_bundled_model_has_a_kernel_more(file):
    """What is left of the shifts hides in the kernels of their producers, but for that of the model's input."""
    module = bundled(file)
    kernels = [len(qnn_pipeline(module.ir, target_of(name)).functions) for name in ("dotprod", "haswell")]
    entry = sum(spec.dtype == "uint8" for spec in module.inputs)
    assert kernels[0] <= kernels[1] + entry
