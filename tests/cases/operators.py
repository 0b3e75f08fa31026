"""Calls of operators in every rounding, dtype and code path of their own; data for them; and the check that a compiled
call equals the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from qnn_ext import op
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.op.helpers import random_integers, var

Variable = tuple[str, tuple[int, ...], str]
Case = tuple[list[Variable], Callable[..., relax.Call]]
FILLS = ("random", "low", "high", "near")
ROUNDINGS = (("TONEAREST_EVEN", None), ("TFLITE", None), ("UPWARD", "int64"), ("TONEAREST", "int64"))
ROUNDINGS += (("UPWARD", "float32"), ("TONEAREST", "float64"))


def variants() -> dict[str, Case]:
    """Cases beyond the samples: every rounding, dtype and code path."""
    cases: dict[str, Case] = {}
    image = {dtype: [("data", (2, 5, 7, 6), dtype)] for dtype in ("int8", "uint8", "int16")}
    pixels = [("pixels", (2, 5, 7, 6), "float32")]
    vector = np.float32([0.11, 0.02, 0.3, 0.4, 0.05, 0.6])

    for rounding, compute in ROUNDINGS:
        route = {"rounding": rounding, "compute_dtype": compute}
        tag = f"{rounding}-{compute}"
        for name in ("mean", "sum", "max", "min"):
            builder, scale = getattr(op, name), 9.0 if name == "sum" else 0.21
            cases[f"{name}-{tag}"] = (
                image["int8"],
                lambda x, b=builder, s=scale, r=route: b(x, 0.5, 3, s, -4, axis=[1, 2], **r),
            )
        cases[f"requantize-{tag}"] = (
            [("data", (4, 6), "int32")],
            lambda x, r=route: op.requantize(x, vector * 1e-6, 0, 0.3, 1, 1, **r),
        )
        cases[f"add-{tag}"] = (
            [("lhs", (5, 6), "int8"), ("rhs", (6,), "int8")],
            lambda x, y, r=route: op.add(x, y, 0.5, 3, 0.3, -7, 0.7, 5, **r),
        )
        cases[f"mul-{tag}"] = (
            [("lhs", (5, 6), "uint8"), ("rhs", (5, 1), "uint8")],
            lambda x, y, r=route: op.mul(x, y, 0.5, 3, 0.03, 130, 0.7, 5, out_dtype="uint8", **r),
        )
        cases[f"prelu-{tag}"] = (
            [*image["int8"], ("alpha", (6,), "int8")],
            lambda x, a, r=route: op.prelu(x, a, 0.5, 3, 0.03, 4, 0.7, 5, **r),
        )
        cases[f"avg_pool2d-{tag}"] = (
            image["int8"],
            lambda x, r=route: op.avg_pool2d(
                x, 0.5, 3, 0.5 if r["rounding"] == "TFLITE" else 0.4, 3, (3, 2), (2, 1), (1, 0, 1, 1), **r
            ),
        )
        cases[f"concatenate-{tag}"] = (
            [("a", (2, 3), "int8"), ("b", (2, 5), "int8")],
            lambda a, b, r=route: op.concatenate([a, b], [0.5, 0.25], [1, 2], 0.5, 1, axis=1, **r),
        )

    cases["requantize-TFLITE_UPWARD"] = (
        [("data", (4, 6), "int32")],
        lambda x: op.requantize(x, vector * 1e-6, 0, 0.3, 1, 1, "TFLITE_UPWARD"),
    )
    wide = [("lhs", (5, 6), "int16"), ("rhs", (6,), "int16")]
    for number, scales in enumerate(((0.05, 0.03, 0.06), (1e-9, 0.5, 0.4), (vector, 0.3, 0.7))):
        for builder in (op.add, op.subtract):
            cases[f"{builder.__name__}-TFLITE_SHIFTED-{number}"] = (
                wide,
                lambda x, y, b=builder, s=scales: b(
                    x, y, s[0], 0, s[1], 0, s[2], 0, 1, 0, "TFLITE_SHIFTED", out_dtype="int16"
                ),
            )
    cases["conv2d-depthwise-hwoi-run-time-weight"] = (
        [*image["uint8"], ("weight", (3, 3, 6, 2), "int8")],
        lambda x, w: op.conv2d(x, w, 3, 5, 0.5, 0.5, groups=6, kernel_layout="HWOI"),
    )
    cases["mean-equal-scales"] = image["uint8"], lambda x: op.mean(x, 0.5, 3, 0.5, 130, axis=[1, 3], out_dtype="uint8")
    cases["mean-all-axes"] = image["int16"], lambda x: op.mean(x, 0.5, 0, 0.4, 0, keepdims=True, out_dtype="int16")
    cases["sum-wraps"] = (
        [("data", (2, 70000), "int16")],
        lambda x: op.sum(x, 0.5, 0, 9000.0, 0, axis=1, out_dtype="int16"),
    )

    for axis in (-1, 1):
        for dtype in ("int8", "uint8", "int16"):
            low, bits = np.iinfo(dtype).min, np.iinfo(dtype).bits
            scale = 10 / 32768 if dtype == "int16" else 0.07
            fixed = (1 / 32768, 0) if dtype == "int16" else (2.0**-bits, int(low))
            cases[f"softmax-{dtype}-axis{axis}"] = (
                image[dtype],
                lambda x, a=axis, s=scale: op.softmax(x, s, 0, 1 / 256, -128, axis=a, beta=0.7),
            )
            cases[f"softmax-tflite-{dtype}-axis{axis}"] = (
                image[dtype],
                lambda x, a=axis, s=scale, f=fixed, d=dtype: op.softmax(
                    x, s, 0, *f, axis=a, rounding="TFLITE", out_dtype=d
                ),
            )
            cases[f"log_softmax-{dtype}-axis{axis}"] = (
                image[dtype],
                lambda x, a=axis, s=scale: op.log_softmax(x, s, 0, 1 / 16, 127, axis=a),
            )
        for dtype, rounding in (("int8", "TONEAREST"), ("uint8", "UPWARD")):
            cases[f"softmax-optimized-{dtype}-axis{axis}"] = (
                image[dtype],
                lambda x, a=axis, r=rounding, d=dtype: op.softmax(
                    x, 0.07, 0, 1 / 256, np.iinfo(d).min, axis=a, rounding=r, out_dtype=d
                ),
            )
        cases[f"softmax-onnxruntime-axis{axis}"] = (
            image["uint8"],
            lambda x, a=axis: op.softmax(x, 0.07, 0, 1 / 255, 3, axis=a, rounding="ONNXRUNTIME", out_dtype="uint8"),
        )
    cases["softmax-tflite-to-int16"] = (
        [("data", (3, 40), "int8")],
        lambda x: op.softmax(x, 0.1, 0, 2.0**-16, -32768, rounding="TFLITE", out_dtype="int16"),
    )
    cases["log_softmax-tflite-uint8"] = (
        [("data", (3, 40), "uint8")],
        lambda x: op.log_softmax(x, 0.1, 0, 1 / 16, 255, rounding="TFLITE", out_dtype="uint8"),
    )

    for dtype, variables in {**image, "float32": pixels}.items():
        for number, options in enumerate(({}, {"align_corners": True}, {"half_pixel_centers": True})):
            for arithmetic in ("fixed", "float32", "xnnpack")[dtype == "float32" :]:
                cases[f"resize_bilinear-{dtype}-{arithmetic}-{number}"] = (
                    variables,
                    lambda x, a=arithmetic, o=options: op.resize_bilinear(x, (8, 3), arithmetic=a, **o),
                )

    weight = random_integers(np.random.default_rng(5), (4, 3, 3, 2), "int8")  # IOHW
    data = [("data", (2, 5, 4, 4), "int8")]
    for number, (options, zero) in enumerate(
        (
            ({"strides": (2, 3), "padding": (0, 1, 1, 0), "output_padding": (1, 2)}, 0),
            ({"strides": (2, 2), "dilation": (2, 1), "groups": 2}, 3),
            ({"strides": (1, 2), "groups": 4}, np.arange(12, dtype=np.int32)),
            ({"strides": (2, 2)}, 200),
        )
    ):
        cases[f"conv2d_transpose-constant-{number}"] = (
            data,
            lambda x, o=options, z=zero: op.conv2d_transpose(x, weight, 3, z, 0.5, 0.5, kernel_layout="IOHW", **o),
        )
    cases["conv2d_transpose-nchw"] = (
        [("data", (2, 4, 5, 6), "uint8")],
        lambda x: op.conv2d_transpose(
            x, weight, 3, 1, 0.5, 0.5, (2, 2), data_layout="NCHW", kernel_layout="IOHW", out_dtype="int64"
        ),
    )

    cases["avg_pool2d-reciprocal"] = (
        [("data", (2, 4, 9, 18), "uint8")],
        lambda x: op.avg_pool2d(x, 1.0, 0, 1.0, 0, (2, 7), (1, 1), (0, 1, 0, 1), reciprocal=True, out_dtype="uint8"),
    )
    for number, (pool, strides, padding, include) in enumerate(
        (((3,), (2,), (1, 1), True), ((2, 3), (1, 2), (0, 1, 1, 2), False), ((2, 2, 3), (2, 1, 1), (0,) * 6, True))
    ):
        shape = (2, *(7, 5, 6)[: len(pool)], 18)
        cases[f"qlinear_avg_pool-{number}"] = (
            [("data", shape, "uint8")],
            lambda x, w=(pool, strides, padding), i=include: op.qlinear_avg_pool(
                x, 0.1, 130, 0.09, 5, *w, ceil_mode=True, count_include_pad=i, out_dtype="uint8"
            ),
        )
    matrix = random_integers(np.random.default_rng(8), (24, 40), "int8")
    for dtype in ("int8", "uint8"):
        for number, zero in enumerate((0, 5, np.arange(24, dtype=np.int32))):
            cases[f"dense-dynamic-zero-point-{dtype}-{number}"] = (
                [("data", (6, 40), dtype), ("zero_point", (), "int32")],
                lambda x, z, w=zero: op.dense(x, matrix, z, w, 0.5, 0.5),
            )
    kernel = random_integers(np.random.default_rng(9), (8, 3, 3, 2), "int8")
    for dtype in ("int8", "uint8"):
        for number, (zero, padding) in enumerate(((0, (1, 0, 2, 1)), (5, (0, 0, 0, 0)), (np.arange(8), (1, 1, 1, 1)))):
            cases[f"conv2d-dynamic-zero-point-{dtype}-{number}"] = (
                [("data", (2, 6, 5, 4), dtype), ("zero_point", (), "int32")],
                lambda x, z, w=zero, p=padding: op.conv2d(x, kernel, z, np.int32(w), 0.5, 0.5, padding=p, groups=2),
            )
    cases.update(products_of_int16())
    packed = random_integers(np.random.default_rng(6), (2, 3, 32, 4), "int8")
    cases["contrib_dense_pack-constant"] = (
        [("data", (5, 12), "uint8")],
        lambda x: op.contrib_dense_pack(x, packed, 3, 1, 0.5, 0.25),
    )
    for scale in (0.1, 1e-4, 3e-5):
        gamma = random_integers(np.random.default_rng(7), (48,), "int16")
        beta = np.arange(48, dtype=np.int32) * 30000
        cases[f"layer_norm-{scale}"] = (
            [("data", (5, 48), "int16")],
            lambda x, s=scale, g=gamma, b=beta: op.layer_norm(x, g, b, np.float32(s)),
        )
    for dtype in ("int8", "uint8", "int16"):
        for centered in (True, False):
            cases[f"normalize-{dtype}-{centered}"] = (
                [("data", (3, 2, 50), dtype)],
                lambda x, c=centered: op.normalize(x, 0.02, 5, 1e-5, c),
            )
        info = np.iinfo(dtype)
        for zero_point in (int(info.min), 5, int(info.max)):
            gamma, beta = np.linspace(-2, 3, 6, dtype=np.float32), vector
            parameters = (gamma, beta, 0.02, zero_point, 0.027, zero_point)
            cases[f"group_norm-{dtype}-normalize-{zero_point}"] = (
                [("data", (3, 6, 5, 7), dtype)],
                lambda x, p=parameters, d=dtype: op.group_norm(x, *p, 2, out_dtype=d),
            )
            cases[f"instance_norm-{dtype}-normalize-{zero_point}"] = (
                [("data", (2, 6, 33), dtype)],
                lambda x, p=parameters, d=dtype: op.instance_norm(x, *p, reciprocal=True, out_dtype=d),
            )
        cases[f"group_norm-{dtype}-normalize-last"] = (
            [("data", (2, 3, 5, 6), dtype)],
            lambda x: op.group_norm(x, vector, vector, 0.02, 3, 0.027, 9, 3, -1, 0.0, out_dtype="uint16"),
        )
        cases[f"pool_sum-{dtype}"] = (
            [("data", (2, 5, 7, 6), dtype)],
            lambda x: op.pool_sum(x, 0.0173, 5, (3, 2), (2, 2), (1, 0, 1, 1), True),
        )
        cases[f"sum-{dtype}-to-int32"] = (
            [("data", (2, 5, 7, 6), dtype)],
            lambda x: op.sum(x, 0.5, 7, 0.5, 0, axis=[1, 2], out_dtype="int32"),
        )
    for code in range(5):
        cases[f"simulated_quantize-{code}"] = (
            [("data", (4, 6), "float32"), ("scale", (6,), "float32")],
            lambda x, s, c=code: op.simulated_quantize(x, c, s, 3),
        )
        cases[f"simulated_dequantize-{code}"] = (
            [("data", (4, 6), "float32")],
            lambda x, c=code: op.simulated_dequantize(x, c, vector, 3),
        )
    for rounding in ("TONEAREST_EVEN", "TONEAREST"):
        for dtype in ("int8", "uint16", "int32"):
            cases[f"quantize-{rounding}-{dtype}"] = (
                [("data", (16, 6), "float32")],
                lambda x, r=rounding, d=dtype: op.quantize(x, 0.3, 3, -1, d, r),
            )
    return cases


def products_of_int16() -> dict[str, Case]:
    """With zero points for which int16 − zero point overflows int16, both constant and at run time."""
    rng, wide = np.random.default_rng(8), {"out_dtype": "int64"}
    matrix, columns = random_integers(rng, (7, 9), "int16"), np.int32([32767, 0, -32768, 5, 1, -9, 30000])
    kernel = random_integers(rng, (4, 3, 2, 3), "int16")
    image, rows = [("data", (2, 5, 6, 6), "int16")], [("data", (5, 9), "int16")]
    stack = [("x", (2, 5, 9), "int16"), ("y", (2, 7, 9), "int16")]
    at_run_time = [("zero_point", (), "int32")]
    conv2d = lambda x, w, z=-3000, zw=32767, **geometry: op.conv2d(  # noqa: E731
        x, w, z, zw, 1.0, 1.0, padding=(1, 0, 1, 1), groups=2, **geometry, **wide
    )
    transposed = lambda x: op.conv2d_transpose(  # noqa: E731
        x, kernel.repeat(2, 3), 7, np.int32(-32768), 1.0, 1.0, (2, 1), groups=2, kernel_layout="OHWI", **wide
    )
    return {
        "conv2d-int16": (image, lambda x: conv2d(x, kernel)),
        "conv2d-int16-channels": (image, lambda x: conv2d(x, kernel, zw=columns[:4])),
        "conv2d-int16-depthwise": (
            image, lambda x: op.conv2d(x, kernel[:, :, :, :1].repeat(3, 0)[:6], 5, 32767, 1.0, 1.0, groups=6, **wide)
        ),
        "conv2d-int16-weight": (
            [*image, ("weight", (4, 3, 2, 3), "int16")], lambda x, w: conv2d(x, w, zw=columns[:4])
        ),
        "conv2d-int16-zero-point": ([*image, *at_run_time], lambda x, z: conv2d(x, kernel, z)),
        "conv2d-int16-weight-zero-point": ([*image, *at_run_time], lambda x, z: conv2d(x, kernel, z, z)),
        "conv2d_transpose-int16": ([("data", (2, 5, 6, 6), "int16")], transposed),
        "dense-int16": (rows, lambda x: op.dense(x, matrix, 9, columns, 1.0, 1.0, **wide)),
        "dense-int16-weight": (
            [*rows, ("weight", (7, 9), "int16")], lambda x, w: op.dense(x, w, -32768, columns, 1.0, 1.0, **wide)
        ),
        "dense-int16-zero-point": ([*rows, *at_run_time], lambda x, z: op.dense(x, matrix, z, z, 1.0, 1.0, **wide)),
        "batch_matmul-int16": (stack, lambda x, y: op.batch_matmul(x, y, 32767, -32768, 1.0, 1.0, **wide)),
        "batch_matmul-int16-zero-point": (
            [*stack, *at_run_time], lambda x, y, z: op.batch_matmul(x, y, z, -20000, 1.0, 1.0, **wide)
        ),
    }  # fmt: skip


VARIANTS = variants()


def arrays(variables: Sequence[Variable], fill: str, rng: np.random.Generator) -> list[np.ndarray]:
    """One array per variable; "near" fills rows with close values, and floats with midpoints and NaN."""
    return [_array(name, shape, dtype, fill, rng) for name, shape, dtype in variables]


def _array(name: str, shape: tuple[int, ...], dtype: str, fill: str, rng: np.random.Generator) -> np.ndarray:
    if name == "code":
        return np.array(FILLS.index(fill), np.int32)
    if name == "zero_point":
        return np.array(3, np.int32)
    if dtype == "bool":
        return np.full(shape, fill != "low")
    if dtype.startswith("float"):
        if name in ("boxes", "scores", "scale", "pixels"):
            return (rng.random(shape) + 0.01).astype(dtype)
        special = rng.choice(np.array([0.5, -0.5, 1.5, 0.15, -0.45, 1e9, -np.inf, np.inf, np.nan], dtype), shape)
        random = (rng.standard_normal(shape) * 40).astype(dtype)
        return {"random": random, "near": special}.get(fill, np.full(shape, 3e38 if fill == "high" else -3e38, dtype))
    info = np.iinfo(dtype)
    if fill == "random":
        return random_integers(rng, shape, dtype)
    if fill == "near":
        middle = (info.min + info.max + 1) // 2
        return (middle + rng.integers(-6, 7, shape)).astype(dtype)
    return np.full(shape, info.min if fill == "low" else info.max, dtype)


def compare(found: np.ndarray, wanted: np.ndarray, rtol: float, fill: str) -> None:
    """Whether two results are equal, or no further apart than `rtol` of each value."""
    if rtol:
        np.testing.assert_allclose(found, wanted, rtol, err_msg=fill)
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=fill)


def check(case: Case, rng: np.random.Generator, target: Target | None = None, rtol: float = 0.0) -> None:
    """Build the single call, by default for this machine; its result must equal the oracle's, but for `rtol`."""
    variables, call = case
    params = [var(*variable) for variable in variables]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call(*params)))
        builder.emit_func_output(result)
    mod = builder.get()
    target = target or make_target("native", 2)
    machine = relax.VirtualMachine(generate_code(lower_module(mod, target), target), tvm.cpu())
    for fill in FILLS:
        inputs = arrays(variables, fill, rng)
        with np.errstate(all="ignore"):
            expected = interpret(mod, inputs)
        result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
        results = [result] if isinstance(result, tvm.runtime.Tensor) else result
        for found, wanted in zip(results, expected, strict=True):
            actual = found.numpy()
            assert actual.dtype == wanted.dtype
            compare(actual, wanted, rtol, fill)
