"""Runs one kernel as the lowering does: compute, an epilogue, one PrimFunc, schedule; and compares it with NumPy.

The reference is int64 arithmetic; results must be equal, not close.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from qnn_ext.compiling.codegen import generate_code
from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Implementation, candidates
from qnn_ext.topi_int8.workload import Workload
from tests.arm import emulator
from tests.cpus import ARM_CPUS, CPUS, cpu_target
from tests.cuda import meaning

__all__ = ["ARM_CPUS", "CPUS", "cpu_target"]


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, fill: str) -> np.ndarray:
    """Random over the whole dtype, or all "min" or "max"."""
    info = np.iinfo(dtype)
    if fill != "random":
        return np.full(shape, info.min if fill == "min" else info.max, dtype)
    return rng.integers(info.min, info.max, shape, dtype=np.int64, endpoint=True).astype(dtype)


def conv2d_reference(workload: Conv2dWorkload, x: np.ndarray, w: np.ndarray, pad_value: int) -> np.ndarray:
    """The accumulator in int64."""
    top, left, bottom, right = workload.padding
    x = np.pad(x.astype(np.int64), ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=pad_value)
    height, width = workload.out_height, workload.out_width
    out = np.zeros((workload.batch, height, width, workload.out_channels), np.int64)
    ins, outs = (channels // workload.groups for channels in (workload.in_channels, workload.out_channels))
    for r in range(workload.kernel[0]):
        for s in range(workload.kernel[1]):
            rows = r * workload.dilation[0] + np.arange(height) * workload.strides[0]
            columns = s * workload.dilation[1] + np.arange(width) * workload.strides[1]
            window = x[:, rows][:, :, columns]
            for g in range(workload.groups):
                taps = w[g * outs : (g + 1) * outs, r, s].astype(np.int64)
                out[..., g * outs : (g + 1) * outs] += window[..., g * ins : (g + 1) * ins] @ taps.T
    return out


@dataclass
class Epilogue:
    """Stages behind the accumulator, and the same in NumPy. `inputs` are the arrays the stages read."""

    inputs: list[np.ndarray]
    stages: Callable[..., te.Tensor]
    reference: Callable[[np.ndarray], np.ndarray]


def accumulator_only(shape: tuple[int, ...], rng: np.random.Generator) -> Epilogue:
    """Nothing behind the accumulator."""
    return Epilogue([], lambda acc: acc, lambda acc: acc)


def requantize(shape: tuple[int, ...], rng: np.random.Generator) -> Epilogue:
    """Bias, float32 scale per channel, ties to even, zero point, clip, uint8."""
    bias = rng.integers(-5000, 5000, shape[-1:], dtype=np.int32)
    scale = (rng.random(shape[-1:]) * 1e-3).astype(np.float32)

    def stages(acc, bias, scale):
        biased = te.compute(acc.shape, lambda *i: acc[i] + bias[i[-1]].astype(acc.dtype), name="biased")
        scaled = te.compute(acc.shape, lambda *i: biased[i].astype("float32") * scale[i[-1]], name="scaled")
        rounded = te.compute(acc.shape, lambda *i: tirx.nearbyint(scaled[i]) + tirx.const(3, "float32"), name="rounded")
        clipped = te.compute(acc.shape, lambda *i: te.max(te.min(rounded[i], 255.0), 0.0), name="clipped")
        return te.compute(acc.shape, lambda *i: clipped[i].astype("int32").astype("uint8"), name="requantize")

    def reference(acc):
        scaled = (acc + bias).astype(np.float32) * scale
        return np.clip(np.rint(scaled) + np.float32(3), 0, 255).astype(np.uint8)

    return Epilogue([bias, scale], stages, reference)


def residual_add(shape: tuple[int, ...], rng: np.random.Generator) -> Epilogue:
    """Scale, add a second activation with its own scale (in a side stage), clip, then a table of 256 entries."""
    other = integers(rng, shape, "int8", "random")
    scale = (2.0 ** -rng.integers(8, 14, shape[-1:])).astype(np.float32)  # exact with and without fused multiply-add
    table = integers(rng, (256,), "int8", "random")

    def stages(acc, other, scale, table):
        side = te.compute(acc.shape, lambda *i: other[i].astype("float32") * tirx.const(0.5, "float32"), name="side")
        summed = te.compute(acc.shape, lambda *i: acc[i].astype("float32") * scale[i[-1]] + side[i], name="summed")
        clipped = te.compute(acc.shape, lambda *i: te.max(te.min(summed[i], 127.0), -128.0), name="clipped")
        rounded = te.compute(acc.shape, lambda *i: tirx.nearbyint(clipped[i]).astype("int32"), name="rounded")
        return te.compute(acc.shape, lambda *i: table[rounded[i] + 128], name="lookup")

    def reference(acc):
        summed = acc.astype(np.float32) * scale + other.astype(np.float32) * np.float32(0.5)
        return table[np.rint(np.clip(summed, -128, 127)).astype(np.int32) + 128]

    return Epilogue([other, scale, table], stages, reference)


def fixed_point(shape: tuple[int, ...], rng: np.random.Generator) -> Epilogue:
    """An int64 fixed-point multiplier per channel, rounding half up, clip to int8."""
    multiplier = rng.integers(1 << 30, (1 << 31) - 1, shape[-1:], dtype=np.int32)

    def stages(acc, multiplier):
        product = te.compute(
            acc.shape, lambda *i: acc[i].astype("int64") * multiplier[i[-1]].astype("int64"), name="product"
        )
        half = tirx.const(1 << 41, "int64")
        shifted = te.compute(
            acc.shape, lambda *i: tirx.shift_right(product[i] + half, tirx.const(42, "int64")), name="s"
        )
        low, high = tirx.const(-128, "int64"), tirx.const(127, "int64")
        return te.compute(acc.shape, lambda *i: te.max(te.min(shifted[i], high), low).astype("int8"), name="narrow")

    def reference(acc):
        return np.clip((acc * multiplier.astype(np.int64) + (1 << 41)) >> 42, -128, 127).astype(np.int8)

    return Epilogue([multiplier], stages, reference)


EPILOGUES = {"none": accumulator_only, "requantize": requantize, "residual": residual_add, "fixed_point": fixed_point}


def check(
    workload: Workload,
    target: Target,
    implementation: Implementation | None = None,
    epilogue: str = "requantize",
    fill: tuple[str, str] = ("random", "random"),
    pad_value: int = 7,
    seed: int = 0,
) -> None:
    """Compile and run the kernel and compare every output with the reference."""
    implementation = implementation or candidates(workload, target)[0]
    rng = np.random.default_rng(seed)
    x_shape, w_shape = operand_shapes(workload)
    x = integers(rng, x_shape, workload.data_dtype, fill[0])
    w = integers(rng, w_shape, workload.weight_dtype, fill[1])
    if isinstance(workload, Conv2dWorkload) and workload.nine_bit_weights:
        w = np.minimum(w >> 7, 254).astype(w.dtype)
        w[: len(w) // 2] //= 4  # channels whose weights fit int8
    if not isinstance(workload, BatchMatmulWorkload) and workload.pairable_weights:
        w = np.maximum(w, -127)
        w.reshape(len(w), -1)[:, w[0].size // 2] = -128  # one a channel, beside others that may be -127
    packed = implementation.pack_weight(workload, w) if implementation.pack_weight else w

    if isinstance(workload, Conv2dWorkload):
        expected = conv2d_reference(workload, x, w, pad_value)
    else:
        expected = x.astype(np.int64) @ w.astype(np.int64).swapaxes(-1, -2)
    behind = EPILOGUES[epilogue](expected.shape, rng)

    placeholders = [placeholder(f"p{i}", array) for i, array in enumerate((x, packed, *behind.inputs))]
    acc = implementation.compute(workload, *placeholders[:2], pad_value)
    assert tuple(int(size) for size in acc.shape) == expected.shape
    out = behind.stages(acc, *placeholders[2:])
    got = execute(workload, target, implementation, placeholders, out, (x, packed, *behind.inputs))
    np.testing.assert_array_equal(got, behind.reference(expected))


def operand_shapes(workload: Workload) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of both operands as a model holds them."""
    if isinstance(workload, DenseWorkload):
        return (workload.m, workload.k), (workload.n, workload.k)
    if isinstance(workload, BatchMatmulWorkload):
        return (workload.batch, workload.m, workload.k), (workload.batch, workload.n, workload.k)
    weight = (workload.out_channels, *workload.kernel, workload.in_channels // workload.groups)
    return (workload.batch, workload.height, workload.width, workload.in_channels), weight


def placeholder(name: str, array: np.ndarray) -> te.Tensor:
    """A TE input of the array's type."""
    return te.placeholder(array.shape, str(array.dtype), name)


def execute(workload, target, implementation, placeholders, out, arrays) -> np.ndarray:
    """One PrimFunc of it all, scheduled, compiled and run: here, or on an emulated ARM CPU or GPU."""
    sch = Schedule(te.create_prim_func([*placeholders, out]))
    implementation.schedule(sch, workload, target)
    shape = [int(size) for size in out.shape]
    if target.kind.name == "cuda":
        return meaning.run(sch.mod, target, arrays, (shape, str(out.dtype)))
    executable = generate_code(sch.mod, target)
    if emulator.emulates(target):
        return emulator.run_kernel(executable, target, arrays, shape, str(out.dtype))
    guarded, result = guarded_array(shape, str(out.dtype))
    executable["main"](*(tvm.runtime.tensor(array) for array in arrays), tvm.runtime.from_dlpack(result))
    assert (guarded == GUARD).all(), "the kernel wrote beyond its output"
    return result


GUARD = 0x5A


def guarded_array(shape: list[int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The bytes behind an array, all GUARD, and the array, aligned as TVM asks."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 64 + 256, GUARD, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start + size :], memory[start : start + size].view(dtype).reshape(shape)
