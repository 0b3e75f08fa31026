"""One call of every operator, with attributes that differ from their defaults."""

from __future__ import annotations

import numpy as np
from tvm import relax

from qnn_ext import op
from tests.cases.segments import ARGUMENTS, COEFFICIENTS

I8 = ("data", (2, 6, 6, 4), "int8")
ONE = (0.5, 3, 0.25, -4)  # input scale and zero point, output scale and zero point
VECTOR = np.float32([0.1, 0.2, 0.3, 0.4])
ZEROS = np.int32([0, 1, -2, 3])


def round_of_a_loop() -> relax.Function:
    """(weight, state, slice) -> (whether to go on, state + slice · weight, the state before)."""
    params = [relax.Var(name, relax.TensorType((4,), "int32")) for name in ("weight", "state", "slice")]
    builder, (weight, state, part) = relax.BlockBuilder(), params
    with builder.function("body", params, private=True):
        with builder.dataflow():
            new = builder.emit(relax.op.add(state, builder.emit(relax.op.multiply(part, weight))))
            going = builder.emit(relax.op.less(builder.emit(relax.op.max(new)), relax.const(10, "int32")))
            result = builder.emit_output(relax.Tuple([going, new, state]))
        builder.emit_func_output(result)
    return builder.get()["body"]


