"""Whole quantized models as one GPU module: equal to the oracle bit for bit on the emulated GPU, and good CUDA."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import numpy as np
import pytest
from tvm import tirx

import qnn_ext
from qnn_ext import Interpreter, build
from qnn_ext.compiling.build import lower_module
from qnn_ext.frontends import pytorch
from qnn_ext.numerics.annotations import facts_of
from qnn_ext.targets import cuda_compiler
from qnn_ext.targets.names import make_target

from .models import run_model

DATA = qnn_ext.__path__[0] + "/data"
# model -> the architecture it is built for; all architectures for one of them
MODELS = {
    "digits_cnn_int8.tflite": ("sm_75", "sm_80", "sm_90"),
    "digits_cnn_uint8.tflite": ("sm_75",),
    "digits_cnn_int16x8.tflite": ("sm_80",),
    "digits_cnn_dynamic.tflite": ("sm_90",),
    "digits_lstm_int8.tflite": ("sm_80",),
    "digits_cnn_qdq.onnx": ("sm_75",),
    "digits_cnn_qoperator.onnx": ("sm_80",),
    "digits_cnn_dynamic.onnx": ("sm_90",),
    "digits_transformer_qdq.onnx": ("sm_80",),
    "digits_cnn_pt2e_x86.pt2": ("sm_75",),
    "digits_cnn_pt2e_xnnpack.pt2": ("sm_90",),
    "digits_transformer_pt2e_x86.pt2": ("sm_90",),
    "digits_cnn_eager.pt": ("sm_80",),
    "digits_cnn_fx.pt": ("sm_90",),
}
CASES = [(name, architecture) for name, architectures in MODELS.items() for architecture in architectures]
# these are in `make test`: each takes seconds on the emulated GPU
EXECUTED = {
    ("digits_cnn_int8.tflite", "sm_80"),
    ("digits_cnn_uint8.tflite", "sm_75"),
    ("digits_lstm_int8.tflite", "sm_80"),
    ("digits_cnn_qdq.onnx", "sm_75"),
    ("digits_cnn_dynamic.onnx", "sm_90"),
    ("digits_transformer_qdq.onnx", "sm_80"),
    ("digits_cnn_pt2e_x86.pt2", "sm_75"),
    ("digits_cnn_eager.pt", "sm_80"),
}
OTHERS = pytest.mark.exhaustive("EXECUTED, a model of each format")


@cache
def model(name):
    path = f"{DATA}/{name}"
    if name.endswith(".tflite"):
        return qnn_ext.from_tflite(path)
    if name.endswith(".onnx"):
        return qnn_ext.from_onnx(path)
    shapes = {} if name.endswith(".pt2") else {"shapes": {"image": (1, 1, 8, 8)}}
    return pytorch.from_pytorch(path, **shapes)


@cache
def engine_of(name, architecture):
    return build(model(name), architecture)


def sample(module, rng):
    """One random value for each input, over the whole range of its dtype."""
    values = {}
    for spec in module.inputs:
        if spec.dtype.startswith("float"):
            values[spec.name] = rng.normal(0, 2, spec.shape).astype(spec.dtype)
        elif spec.dtype in ("int32", "int64"):  # tokens
            values[spec.name] = rng.integers(0, 8, spec.shape).astype(spec.dtype)
        else:
            limits = np.iinfo(spec.dtype)
            values[spec.name] = rng.integers(limits.min, limits.max + 1, spec.shape).astype(spec.dtype)
    return values


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "architecture"), [pytest.param(*case, marks=[] if case in EXECUTED else OTHERS) for case in CASES]
)
def test_equals_oracle(name, architecture, rng):
    module = model(name)
    values = sample(module, rng)
    expected = list(Interpreter(module).run(values).values())
    found = run_model(module, architecture, list(values.values()))[: len(expected)]
    for output, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(output, reference)


def test_model_of_nine_bit_weights(models, rng):
    """MobileNetV1 in uint8: its 13 depthwise convolutions reach the GPU with int16 weights, and none falls back."""
    module = qnn_ext.from_tflite(models / "tflite/mobilenet_v1_0.25_128_quant.tflite")
    lowered = lower_module(module.ir, make_target("sm_80"))
    kernels = [function for function in lowered.functions.values() if isinstance(function, tirx.PrimFunc)]
    chosen = Counter(facts.implementation for facts in map(facts_of, kernels) if facts)
    assert chosen["depthwise_conv2d_nhwc.cuda"] == 13
    assert "conv2d_nhwc.cuda" not in chosen
    values = sample(module, rng)
    (expected,) = Interpreter(module).run(values).values()
    np.testing.assert_array_equal(run_model(module, "sm_80", list(values.values()))[0], expected)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_source_compiles(name, architecture):
    """All float operations of the PTX are IEEE 754's, none that flushes or approximates; products never meet sums."""
    engine = engine_of(name, architecture)
    if cuda_compiler._tool("nvcc") is None and not cuda_compiler._nvrtcs():
        pytest.skip("neither nvcc nor NVRTC is here to compile CUDA with")
    source, code = engine.source("cuda"), engine.source("ptx")
    assert f".target {architecture}" in code
    assert not re.search(r"\.ftz|\.approx", code)
    asked_for = source.count("__fmaf_rn") + len(re.findall(r"\b(?:exp|log|pow|tanh|erf)f\(", source))
    assert asked_for or "fma.rn.f32" not in code
    kernels = cuda_compiler.kernel_names(source)
    assert kernels and all(f".entry {kernel}(" in code for kernel in kernels)


@pytest.mark.parametrize("name", ["digits_cnn_int8.tflite", "digits_transformer_qdq.onnx", "digits_lstm_int8.tflite"])
def test_no_round_trip_and_no_pool(name):
    """Between inputs and outputs there are launches alone, and all memory is planned with the graph's tensors."""
    engine = engine_of(name, "sm_80")
    host = engine.source("ll")
    assert "TVMBackendAllocWorkspace" not in host
    source = engine.source("cuda")
    assert all(f"{kernel.symbol}_kernel" in source for kernel in engine.kernels)
