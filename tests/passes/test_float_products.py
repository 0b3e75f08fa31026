"""Float products on the register tile: within k · 2⁻²⁴ · Σ |a · b| of exact sums, for any tile, and NaN where due."""

import sys
from itertools import islice

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.topi_int8.cpu.microkernel import Tile
from qnn_ext.topi_int8.strategy import tiles_from
from tests.cpus import cpu_target

from .modules import module, run_lowered

CPUS = ["avx2", "avx512"]
CONVOLUTIONS = {
    "window": ((1, 9, 11, 12), (20, 3, 3, 12), {"padding": [1, 1, 1, 1]}),
    "colours": ((2, 15, 17, 3), (17, 7, 7, 3), {"padding": [3, 3, 3, 3], "strides": [2, 2]}),
    "one channel": ((1, 12, 12, 1), (5, 3, 3, 1), {}),
    "pointwise": ((2, 7, 5, 10), (24, 1, 1, 10), {}),
    "rows of strips": ((1, 42, 14, 64), (40, 1, 1, 64), {}),
    "pitch of 4 KiB": ((1, 4, 7, 1024), (16, 1, 1, 1024), {}),
    "dilated": ((1, 13, 13, 8), (9, 3, 3, 8), {"dilation": [2, 3], "padding": [2, 1, 0, 3]}),
    "groups": ((1, 8, 8, 24), (30, 3, 3, 8), {"groups": 3, "padding": [1, 1, 1, 1]}),
    "depthwise": ((1, 9, 10, 37), (37, 3, 3, 1), {"groups": 37, "padding": [1, 1, 1, 1], "strides": [2, 1]}),
    "two of each": ((1, 6, 6, 16), (32, 5, 5, 1), {"groups": 16}),
}
MATRICES = {
    "rows": ((7, 12), (12, 21), True),
    "one row": ((1, 50), (50, 33), True),
    "batches of rows": ((2, 3, 5, 24), (24, 8), True),
    "two computed": ((3, 7, 50), (3, 50, 19), False),
    "heads": ((1, 4, 9, 16), (1, 4, 16, 9), False),
    "rows by one computed": ((2, 3, 5, 24), (24, 8), False),
}


