"""join_shuffles and shuffles: pixel shuffles become part of the convolution's kernel, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.passes.join_shuffles import join_shuffles
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.cpus import TARGETS
from tests.op.helpers import random_integers

from .modules import checked_module

BATCH, HEIGHT, WIDTH = 2, 5, 7


def depth_to_space(x, size, mode, emit):
    """(N, C, H, W) as ONNX's DepthToSpace defines it."""
    n, c, h, w = (int(dim) for dim in x.ty.shape)
    inner = c // size**2
    shape, axes = (
        ((n, size, size, inner, h, w), [0, 3, 4, 1, 5, 2])
        if mode == "DCR"
        else ((n, inner, size, size, h, w), [0, 1, 4, 2, 5, 3])
    )
    moved = emit(relax.op.permute_dims(emit(relax.op.reshape(x, shape)), axes))
    return emit(relax.op.reshape(moved, (n, inner, h * size, w * size)))


def upscaling(rng, size, mode, inner, tail, weight_zero_point=0, groups=1, constants=True):
    """Convolution, bias, `tail`, pixel shuffle, from 8 channels to `inner`; returns the module and its inputs."""
    channels = inner * size**2
    data = random_integers(rng, (BATCH, 8, HEIGHT, WIDTH), "uint8")
    weight = random_integers(rng, (channels, 8 // groups, 3, 3), "int8")
    bias = rng.integers(-5000, 5000, (1, channels, 1, 1)).astype(np.int32)
    scales = rng.uniform(0.005, 0.02, channels).astype(np.float32)
    skip = random_integers(rng, (BATCH, channels, HEIGHT, WIDTH), "int8")

    def main(builder, x, other):
        emit = builder.emit
        acc = emit(op.conv2d(x, weight, 9, weight_zero_point, 1.0, 1.0, padding=(1, 1, 1, 1), groups=groups,
                             data_layout="NCHW", kernel_layout="OIHW"))  # fmt: skip
        acc = emit(relax.op.add(acc, relax.const(bias)))
        return [depth_to_space(emit(TAILS[tail](acc, scales, other, emit)), size, mode, emit)]

    return checked_module(main, data, skip), [data, skip]


def requantized(acc, scales, emit):
    return emit(op.requantize(acc, scales, 0, 0.7, 3, axis=1, out_dtype="int8"))


TAILS = {
    "requantize": lambda acc, scales, skip, emit: requantized(acc, scales, emit),
    "per-channel result": lambda acc, scales, skip, emit: op.requantize(
        acc, 0.01, 0, scales * 60, (scales * 1000).astype(np.int32), axis=1, out_dtype="uint8"
    ),
    "table": lambda acc, scales, skip, emit: op.table(
        requantized(acc, scales, emit), np.arange(256)[::-1].astype(np.uint8)
    ),
    "constant": lambda acc, scales, skip, emit: relax.op.maximum(
        requantized(acc, scales, emit), relax.const(np.arange(len(scales)).astype(np.int8).reshape(1, -1, 1, 1))
    ),
    "residual": lambda acc, scales, skip, emit: op.add(requantized(acc, scales, emit), skip, 0.7, 3, 0.3, 1, 0.6, 0),
    "float": lambda acc, scales, skip, emit: op.dequantize(acc, scales, 0, axis=1),
}


def kernels(engine) -> list[str]:
    return [kernel.operators for kernel in engine.kernels]


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("size", "mode", "inner", "tail"),
    [
        (2, "CRD", 16, "requantize"),
        (2, "DCR", 12, "requantize"),
        (3, "CRD", 4, "table"),
        (2, "CRD", 5, "constant"),
        (3, "DCR", 8, "per-channel result"),
        (2, "CRD", 8, "residual"),
        (4, "CRD", 3, "float"),
        (4, "DCR", 2, "float"),
        (2, "CRD", 3, "float"),
        (3, "DCR", 1, "float"),
        (2, "DCR", 20, "float"),
        (3, "CRD", 3, "float"),
        (5, "CRD", 3, "float"),
    ],
)
def test_exact(rng, size, mode, inner, tail, target):
    """Bytes and float32 in channels first, odd images, several batches."""
    module, inputs = upscaling(rng, size, mode, inner, tail)
    engine = qnn_ext.build(module, target, num_threads=1)
    np.testing.assert_array_equal(engine(*inputs), qnn_ext.Interpreter(module)(*inputs))


@pytest.mark.parametrize("tail", ["float", "requantize", "residual"])
@pytest.mark.parametrize(("size", "mode", "inner"), [(2, "CRD", 1), (2, "DCR", 3), (2, "CRD", 16), (3, "CRD", 3)])
def test_no_transpose_behind(rng, size, mode, inner, tail):
    """Into channels first, where only pixels of a row are stored side by side: part of the kernel at every scale."""
    module, inputs = upscaling(rng, size, mode, inner, tail)
    engine = qnn_ext.build(module, num_threads=1)
    assert kernels(engine)[-1].endswith("reshape+permute_dims")
    assert not engine.kernels[-1].reason
    np.testing.assert_array_equal(engine(*inputs), qnn_ext.Interpreter(module)(*inputs))


@pytest.mark.parametrize(("weight_zero_point", "groups"), [(3, 1), (0, 2)])
def test_channels_in_a_fixed_order(rng, weight_zero_point, groups):
    """Window sums, and groups, whose channels cannot change places."""
    module, inputs = upscaling(rng, 2, "CRD", 4, "requantize", weight_zero_point, groups)
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(*inputs), qnn_ext.Interpreter(module)(*inputs))


