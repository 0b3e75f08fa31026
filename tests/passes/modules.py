"""Small QNN modules for the pass tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import IRModule, relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.passes import canonicalize, fold_constant_sums, fold_padding, fuse, legalize
from qnn_ext.targets.names import make_target


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


def products_so_far(x):
    """The product of each element with all before it in its row. No kernel computes it: TVM's virtual machine runs what
    contains it."""
    return relax.op.cumprod(x, -1, dtype=str(x.ty.dtype))


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


def compiled(mod: IRModule, target: str) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Computes all results of the fully lowered module on this CPU."""
    resolved = make_target(target)
    machine = relax.VirtualMachine(generate_code(lower_module(mod, resolved), resolved), tvm.cpu())

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(result.numpy()) for result in machine["main"](*map(tvm.runtime.tensor, inputs))]

    return run


def compile_and_run(mod: IRModule, target: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All results of the fully lowered module on this CPU."""
    return compiled(mod, target)(inputs)


CONVOLUTIONS = {
    "plain": {},
    "int8_data": {"data": ((1, 7, 8, 8), "int8"), "zero_points": (-3, 0), "out": ("int8", -10)},
    "both_zero_points_uint8": {"weight": ((12, 3, 3, 8), "uint8"), "zero_points": (7, 131)},
    "zero_points_at_the_ends": {"weight": ((12, 3, 3, 8), "uint8"), "zero_points": (255, 0)},
    "per_channel_weight_zero_points": {"zero_points": (11, list(range(-6, 6)))},
    "padding_asymmetric": {"zero_points": (5, 2), "padding": (1, 0, 2, 1), "strides": (2, 1)},
    "dilation_with_weight_zero_point": {"zero_points": (5, -9), "dilation": (2, 2), "padding": (2, 2, 2, 2)},
    "groups_with_weight_zero_point": {"weight": ((12, 3, 3, 4), "int8"), "zero_points": (5, 9), "groups": 2},
    "depthwise": {"weight": ((8, 3, 3, 1), "int8"), "zero_points": (5, 0), "groups": 8, "padding": (1, 1, 1, 1)},
    "depthwise_multiplier_2_zero_point": {
        "weight": ((16, 3, 3, 1), "uint8"),
        "zero_points": (5, 140),
        "groups": 8,
        "strides": (2, 2),
    },
    "pointwise_batch_3": {"data": ((3, 5, 5, 8), "uint8"), "weight": ((20, 1, 1, 8), "int8"), "zero_points": (5, 1)},
    "first_layer": {"data": ((1, 9, 9, 3), "uint8"), "weight": ((16, 3, 3, 3), "int8"), "strides": (2, 2)},
    "one_channel_out": {"weight": ((1, 3, 3, 8), "int8")},
    "nchw": {"data": ((2, 8, 6, 7), "uint8"), "data_layout": "NCHW", "zero_points": (5, 3)},
    "residual": {"residual": True, "padding": (1, 1, 1, 1)},
    "residual_int8": {
        "data": ((1, 7, 8, 8), "int8"),
        "out": ("int8", -4),
        "residual": True,
        "zero_points": (-128, 0),
    },
    "tflite_rounding": {"rounding": "TFLITE", "out": ("int8", 3), "residual": True},
    "upward_rounding": {"rounding": "UPWARD", "out": ("int8", 3)},
}


def stages(mod, target):
    """The module after each pass on the QNN graph."""
    for name, step in (
        ("padding", fold_padding),
        ("legalize", lambda m: legalize(m, make_target(target))),
        ("canonicalize", canonicalize),
        ("fold", fold_constant_sums),
        ("fuse", fuse),
    ):
        mod = step(mod)
        yield name, mod


def assert_same(actual, expected, message):
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=message)


def checked_module(function, *arrays, states=()):
    """A module of function(builder, *parameters), which gives a list of results."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([builder.emit(r) for r in function(builder, *params)]))
        builder.emit_func_output(result)
    ir = builder.get()
    count = len(arrays) - len(states)
    inputs = tuple(TensorSpec(f"p{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays[:count]))
    fields = ir["main"].ret_ty.fields[: len(ir["main"].ret_ty.fields) - len(states)]
    outputs = [TensorSpec(f"o{i}", tuple(map(int, ty.shape)), str(ty.dtype)) for i, ty in enumerate(fields)]
    return QnnModule(ir, inputs, tuple(outputs), tuple(states))


def run_lowered(mod, arrays, target):
    machine = relax.VirtualMachine(generate_code(mod, target), tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(array) for array in arrays])
    return [item.numpy() for item in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]