def lowered(build, arrays, cpu):
    """The module of build(emit, *variables) for random arrays, and its kernels."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(arrays)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(build(builder.emit, *params))
        builder.emit_func_output(result)
    target = cpu_target(cpu, 1)
    return builder.get(), lower_module(builder.get(), target), target


def compare(build, arrays, terms, products, cpu):
    """Compiled against exact sums: `terms` is how many products each has, `products` Σ |a · b|."""
    module, kernels, target = lowered(build, arrays, cpu)
    assert "fma" in kernels.script()
    (expected,) = interpret(module, [array.astype(np.float32) for array in arrays])
    (actual,) = run_lowered(kernels, arrays, target)
    limit = (terms + 4) * 2.0**-24 * products  # the interpreter's own rounding, bias and residual: one each
    assert (np.abs(actual.astype(np.float64) - expected) <= limit).all()


def convolution(name, rng):
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}

    def product(x, w):
        return relax.op.nn.conv2d(x, w, **attributes, **layouts)

    return x, w, product


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(rng, name, cpu):
    x, w, product = convolution(name, rng)
    bias = rng.standard_normal(len(w)).astype(np.float32)

    def build(emit, x):
        return emit(relax.op.nn.relu(emit(relax.op.add(emit(product(x, constant(w))), constant(bias)))))

    module, *_ = lowered(lambda emit, x: emit(product(x, constant(np.abs(w)))), [x], cpu)
    (products,) = interpret(module, [np.abs(x)])
    compare(build, [x], w[0].size, products.astype(np.float64) + np.abs(bias), cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_weights_known_at_run_time(rng, name, cpu, monkeypatch):
    """The same bits as of constant weights: only packing is another."""
    monkeypatch.setattr(sys.modules["qnn_ext.passes.lower"], "_WORTH_PACKING", 0)
    x, w, product = convolution(name, rng)
    _, kernels, target = lowered(lambda emit, x, w: emit(product(x, w)), [x, w], cpu)
    _, known, _ = lowered(lambda emit, x: emit(product(x, constant(w))), [x], cpu)
    assert "packed" in kernels.script() and "packed" not in known.script()
    np.testing.assert_array_equal(run_lowered(kernels, [x, w], target)[0], run_lowered(known, [x], target)[0])


@pytest.mark.parametrize("macs, packed", [(1 << 22, True), (1 << 20, False)])
def test_small_convolutions_do_not_pack(rng, macs, packed):
    """Their kernels would take longer to compile than they save."""
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, macs >> 12, 1, 64), (64, 1, 1, 64)))
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    _, kernels, _ = lowered(lambda emit, x, w: emit(relax.op.nn.conv2d(x, w, **layouts)), [x, w], "avx512")
    assert ("packed" in kernels.script()) == packed


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(rng, name, cpu):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    other = rng.standard_normal((*x.shape[:-1], y.shape[-1])).astype(np.float32)

    def build(emit, x, *more):
        second = constant(y) if is_constant else more[0]
        return emit(relax.op.add(emit(relax.op.matmul(x, second)), more[-1]))

    products = np.abs(x).astype(np.float64) @ np.abs(y) + np.abs(other)
    compare(build, [x, other] if is_constant else [x, y, other], x.shape[-1], products, cpu)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", ["window", "colours", "one channel", "pointwise", "rows of strips", "dilated"])
def test_data_dequantized_as_they_are_copied(rng, name, dtype):
    """The kernel reads the integers, and computes the same bits as from floats in memory."""
    _, w, product = convolution(name, rng)
    shape, *_ = CONVOLUTIONS[name]
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    q = rng.integers(low, high, shape, endpoint=True).astype(dtype)
    scale, zero_point = rng.uniform(0.01, 0.1, shape[-1]).astype(np.float32), np.full(shape[-1], 3, np.int32)

    def build(emit, q):
        return emit(product(emit(qnn.dequantize(q, constant(scale), constant(zero_point))), constant(w)))

    module, kernels, target = lowered(build, [q], "avx512")
    assert '"dequantize+conv2d_accumulate"' in kernels.script()
    (actual,) = run_lowered(kernels, [q], target)
    x = (q.astype(np.int32) - zero_point).astype(np.float32) * scale
    _, apart, target = lowered(lambda emit, x: emit(product(x, constant(w))), [x], "avx512")
    np.testing.assert_array_equal(actual, run_lowered(apart, [x], target)[0])
    (expected,) = interpret(module, [q])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


def test_integers_that_two_kernels_read_are_dequantized_as_they_are_copied(rng):
    """Of integers that other kernels read too, no float feature map is written."""
    x, w, product = convolution("pointwise", rng)
    q = rng.integers(0, 255, x.shape, endpoint=True).astype(np.uint8)

    def build(emit, q):
        pooled = emit(relax.op.nn.max_pool2d(q, (1, 1), layout="NHWC"))
        result = emit(
            product(emit(qnn.dequantize(pooled, constant(np.float32(0.1)), constant(np.int32(9)))), constant(w))
        )
        residual = emit(qnn.dequantize(pooled, constant(np.float32(0.1)), constant(np.int32(9))))
        return emit(relax.op.concat([result, residual], axis=-1))

    module, kernels, target = lowered(build, [q], "avx512")
    assert '"dequantize+conv2d_accumulate"' in kernels.script()
    np.testing.assert_allclose(run_lowered(kernels, [q], target)[0], interpret(module, [q])[0], rtol=1e-4, atol=1e-3)


def test_data_of_16_bits_are_dequantized_apart(rng):
    """The fast kernels copy integers of 8 bits only."""
    x, w, product = convolution("pointwise", rng)
    q = rng.integers(-999, 999, x.shape).astype(np.int16)

    def build(emit, q):
        return emit(product(emit(qnn.dequantize(q, constant(np.float32(0.01)), constant(np.int32(0)))), constant(w)))

    module, kernels, target = lowered(build, [q], "avx512")
    assert "fma" in kernels.script() and "dequantize+conv2d" not in kernels.script()
    np.testing.assert_allclose(run_lowered(kernels, [q], target)[0], interpret(module, [q])[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["window", "pointwise"])
def test_bits_do_not_depend_on_the_tile(rng, name):
    x, w, product = convolution(name, rng)
    found = []
    for number in (0, 3, 8):
        with tiles_from(lambda item, workload, target, n=number: next(islice(item.tiles(workload), n, None), None)):
            _, kernels, target = lowered(lambda emit, x: emit(product(x, constant(w))), [x], "avx2")
        found.append(run_lowered(kernels, [x], target)[0])
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_infinities_stay_where_they_are(rng, name):
    """Nothing is multiplied by a zero that the model does not have: 0 · ∞ is NaN."""
    x, w, product = convolution(name, rng)
    x[0, x.shape[1] // 2, x.shape[2] // 2, x.shape[3] // 2] = np.inf
    module, kernels, target = lowered(lambda emit, x: emit(product(x, constant(w))), [x], "avx2")
    with np.errstate(invalid="ignore"):
        (expected,) = interpret(module, [x])
    (actual,) = run_lowered(kernels, [x], target)
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_tiles_stay_in_registers(rng):
    """All accumulators take one step before the next: else the weights of four steps are live at once. Weights are not
    prefetched."""
    w = rng.standard_normal((768, 672)).astype(np.float32)
    mod = module([((16, 768), "float32")], lambda emit, x: emit(relax.op.matmul(x, constant(w))))
    x, y = (TensorSpec(name, shape, "float32", None) for name, shape in (("x", (16, 768)), ("y", (16, 672))))
    with tiles_from(lambda *_: Tile(1, 8, 3)):
        code = qnn_ext.build(QnnModule(mod, (x,), (y,)), "avx512", num_threads=1).source("asm").splitlines()
    products = [number for number, line in enumerate(code) if "vfmadd" in line and "zmm" in line]
    assert len(products) == 4 * 8 * 3
    assert not [line for line in code[products[0] : products[-1]] if "rsp" in line and "zmm" in line]
    assert not [line for line in code if "prefetch" in line and "rsp" not in line]  # but of the stack, see `x86.stack`


@pytest.mark.parametrize(
    ("cpu", "tile", "register"), [("avx512", Tile(1, 5, 5), "zmm"), ("avx2", Tile(1, 4, 3), "ymm")]
)
def test_registers_are_spilled_to_aligned_addresses(rng, cpu, tile, register):
    """Registers that cross two cache lines, as the stack's address has it, take a kernel up to 1.7 times as long."""
    w = rng.standard_normal((768, 800)).astype(np.float32)
    gelu = [((40, 768), "float32")], lambda emit, x: emit(relax.op.nn.gelu(emit(relax.op.matmul(x, constant(w)))))
    x, y = (TensorSpec(name, shape, "float32", None) for name, shape in (("x", (40, 768)), ("y", (40, 800))))
    with tiles_from(lambda *_: tile):
        code = qnn_ext.build(QnnModule(module(*gelu), (x,), (y,)), cpu, num_threads=1).source("asm").splitlines()
    spilled = [line for line in code if register in line and "rsp" in line and "vmov" in line]
    assert spilled, "nothing is spilled: the test needs a larger tile"
    assert not [line for line in spilled if "vmovu" in line]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "length"), [(8, 4, 8, 512), (2, 2, 12, 37), (6, 2, 10, 9), (3, 1, 6, 19)]
)
def test_attention_over_a_cache(rng, heads, kv_heads, size, length, rows, cpu, caplog):
    """A query whose pairs of neighbours were rotated, stacked and merged again; `rows` are tokens at once. The merging
    is no part of the kernel of the scores: their sums would run along two axes."""
    group = heads // kv_heads * rows
    pairs = rng.standard_normal((1, heads, rows, size // 2, 2)).astype(np.float32)
    keys, values = (rng.standard_normal((1, kv_heads, length, size)).astype(np.float32) for _ in range(2))

    def scores(emit, pairs, keys):
        rotated = emit(relax.op.negative(pairs))
        query = emit(relax.op.reshape(rotated, [1, kv_heads, group, size]))
        return emit(relax.op.matmul(query, emit(relax.op.permute_dims(keys, [0, 1, 3, 2]))))

    def mixed(emit, weights, values):
        flat = emit(relax.op.reshape(emit(relax.op.abs(weights)), [kv_heads, group, length]))
        return emit(relax.op.matmul(flat, emit(relax.op.reshape(values, [kv_heads, length, size]))))

    query = np.abs(pairs).reshape(1, kv_heads, group, size).astype(np.float64)
    compare(scores, [pairs, keys], size, query @ np.abs(keys).swapaxes(-1, -2), cpu)
    weights = rng.standard_normal((1, heads, rows, length)).astype(np.float32)
    absolute = np.abs(weights).reshape(kv_heads, group, length).astype(np.float64)
    compare(mixed, [weights, values], length, absolute @ np.abs(values[0]), cpu)
    assert not [record for record in caplog.records if "does not apply" in record.message]
