"""Small QNN modules for the pass tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import IRModule, relax

from qnn_ext import op as qnn
from qnn_ext.build import lower_module
from qnn_ext.codegen import generate_code
from qnn_ext.op.base import constant
from qnn_ext.target import make_target

TARGETS = ("native", "skylake-avx512", "haswell", "x86-64")


def module(inputs: Sequence[tuple[Sequence[int], str]], body: Callable) -> IRModule:
    """`main` over the inputs; body(emit, *variables) returns the result or a list of results."""
    params = [relax.Var(f"x{i}", relax.TensorType(tuple(shape), dtype)) for i, (shape, dtype) in enumerate(inputs)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = body(builder.emit, *params)
            fields = result if isinstance(result, list) else [result]
            output = builder.emit_output(relax.Tuple([builder.emit(field) for field in fields]))
        builder.emit_func_output(output)
    return builder.get()


def random_input(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Values over the whole range of an integer dtype, with both ends present."""
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    data.reshape(-1)[:2] = (info.min, info.max)[: data.size]
    return data


def conv_module(
    rng: np.random.Generator,
    *,
    data: tuple[Sequence[int], str] = ((1, 7, 8, 8), "uint8"),
    weight: tuple[Sequence[int], str] = ((12, 3, 3, 8), "int8"),
    zero_points: tuple[int, int | Sequence[int]] = (3, 0),
    rounding: str = "TONEAREST_EVEN",
    out: tuple[str, int] = ("uint8", 7),
    residual: bool = False,
    **attributes: object,
) -> IRModule:
    """conv2d + bias + requantize + clip (+ residual add), weights OHWI with one scale per channel."""
    channels = weight[0][0]
    w = random_input(rng, *weight)
    bias = rng.integers(-3000, 3000, channels).astype(np.int32)
    weight_scale = rng.uniform(0.002, 0.01, channels).astype(np.float32)
    zw = np.asarray(zero_points[1], np.int32)

    def body(emit, x, *rest):
        acc = emit(qnn.conv2d(x, constant(w), zero_points[0], constant(zw), 0.05, constant(weight_scale), **attributes))
        axis = 1 if attributes.get("data_layout") == "NCHW" else 3
        shape = [1, 1, 1, 1]
        shape[axis] = channels
        acc = emit(relax.op.add(acc, constant(bias.reshape(shape))))
        scale = constant((np.float32(0.05) * weight_scale).astype(np.float32))
        y = emit(qnn.requantize(acc, scale, 0, 0.5, out[1], axis=axis, rounding=rounding, out_dtype=out[0]))
        y = emit(relax.op.clip(y, out[1], out[1] + 100))
        if residual:
            y = emit(qnn.add(y, rest[0], 0.5, out[1], 0.25, 5, 0.6, 9, rounding=rounding, out_dtype=out[0]))
        return y

    inputs = [data]
    if residual:
        plain = module([data], body_without_residual(w, zero_points, attributes))
        shape = [int(dim) for dim in plain["main"].ret_ty.fields[0].shape]
        inputs.append((shape, out[0]))
    return module(inputs, body)


def body_without_residual(w: np.ndarray, zero_points: tuple, attributes: dict) -> Callable:
    """Only the convolution, to learn its output shape."""

    def body(emit, x):
        return emit(qnn.conv2d(x, constant(w), zero_points[0], constant(np.int32(0)), 0.05, 1.0, **attributes))

    return body


def inputs_of(rng: np.random.Generator, mod: IRModule) -> list[np.ndarray]:
    """Random inputs for `main`."""
    return [random_input(rng, [int(d) for d in p.ty.shape], str(p.ty.dtype)) for p in mod["main"].params]


def compile_and_run(mod: IRModule, target: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All results of the fully lowered module on this CPU."""
    resolved = make_target(target)
    machine = relax.VirtualMachine(generate_code(lower_module(mod, resolved), resolved), tvm.cpu())
    return [np.asarray(result.numpy()) for result in machine["main"](*map(tvm.runtime.tensor, inputs))]
