"""A task as a program of its own: the product with bias and requantize, data for it, and the expected result.

It passes through `fuse` and `lower` like every model, so what is measured is the kernel that `build` makes. The
expected result is the interpreter's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tvm import IRModule, relax

from ..errors import TuningError
from ..numerics.annotations import facts_of
from ..op import batch_matmul_accumulate, conv2d_accumulate, dense_accumulate, dequantize, requantize
from ..op.base import constant_value
from ..op.evaluate import interpret
from ..passes import fuse, lower
from ..passes.rewrite import bindings_of, op_name, straight_line
from ..targets.backend import threads_of
from ..topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Workload
from ..topi_int8.strategy import tiles_from
from ..topi_int8.threads import serialize
from ..topi_int8.workload import is_float
from .space import Configuration
from .task import Task

PAD_VALUE = 3
DEQUANTIZED = ("uint8", "int8")
"""Activations of float products that their kernels dequantize."""


@dataclass(frozen=True)
class Product:
    """A workload with data: a module of one function, its inputs and its expected result."""

    module: IRModule
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray


@dataclass(frozen=True)
class Kernel:
    """A scheduled function `main` of inputs, constants and output."""

    module: IRModule
    constants: tuple[np.ndarray, ...]


def kernel_of(task: Task, configuration: Configuration | None) -> Kernel:
    """The kernel of a task with one configuration, the default one for None. Raises TuningError if the schedule cannot
    be applied with it."""
    module = product(task.workload).module
    with tiles_from(lambda item, *_: configuration if item.name == task.kernel else None):
        lowered = lower(fuse(module), task.target)
    calls = [binding.value for binding in bindings_of(lowered["main"]) if op_name(binding.value) == "call_tir"]
    function = lowered[calls[0].args[0]]
    facts = facts_of(function)
    if facts is None or facts.implementation != task.kernel:
        other = facts and facts.implementation
        raise TuningError(
            f"{task.name}: {task.kernel} cannot be scheduled with {configuration}; {other} was used instead"
        )
    values = [constant_value(arg) for arg in calls[0].args[1].fields]
    main = IRModule({"main": function.with_attr("global_symbol", "main")})
    serial = threads_of(task.target.attrs) == 1
    return Kernel(serialize(main) if serial else main, tuple(value for value in values if value is not None))


@lru_cache(maxsize=4)
def product(workload: Workload) -> Product:
    """The workload's product, + bias, requantized to uint8 with per-channel scales that use the whole range.

    Operands are random over the whole range of their dtype, and partly at its ends: every fourth row of either consists
    entirely of the lowest or of the highest value. Floats are small whole numbers, whose sums are exact in any order,
    and are not requantized.
    """
    rng = np.random.default_rng(0)
    x, w = (_operand(rng, *arguments, is_float(workload)) for arguments in _operands(workload))
    if isinstance(workload, Conv2dWorkload) and workload.nine_bit_weights:
        w = np.clip(w >> 7, -256, 254).astype(w.dtype)
    if not isinstance(workload, BatchMatmulWorkload) and workload.pairable_weights:
        lowest = np.cumsum((w == -128).reshape(len(w), -1), axis=1).reshape(w.shape)
        w = np.where(lowest > 1, np.maximum(w, -127), w)  # the first of each channel is kept
    channels = _operands(workload)[1][0][-2 if isinstance(workload, BatchMatmulWorkload) else 0]
    bias = rng.integers(-1000, 1000, channels, dtype=np.int32)
    inputs = (x, w) if isinstance(workload, BatchMatmulWorkload) else (x,)
    accumulators = _module(workload, inputs, w, bias, None)
    (sums,) = interpret(accumulators, inputs)
    if is_float(workload):
        return Product(accumulators, inputs, sums)
    scale = np.float32(120) / np.maximum(np.abs(sums.astype(np.float64)).reshape(-1, channels).max(axis=0), 1)
    module = _module(workload, inputs, w, bias, scale.astype(np.float32))
    (expected,) = interpret(module, inputs)
    return Product(module, inputs, expected)


def _operands(workload: Workload) -> tuple[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]:
    """Shape and dtype of both operands as in a model."""
    x: tuple[int, ...]
    w: tuple[int, ...]
    if isinstance(workload, Conv2dWorkload):
        x = (workload.batch, workload.height, workload.width, workload.in_channels)
        w = (workload.out_channels, *workload.kernel, workload.in_channels // workload.groups)
    elif isinstance(workload, DenseWorkload):
        x, w = (workload.m, workload.k), (workload.n, workload.k)
    else:
        x, w = (workload.batch, workload.m, workload.k), (workload.batch, workload.n, workload.k)
    return (x, workload.data_dtype), (w, workload.weight_dtype)


def _operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, floats: bool) -> np.ndarray:
    if dtype == "float32" or (floats and dtype in DEQUANTIZED):
        return rng.integers(0 if dtype == "uint8" else -8, 8, shape, endpoint=True).astype(dtype)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, shape, dtype=np.int64, endpoint=True).astype(dtype)
    rows = values.reshape(-1, shape[-1])
    rows[3::8], rows[7::8] = info.min, info.max
    return values


def _module(
    workload: Workload, inputs: tuple[np.ndarray, ...], w: np.ndarray, bias: np.ndarray, scale: np.ndarray | None
) -> IRModule:
    """A module whose `main` computes the accumulators with the bias, requantized if there is a scale."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        for name, value in zip("xy", inputs, strict=False)
    ]
    with straight_line(builder, "main", params) as returns:
        sums = builder.emit(_accumulate(workload, params, w, builder.emit), "product")
        result = builder.emit(relax.op.add(sums, relax.const(bias.astype(workload.out_dtype))), "biased")
        if scale is not None:
            parameters = (scale, np.int32(0), np.float32(1.0), np.int32(128))
            result = builder.emit(
                requantize(result, *parameters, compute_dtype="float32", out_dtype="uint8"), "requantized"
            )
        returns(result)
    return builder.get()


def _accumulate(workload: Workload, params: list[relax.Var], w: np.ndarray, emit: Callable) -> relax.Expr:
    if isinstance(workload, BatchMatmulWorkload):
        return batch_matmul_accumulate(params[0], params[1], workload.out_dtype)
    if isinstance(workload, DenseWorkload):
        return dense_accumulate(params[0], w, out_dtype=workload.out_dtype)
    x = params[0]
    if is_float(workload) and workload.data_dtype in DEQUANTIZED:
        x = emit(dequantize(x, np.float32(1.0), np.int32(0)), "dequantized")
    geometry = {name: getattr(workload, name) for name in ("strides", "padding", "dilation", "groups", "out_dtype")}
    return conv2d_accumulate(x, w, pad_value=0 if is_float(workload) else PAD_VALUE, **geometry)