# name -> (variables, call of the builder with attributes that differ from the defaults)
SAMPLES = {
    "quantize": ([("data", (2, 4), "float32")], lambda x: op.quantize(x, VECTOR, ZEROS, 1, "uint8", "TONEAREST", True)),
    "dequantize": ([I8], lambda x: op.dequantize(x, VECTOR, ZEROS, axis=3, out_dtype="float16")),
    "requantize": (
        [("data", (2, 4), "int32")],
        lambda x: op.requantize(x, VECTOR, ZEROS, 0.3, 1, 1, "UPWARD", "float64", "uint8"),
    ),
    "conv2d": (
        [I8, ("weight", (8, 3, 3, 2), "int8")],
        lambda x, w: op.conv2d(x, w, 1, 2, 0.5, 0.5, (2, 1), (0, 1, 1, 0), (1, 2), 2),
    ),
    "conv2d_transpose": (
        [I8, ("weight", (4, 2, 3, 3), "int8")],
        lambda x, w: op.conv2d_transpose(
            x, w, 1, 2, 0.5, 0.5, (2, 2), (0, 1, 1, 0), (1, 0), (1, 2), 2, kernel_layout="IOHW"
        ),
    ),
    "dense": (
        [("data", (2, 8), "uint8"), ("weight", (4, 8), "int8")],
        lambda x, w: op.dense(x, w, 1, ZEROS, 0.5, VECTOR, out_dtype="int64"),
    ),
    "contrib_dense_pack": (
        [("data", (2, 8), "uint8"), ("weight", (1, 2, 32, 4), "int8")],
        lambda x, w: op.contrib_dense_pack(x, w, 1, 0, 0.5, 0.25),
    ),
    "batch_matmul": (
        [("x", (2, 3, 4), "int8"), ("y", (2, 5, 4), "int8"), ("zero_point", (), "int32")],
        lambda x, y, z: op.batch_matmul(x, y, z, 1, 0.5, 0.5),
    ),
    "add": (
        [("lhs", (2, 4), "int16"), ("rhs", (4,), "int16")],
        lambda x, y: op.add(x, y, 0.5, 0, 0.5, 0, 0.5, 0, 1, 0, "TFLITE", out_dtype="int16", pot_scale=True),
    ),
    "subtract": (
        [("lhs", (2, 4), "uint8"), ("rhs", (4,), "uint8")],
        lambda x, y: op.subtract(x, y, VECTOR, ZEROS, 0.5, 0, 0.5, 0, rounding="UPWARD", out_dtype="uint8"),
    ),
    "mul": ([I8, ("rhs", (4,), "int8")], lambda x, y: op.mul(x, y, 0.5, 1, 0.5, 2, 0.5, 3)),
    "qlinear_add": (
        [("lhs", (2, 5), "int8"), ("rhs", (5,), "int8")],
        lambda x, y: op.qlinear_add(x, y, 0, -128, 0.73, 0.31, 12.625, 3, out_dtype="int8"),
    ),
    "qlinear_avg_pool": (
        [I8],
        lambda x: op.qlinear_avg_pool(x, 0.37, 3, 0.41, -4, (3, 2), (2, 1), (1, 0, 1, 1), ceil_mode=True),
    ),
    "qlinear_mul": (
        [("lhs", (2, 5), "uint8"), ("rhs", (2, 1), "uint8")],
        lambda x, y: op.qlinear_mul(x, y, 7, 255, 0.0073, 12.0, 0, out_dtype="uint8"),
    ),
    "concatenate": (
        [("a", (2, 3), "int8"), ("b", (2, 5), "int8")],
        lambda a, b: op.concatenate([a, b], [0.5, 0.25], [1, 2], 0.5, 1, axis=1, rounding="TONEAREST"),
    ),
    "avg_pool2d": (
        [I8],
        lambda x: op.avg_pool2d(x, *ONE, (3, 2), (2, 1), (1, 0, 1, 0), ceil_mode=True, count_include_pad=True),
    ),
    "mean": ([I8], lambda x: op.mean(x, *ONE, axis=[1, 2], keepdims=True)),
    "sum": ([I8], lambda x: op.sum(x, *ONE, axis=-1, rounding="TFLITE", out_dtype="int16")),
    "max": ([I8], lambda x: op.max(x, *ONE)),
    "min": ([I8], lambda x: op.min(x, *ONE, axis=0, rounding="UPWARD", compute_dtype="float32")),
    "softmax": ([I8], lambda x: op.softmax(x, *ONE, axis=1, beta=0.5)),
    "log_softmax": ([I8], lambda x: op.log_softmax(x, 0.5, 3, 1 / 16, 127, rounding="TFLITE")),
    "prelu": (
        [I8, ("alpha", (4,), "int8")],
        lambda x, a: op.prelu(x, a, 0.5, 1, 0.25, 2, 0.5, 3, rounding="TFLITE"),
    ),
    "table": ([I8], lambda x: op.table(x, np.arange(256).astype(np.int16))),
    "simulated_quantize": (
        [("data", (2, 4), "float32"), ("code", (), "int32")],
        lambda x, c: op.simulated_quantize(x, c, VECTOR, ZEROS),
    ),
    "simulated_dequantize": (
        [("data", (4, 2), "float32"), ("code", (), "int32")],
        lambda x, c: op.simulated_dequantize(x, c, VECTOR, ZEROS, axis=0),
    ),
    "conv2d_accumulate": (
        [I8, ("weight", (8, 3, 3, 2), "int8")],
        lambda x, w: op.conv2d_accumulate(x, w, (2, 1), (0, 1, 1, 0), (1, 2), 2, -3),
    ),
    "window_sum": ([I8], lambda x: op.window_sum(x, (3, 3), (2, 1), (0, 1, 1, 0), (1, 2), 2, -3)),
    "dense_accumulate": (
        [("data", (2, 8), "uint8"), ("weight", (4, 8), "int8")],
        lambda x, w: op.dense_accumulate(x, w, "int64"),
    ),
    "batch_matmul_accumulate": (
        [("x", (2, 3, 4), "int8"), ("y", (2, 5, 4), "int8")],
        lambda x, y: op.batch_matmul_accumulate(x, y),
    ),
    "row_sum": ([I8], lambda x: op.row_sum(x)),
    "resize_bilinear": ([I8], lambda x: op.resize_bilinear(x, (3, 9), half_pixel_centers=True)),
    "layer_norm": (
        [("data", (2, 4), "int16")],
        lambda x: op.layer_norm(x, ZEROS.astype(np.int16), ZEROS, np.float32(0.1)),
    ),
    "non_max_suppression": (
        [("boxes", (9, 4), "float32"), ("scores", (3, 9), "float32"), ("iou_threshold", (1,), "float32")],
        lambda x, y, overlap: op.non_max_suppression(x, y, overlap, 4, 0.25),
    ),
    "partial_sort": ([("data", (3, 7), "float32")], lambda x: op.partial_sort(x, 4)),
    "bitcast": ([("data", (2, 3), "float32")], lambda x: op.bitcast(x, "int32")),
    "true_positions": ([("mask", (9,), "bool")], lambda x: op.true_positions(x)),
    "trim": ([("data", (2, 4), "int8"), ("size", (), "int64")], lambda x, size: op.trim(x, size, 1)),
    "pool_sum": ([I8], lambda x: op.pool_sum(x, 0.5, 3, (3, 2), (2, 1), (1, 0, 1, 1), True)),
    "observe": (
        [("data", (2, 4), "float32")],
        lambda x: op.observe(x, "conv_1", "conv", "nn.conv2d", "weight", "uint8", 7, False, 1, "mse", 99.5, -1.5, 2.5),
    ),
    "check_bounds": (
        [("data", (5, 2), "int8")],
        lambda x: op.check_bounds(x, (-128, -300), (127, 300), "node 'gather'"),
    ),
    "check_divisor": ([("data", (5,), "int8")], lambda x: op.check_divisor(x, "node 'div'", zero=300)),
    "first_violation": (
        [("data", (5, 2), "int64"), ("status", (2,), "int64")],
        lambda x, status: op.first_violation(x, status, (-3, 0), (2, 7), "bounds", 4),
    ),
    "normalize": ([I8], lambda x: op.normalize(x, 0.5, 3, 1e-3, centered=False)),
    "group_norm": (
        [I8, ("gamma", (6,), "float32")],
        lambda x, g: op.group_norm(x, g, np.float32([0.5] * 6), *ONE, 3, 1, 1e-3, True, "uint8"),
    ),
    "instance_norm": ([I8], lambda x: op.instance_norm(x, VECTOR, VECTOR, *ONE, 3, 1e-3, True, "int16")),
    "loop": (
        [("going", (), "bool"), ("state", (4,), "int32"), ("sequence", (3, 4), "int32")],
        lambda going, state, sequence: op.loop(
            round_of_a_loop(), [relax.const(ZEROS)], [state], [sequence], 3, [True], [True], going
        ),
    ),
    "range_scale": ([("ends", (7, 2), "float32")], lambda x: op.range_scale(x, 255)),
    "range_zero_point": (
        [("ends", (7, 2), "float32"), ("scale", (7,), "float32")],
        lambda x, y: op.range_zero_point(x, y, -128, "int8"),
    ),
    "value_range": ([("data", (3, 5), "float32")], op.value_range),
    "blockwise_dequantize": (
        [("weight", (4, 9), "uint8"), ("scale", (4, 3), "float16"), ("zero_points", (4, 2), "uint8")],
        lambda w, s, z: op.blockwise_dequantize(w, s, z, 17, "int4", 8),
    ),
    "blockwise_dense": (
        [("pixels", (2, 17), "float32"), ("weight", (4, 9), "uint8"), ("scale", (4, 3), "float32")],
        lambda x, w, s: op.blockwise_dense(x, w, s, np.float32([[0.5, 1, 2]] * 4), "uint4", 8),
    ),
    "blockwise_dense_int8": (
        [("data", (2, 17), "int8"), ("data_scale", (2, 1), "float32"), ("weight", (4, 5), "uint8")],
        lambda x, s, w: op.blockwise_dense_int8(x, s, w, np.float32([[0.5]] * 4), 1, "int2", 17),
    ),
    "blockwise_dense_lanes": (
        [("data", (2, 17), "int8"), ("data_scale", (2, 2), "float32")],
        lambda x, s: op.blockwise_dense_lanes(
            x, s, np.full((4, 9), 0x5A, np.uint8), np.float32([[0.5, 1]] * 4), 8, np.zeros(4, np.float32), "uint4", 16
        ),
    ),
    "attention": (
        [
            ("query", (2, 2, 6, 5), "float32"),
            ("key", (2, 2, 7, 5), "float32"),
            ("value", (2, 2, 7, 8), "float32"),
            ("positions", (2, 3), "int32"),
        ],
        lambda query, key, value, positions: op.attention(query, key, value, positions, scale=0.5),
    ),
    "winograd_data": ([("data", (2, 7, 9, 4), "float32")], lambda x: op.winograd_data(x, (1, 0, 1, 2))),
    "winograd_results": ([("data", (2, 2, 3, 144), "float32")], lambda x: op.winograd_results(x, (7, 9))),
    "bfloat16": ([("data", (4, 6), "float32")], lambda x: op.bfloat16(x, "uint16")),
    "float8": ([("data", (4, 6), "float32")], lambda x: op.float8(x, "float8_e4m3fn")),
    "float_function": ([("data", (4, 6), "float32")], lambda x: op.float_function(x, "tanh")),
    "lane_norm": (
        [("data", (2, 3, 23), "float32"), ("gamma", (3,), "float32"), ("beta", (3,), "float32")],
        lambda x, gamma, beta: op.lane_norm(x, gamma, beta, 1e-5),
    ),
    "lane_softmax": ([("data", (3, 2, 150), "float32")], lambda x: op.lane_softmax(x)),
    "lane_sum": ([("data", (3, 2, 23), "float32")], lambda x: op.lane_sum(x)),
    "response_norm": ([("data", (2, 5, 3, 4), "float32")], lambda x: op.response_norm(x, 3, 0.5)),
    "rms_norm": (
        [("data", (3, 7, 20), "float32"), ("gamma", (20,), "float32")],
        lambda x, gamma: op.rms_norm(x, gamma, 1e-5),
    ),
    "welford_norm": (
        [("data", (3, 7, 10), "float32"), ("gamma", (10,), "float32"), ("beta", (10,), "float32")],
        lambda x, gamma, beta: op.welford_norm(x, gamma, beta, 1e-5),
    ),
    "wide_sum": ([("data", (3, 2, 87), "float32")], lambda x: op.wide_sum(x)),
    "bias_first": (
        [("data", (2, 5, 6), "float32"), ("bias", (6,), "float32")],
        lambda data, bias: op.bias_first(data, bias),
    ),
    "fma": (
        [("a", (4, 6), "float32"), ("b", (6,), "float32"), ("c", (4, 1), "float32")],
        lambda a, b, c: op.fma(a, b, c),
    ),
    "write_rows": (
        [("data", (2, 3, 6, 4), "int8"), ("rows", (2, 3, 5, 4), "int8"), ("positions", (2, 5), "int64")],
        lambda x, rows, positions: op.write_rows(x, rows, positions, 2),
    ),
    "piecewise": (
        [("data", (2, 6, 6, 4), "float32")],
        lambda x: op.piecewise(x, COEFFICIENTS, *ARGUMENTS),
    ),
    "gelu": ([I8], lambda x: op.gelu(x, *ONE, approximate=True)),
    "elu": ([I8], lambda x: op.elu(x, *ONE, alpha=0.5)),
    "leaky_relu": ([I8], lambda x: op.leaky_relu(x, *ONE, rounding="TFLITE", alpha=0.125)),
    **{
        name: (
            [I8],
            lambda x, name=name: getattr(op, name)(x, 0.5, 3, 0.25, 4, out_dtype="uint8", rounding="TONEAREST"),
        )
        if name != "abs"
        else ([I8], lambda x: op.abs(x, *ONE))
        for name in ("abs", "erf", "exp", "hardswish", "log", "neg", "rsqrt", "sigmoid", "sqrt", "tanh")
    },
}

SUMS_OF_FLOATS = {"attention": 1e-5, "blockwise_dense": 1e-5}
"""Operators whose kernels add floats in another order -> by what part of a value the sample may differ. How far apart
they may be by their definition is tested in tests/topi_int8/test_blockwise.py."""
