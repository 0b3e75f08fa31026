"""What remains after the passes: terms, fusion, dtypes."""

import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, relax, s_tir, tirx

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module, qnn_pipeline
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.numerics.annotations import COMPOSITE
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize, fold_constant_sums, fold_padding, fuse
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.targets.names import make_target

from .modules import conv_module, inputs_of, module


def names(mod) -> list[str]:
    return [op_name(binding.value) for binding in bindings_of(mod["main"])]


@pytest.mark.parametrize(
    "zero_points,expected",
    [
        ((0, 0), ["qnn.conv2d_accumulate"]),  # T1
        ((5, 0), ["qnn.conv2d_accumulate", "add"]),  # T1 − T3
        ((0, 100), ["qnn.window_sum", "multiply", "qnn.conv2d_accumulate", "subtract"]),  # T1 − T2
        ((5, 100), ["qnn.window_sum", "multiply", "qnn.conv2d_accumulate", "subtract", "add"]),  # T1 − T2 − (T3 − T4)
        ((5, 1), ["qnn.window_sum", "qnn.conv2d_accumulate", "subtract", "add"]),  # · 1 is skipped
    ],
)
def test_terms_of_a_convolution(rng, zero_points, expected):
    weight = rng.integers(-128, 128, (4, 3, 3, 4)).astype(np.int8)
    weight.reshape(-1)[:2] = (-128, 127)
    mod = module([((1, 5, 5, 4), "uint8")], lambda emit, x: qnn.conv2d(x, constant(weight), *zero_points, 0.1, 0.02))
    found = [name for name in names(canonicalize(mod)) if name]
    assert sorted(found) == sorted(expected)


def test_a_weight_zero_point_vanishes_where_int8_has_room(rng):
    weight = rng.integers(60, 190, (4, 3, 3, 4)).astype(np.uint8)
    mod = module([((1, 5, 5, 4), "uint8")], lambda emit, x: qnn.conv2d(x, constant(weight), 0, 125, 0.1, 0.02))
    assert [name for name in names(canonicalize(mod)) if name] == ["qnn.conv2d_accumulate"]


def test_a_depthwise_convolution_has_no_window_sum(rng):
    weight = rng.integers(0, 256, (8, 3, 3, 1)).astype(np.uint8)
    mod = module(
        [((1, 5, 5, 8), "uint8")], lambda emit, x: qnn.conv2d(x, constant(weight), 3, 100, 0.1, 0.02, groups=8)
    )
    assert "qnn.window_sum" not in names(canonicalize(mod))


def test_constants_fold_into_one_addition(rng):
    mod = fold_constant_sums(canonicalize(conv_module(rng, zero_points=(5, 0))))
    assert names(mod).count("add") == 1


def test_convolution_and_epilogue_are_one_kernel(rng):
    mod = qnn_pipeline(conv_module(rng, residual=True, zero_points=(5, 9), padding=(1, 1, 1, 1)), make_target("native"))
    composites = [str(f.attrs[COMPOSITE]) for f in mod.functions.values() if f.attrs and COMPOSITE in f.attrs]
    assert composites == ["window_sum+multiply+conv2d_accumulate+subtract+add+requantize+clip+add"]


def test_the_later_convolution_takes_the_residual(rng):
    w = rng.integers(-128, 128, (8, 1, 1, 8)).astype(np.int8)

    def body(emit, x):
        ys = []
        for _ in range(2):
            acc = emit(qnn.conv2d(x, constant(w), 0, 0, 0.1, 0.02))
            ys.append(emit(qnn.requantize(acc, np.float32(0.002), 0, 0.8, 0, out_dtype="uint8")))
        return qnn.add(ys[0], ys[1], 0.8, 0, 0.8, 0, 0.9, 0, out_dtype="uint8")

    mod = fuse(canonicalize(module([((1, 4, 4, 8), "uint8")], body)))
    composites = [str(f.attrs[COMPOSITE]) for f in mod.functions.values() if f.attrs and COMPOSITE in f.attrs]
    assert sorted(composites) == ["conv2d_accumulate+requantize", "conv2d_accumulate+requantize+add"]