def network(rng, size, mode, inner):
    """A convolution, a pixel shuffle and a convolution on the result, all in bytes."""
    data = random_integers(rng, (1, 8, HEIGHT, WIDTH), "uint8")
    weights = [random_integers(rng, shape, "int8") for shape in ((inner * size**2, 8, 3, 3), (6, inner, 3, 3))]

    def main(builder, x):
        for weight, last in zip(weights, (False, True), strict=True):
            attributes = dict(padding=(1, 1, 1, 1), data_layout="NCHW", kernel_layout="OIHW")
            acc = builder.emit(op.conv2d(x, weight, 9, 0, 1.0, 1.0, **attributes))
            x = builder.emit(op.requantize(acc, 0.004, 0, 1.0, 9, out_dtype="uint8"))
            x = x if last else depth_to_space(x, size, mode, builder.emit)
        return [builder.emit(relax.op.mean(op_to_float(x, builder.emit), [2, 3]))]

    return checked_module(main, data), data


def op_to_float(x, emit):
    return emit(op.dequantize(x, 0.1, 9))


@pytest.mark.parametrize(("size", "mode"), [(2, "CRD"), (3, "DCR"), (4, "CRD")])
def test_inside_a_network(rng, size, mode):
    """Between two convolutions no kernel only moves the image, and both keep their dedicated kernels."""
    module, data = network(rng, size, mode, 12)
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(data), qnn_ext.Interpreter(module)(data))
    first = next(kernel for kernel in engine.kernels if kernel.operators.startswith("conv2d_accumulate"))
    assert first.operators.endswith("requantize+reshape+permute_dims")
    assert "generic" not in first.implementation and not first.reason
    moves = [kernel for kernel in engine.kernels if kernel.operators == "transpose"]
    assert all(kernel.data_bytes < 4 * data.size for kernel in moves)  # that of the input


def test_one_transpose(rng):
    """Into channels first: the transposes of the shuffle and of the layout become one."""
    module, _ = upscaling(rng, 2, "CRD", 3, "float")
    assert len([name for name in kernels(qnn_ext.build(module, num_threads=1)) if "transpose" in name]) <= 2  # + input
    n, h, w = BATCH, HEIGHT, WIDTH
    weight = random_integers(rng, (12, 3, 3, 8), "int8")

    def main(builder, x):
        emit = builder.emit
        acc = emit(op.conv2d_accumulate(x, weight, padding=(1, 1, 1, 1)))
        apart = emit(relax.op.reshape(acc, (n, h, w, 3, 2, 2)))
        moved = emit(relax.op.permute_dims(apart, [0, 1, 4, 2, 5, 3]))
        image = emit(relax.op.reshape(moved, (n, 2 * h, 2 * w, 3)))
        return [emit(relax.op.permute_dims(image, [0, 3, 1, 2]))]

    joined = join_shuffles(checked_module(main, random_integers(rng, (n, h, w, 8), "uint8")).ir)
    names = [op_name(binding.value) for binding in bindings_of(joined["main"])]
    assert [name for name in names if name] == ["qnn.conv2d_accumulate", "reshape", "permute_dims", "reshape"]


@pytest.mark.parametrize(("size", "mode", "inner", "tail"), [(2, "CRD", 16, "float"), (3, "DCR", 4, "table")])
@pytest.mark.parametrize("target", ["sm_80", "sm_61"])
def test_behind_a_convolution_on_a_gpu(rng, size, mode, inner, tail, target):
    models = pytest.importorskip("tests.cuda.models")
    module, inputs = upscaling(rng, size, mode, inner, tail)
    assert kernels(qnn_ext.build(module, target))[-1].endswith("reshape+permute_dims")
    np.testing.assert_array_equal(models.run_model(module, target, inputs)[0], qnn_ext.Interpreter(module)(*inputs))


def test_on_a_gpu(rng):
    models = pytest.importorskip("tests.cuda.models")
    module, data = network(rng, 2, "CRD", 12)
    assert any("permute_dims" in name for name in kernels(qnn_ext.build(module, "sm_80")))
    np.testing.assert_array_equal(models.run_model(module, "sm_80", [data])[0], qnn_ext.Interpreter(module)(data))
