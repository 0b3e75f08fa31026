"""Integers that overflow wrap, whatever is computed from them: compiled and interpreted alike."""

import numpy as np
import pytest
import tvm
from tvm import relax

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from tests.passes.modules import checked_module as module

OPERATIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_computed_from_an_overflow(name, dtype, rng):
    """LLVM may neither widen the sum nor compare the operands instead."""
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 300), dtype, endpoint=True)
    x[:4], y[:4] = (info.min, info.max, info.min, info.max), (info.min, info.max, info.max, info.min)

    def build(builder, a, b):
        result = builder.emit(getattr(relax.op, name)(a, b))
        clipped = relax.op.minimum(result, constant(np.asarray(1, dtype)))
        return [
            result,
            relax.op.maximum(builder.emit(clipped), constant(np.asarray(-1, dtype))),
            relax.op.astype(result, "float64"),
            relax.op.less(result, a),
        ]

    qnn_module = module(build, x, y)
    with np.errstate(over="ignore"):
        raw = OPERATIONS[name](x, y)
    expected = [raw, np.clip(raw, -1, 1), raw.astype(np.float64), raw < x]
    for runner in (qnn_ext.build(qnn_module, num_threads=1), qnn_ext.Interpreter(qnn_module)):
        for found, wanted in zip(runner(x, y), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def assert_equal_compiled(build, *arrays):
    qnn_module = module(build, *arrays)
    expected = qnn_ext.Interpreter(qnn_module)(*arrays)
    for target in ("x86-64", "native"):
        for found, wanted in zip(qnn_ext.build(qnn_module, target, 1)(*arrays), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_inside_of_our_own_kernels(name, dtype, rng):
    """Sums that requantize, dequantize and the accumulators of a product are fused with."""
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 8, 40), dtype, endpoint=True)
    x[0, :2], y[0, :2] = (info.min, info.max), (info.min, info.max)
    weight = rng.integers(-128, 128, (40, 8), np.int8)

    def build(builder, a, b):
        def result(left=a, right=b):  # anew for each reader, with which it is one kernel
            return builder.emit(getattr(relax.op, name)(left, right))

        outputs = [
            qnn.requantize(result(), 2.0**-24, 3, 1.0, -7, out_dtype="int8"),
            qnn.requantize(result(), 1.0, 100, 1.0, -7, out_dtype="int16"),
            qnn.requantize(result(), 2.0**-10, 3, 1.0, 0, rounding="TFLITE", out_dtype="int32"),
            qnn.dequantize(result(), 0.5, 2**31 - 1),
        ]
        if dtype == "int32":
            narrow = builder.emit(qnn.requantize(a, 2.0**-25, 0, 1.0, 0, out_dtype="int8"))
            product = builder.emit(qnn.dense(narrow, constant(weight.T.copy()), 0, 0, 1.0, 1.0))
            total = result(product, builder.emit(relax.op.max(b, [1], keepdims=True)))
            outputs.append(qnn.requantize(total, 2.0**-10, 3, 1.0, 0, rounding="TFLITE", out_dtype="int32"))
        return outputs

    assert_equal_compiled(build, x, y)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("rounding", ["TFLITE", "TFLITE_UPWARD", "UPWARD", "TONEAREST"])
def test_multipliers_that_shift_beyond_32_bits(rounding, dtype, rng):
    """TFLite's rounding wraps, as TFLite does; Relay's saturate."""
    info = np.iinfo(dtype)
    x = np.concatenate([[info.min, info.max, 0, 1], np.arange(100), rng.integers(info.min, info.max, 200)])
    x = np.asarray(x, dtype).reshape(8, 38)
    scales = np.asarray([2.0**20, 2.0**23 * 1.3, 2.0**24, 2.0**25 * 1.7, 2.0**28, 2.0**30 * 1.9, 2.0**40, 1.0])

    def build(_, a):
        each = [
            qnn.requantize(a, float(scale), 0, 1.0, 3, out_dtype=out, rounding=rounding, compute_dtype="int64")
            for scale in scales
            for out in ("uint8", "int16", "int32")
        ]
        channels = constant(scales.astype(np.float32))
        return [*each, qnn.requantize(a, channels, 0, 1.0, 0, 0, rounding, "int64", "int32")]

    assert_equal_compiled(build, x)
    if not rounding.startswith("TFLITE"):
        found = qnn_ext.Interpreter(module(build, x))(x)[15]  # 2^30 · 1.9 to uint8
        np.testing.assert_array_equal(found, np.where(x > 0, 255, np.where(x < 0, 0, 3)))


def test_sums_that_are_zero_at_build():
    """A difference of a tensor and itself: nothing remains to be wrapped, and the kernel builds."""
    scale, zero = relax.const(2.0**70, "float32"), relax.const(131, "int32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            options = {"rounding": "TFLITE", "out_dtype": "uint8"}
            parameters = [scale, zero, scale, zero, relax.const(2.0**40, "float32"), relax.const(0, "int32")]
            result = builder.emit(qnn.subtract(x, x, *parameters, **options))
            outputs = builder.emit_output(relax.Tuple([result]))
        builder.emit_func_output(outputs)
    main = builder.get()["main"].with_attr("num_input", 1)
    specs = (TensorSpec("x", (1, 3), "uint8"),), (TensorSpec("y", (1, 3), "uint8"),)
    built = QnnModule(ir=tvm.IRModule({"main": main}), inputs=specs[0], outputs=specs[1])
    value = np.array([[0, 131, 255]], np.uint8)
    np.testing.assert_array_equal(qnn_ext.build(built, num_threads=1)(value), qnn_ext.Interpreter(built)(value))