def test_a_value_read_twice_ends_its_kernel(rng):
    w = rng.integers(-128, 128, (8, 1, 1, 8)).astype(np.int8)

    def body(emit, x):
        acc = emit(qnn.conv2d(x, constant(w), 0, 0, 0.1, 0.02))
        y = emit(qnn.requantize(acc, np.float32(0.002), 0, 0.8, 0, out_dtype="uint8"))
        return [y, qnn.table(y, constant(np.arange(256).astype(np.uint8)[::-1].copy()))]

    mod = fuse(canonicalize(module([((1, 4, 4, 8), "uint8")], body)))
    composites = sorted(str(f.attrs[COMPOSITE]) for f in mod.functions.values() if f.attrs and COMPOSITE in f.attrs)
    assert composites == ["conv2d_accumulate+requantize", "table"]


def test_no_int32_feature_map_in_memory(rng):
    """The graph hands only 8-bit tensors from kernel to kernel, and no kernel allocates a whole int32 feature map."""
    mod = lower_module(
        conv_module(rng, data=((1, 28, 28, 32), "uint8"), weight=((64, 3, 3, 32), "int8"), padding=(1, 1, 1, 1)),
        make_target("cascadelake"),
    )
    for binding in bindings_of(mod["main"]):
        types = binding.var.ty.fields if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]
        assert all(str(ty.dtype) == "uint8" for ty in types)
    pixels = 28 * 28 * 64
    for function in mod.functions.values():
        if isinstance(function, tirx.PrimFunc):
            for size, dtype in allocations(function):
                assert not (dtype == "int32" and size >= pixels), f"an int32 buffer of {size} elements"


def allocations(function: tirx.PrimFunc) -> list[tuple[int, str]]:
    """Sizes and dtypes of the buffers allocated inside, at the region the schedule gave them."""
    passes = [
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
    planned = s_tir.transform.PlanAndUpdateBufferAllocationLocation()(IRModule({"main": function}))
    lowered = tvm.transform.Sequential(passes)(planned)["main"]
    found: list[tuple[int, str]] = []

    def visit(node) -> None:
        for buffer in getattr(node, "alloc_buffers", None) or []:
            found.append((int(np.prod([int(dim) for dim in buffer.shape])), str(buffer.dtype)))

    tvm_ffi.structural_walk(lowered.body, (tirx.Stmt, visit))
    return found


def padded_convolution(rng, pad_value, pad_width=(0, 0, 1, 2, 0, 1, 0, 0)):
    weight = rng.integers(-128, 128, (4, 3, 3, 4)).astype(np.int8)

    def body(emit, x):
        padded = emit(relax.op.nn.pad(x, list(pad_width), pad_mode="constant", pad_value=pad_value))
        return qnn.conv2d(padded, constant(weight), 9, 0, 0.1, 0.02, padding=(0, 1, 0, 0))

    return module([((1, 6, 5, 4), "uint8")], body)


def test_a_pad_with_the_zero_point_moves_into_the_convolution(rng):
    mod = padded_convolution(rng, 9)
    folded = fold_padding(mod)
    assert "nn.pad" not in names(folded)
    inputs = inputs_of(rng, mod)
    np.testing.assert_array_equal(interpret(folded, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("pad_value,pad_width", [(8, (0, 0, 1, 1, 1, 1, 0, 0)), (9, (0, 1, 1, 1, 1, 1, 0, 0))])
def test_other_pads_stay(rng, pad_value, pad_width):
    assert "nn.pad" in names(fold_padding(padded_convolution(rng, pad_value, pad_width)))


def test_a_long_chain_becomes_several_kernels(rng):
    """Compile time grows steeply with the expression of one kernel."""

    def body(emit, x):
        y = x
        for _ in range(12):
            y = emit(qnn.mul(y, x, 0.05, 3, 0.05, 3, 0.06, 4, out_dtype="uint8"))
        return y

    mod = fuse(canonicalize(module([((4, 64), "uint8")], body)))
    composites = [str(f.attrs[COMPOSITE]) for f in mod.functions.values() if f.attrs and COMPOSITE in f.attrs]
    assert sum(name.count("mul") for name in composites) == 12
    assert max(name.count("mul") for name in composites) <= 5


def test_a_group_that_no_schedule_takes_is_named(monkeypatch):
    def refuse(*_):
        raise s_tir.ScheduleError("refused")

    monkeypatch.setattr(sys.modules["qnn_ext.passes.lower"], "schedule_generic", refuse)
    scaled = module([((4,), "int8")], lambda emit, x: emit(qnn.requantize(x, 0.5, 0, 1.0, 0)))
    with pytest.raises(UnsupportedOperatorError, match=r"no kernel can be scheduled for .*requantize"):
        lower_module(scaled, make_target("native", 1))
