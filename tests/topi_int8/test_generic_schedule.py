"""The generic CPU schedule must leave every result as it was: integers to the bit, floats to the last few ulps."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target

from qnn_ext.numerics.annotations import SCHEDULED
from qnn_ext.topi_int8.generic.schedule import schedule_generic, schedule_module
from tests.passes.modules import run_lowered

TARGETS = {
    "native": Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2}),
    "avx512": Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}),
    "avx2": Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 1}),
    "sse2": Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 2}),
}
nn = relax.op.nn
op = relax.op


def module(build, *inputs, fuse=False):
    """A legalized module of one function; inputs are (shape, dtype) and become parameters."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(build(*params)))
        builder.emit_func_output(result)
    passes = [relax.transform.LegalizeOps()]
    if fuse:
        passes += [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return tvm.transform.Sequential(passes)(builder.get())


def data_for(inputs, seed=0):
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in inputs:
        if dtype.startswith("float"):
            arrays.append(rng.normal(size=shape).astype(dtype))
        elif dtype == "bool":
            arrays.append(rng.integers(0, 2, shape).astype(bool))
        else:
            info = np.iinfo(dtype)
            arrays.append(rng.integers(max(info.min, -1000), min(info.max, 1000), shape, endpoint=True).astype(dtype))
    return arrays


def check(mod, inputs, target):
    scheduled = schedule_module(mod, target)
    arrays = data_for(inputs)
    for got, want in zip(run_lowered(scheduled, arrays, target), run_lowered(mod, arrays, target), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if np.issubdtype(want.dtype, np.floating):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, want)
    return scheduled


f32, i8, u8, i32 = "float32", "int8", "uint8", "int32"
CASES = {
    "add": (lambda x, y: op.add(x, y), ((2, 7, 7, 5), f32), ((2, 7, 7, 5), f32)),
    "add_broadcast": (lambda x, y: op.add(x, y), ((2, 7, 9, 5), i32), ((5,), i32)),
    "add_broadcast_middle": (lambda x, y: op.add(x, y), ((2, 7, 9, 5), i32), ((7, 1, 5), i32)),
    "scalar_operand": (lambda x, y: op.multiply(x, y), ((3, 11), f32), ((), f32)),
    "scalars": (lambda x, y: op.add(x, y), ((), i32), ((), i32)),
    "large_elementwise": (lambda x: op.exp(x), ((3, 101, 997), f32)),
    "large_uint8": (lambda x: op.add(op.astype(x, "int32"), relax.const(3, "int32")), ((1, 113, 113, 24), u8)),
    "size_one": (lambda x: op.sqrt(op.abs(x)), ((1, 1, 1, 1), f32)),
    "clip_cast": (lambda x: op.astype(op.clip(x, -3, 200), "uint8"), ((5, 37), i32)),
    "transpose": (lambda x: op.permute_dims(x, (0, 3, 1, 2)), ((2, 13, 11, 7), i8)),
    "transpose_large": (lambda x: op.permute_dims(x, (0, 3, 1, 2)), ((1, 64, 65, 96), u8)),
    "reshape": (lambda x: op.reshape(x, (6, 77)), ((2, 3, 7, 11), i8)),
    "squeeze_expand": (lambda x: op.expand_dims(op.squeeze(x, 0), 1), ((1, 6, 5), i8)),
    "concat_channels": (lambda x, y: op.concat([x, y, x], -1), ((1, 9, 9, 16), u8), ((1, 9, 9, 33), u8)),
    "concat_large": (lambda x, y: op.concat([x, y], 3), ((1, 56, 56, 64), u8), ((1, 56, 56, 128), u8)),
    "concat_rows": (lambda x, y: op.concat([x, y], 1), ((2, 3, 5), f32), ((2, 8, 5), f32)),
    "stack": (lambda x, y: op.stack([x, y], 1), ((4, 5), i8), ((4, 5), i8)),
    "pad": (lambda x: nn.pad(x, (0, 0, 1, 2, 3, 0, 0, 0), pad_value=3), ((1, 9, 7, 3), i8)),
    "pad_channels": (lambda x: nn.pad(x, (0, 0, 0, 0, 0, 0, 0, 5), pad_value=-2), ((1, 30, 31, 11), f32)),
    "pad_large": (lambda x: nn.pad(x, (0, 0, 1, 1, 1, 1, 0, 0), pad_value=7), ((1, 112, 112, 48), u8)),
    "slice": (
        lambda x: op.strided_slice(x, axes=[1, 2], begin=[1, 0], end=[9, 8], strides=[2, 3]),
        ((2, 10, 9, 5), i8),
    ),
    "split": (lambda x: op.split(x, 3, -1), ((2, 5, 9), f32)),
    "flip": (lambda x: op.flip(x, 1), ((2, 7, 3), i8)),
    "tile": (lambda x: op.tile(x, (2, 1, 3)), ((2, 5, 3), i8)),
    "repeat": (lambda x: op.repeat(x, 2, 1), ((2, 5, 3), i8)),
    "where": (lambda c, x, y: op.where(c, x, y), ((7, 5), "bool"), ((7, 5), f32), ((7, 5), f32)),
    "take": (lambda x: op.take(x, relax.const(np.array([4, 0, 2], "int32")), axis=1), ((3, 5, 7), i8)),
    "table": (
        lambda x: op.take(relax.const(np.arange(256)[::-1].astype("uint8")), op.astype(x, "int32"), axis=0),
        ((1, 57, 57, 96), u8),
    ),
    "one_hot": (
        lambda x: op.one_hot(op.astype(x, "int64"), relax.prim_value(1), relax.prim_value(0), 256),
        ((3, 5), u8),
    ),
    "sum_last": (lambda x: op.sum(x, -1), ((5, 7, 13), i32)),
    "sum_last_float": (lambda x: op.sum(x, -1), ((16, 40, 129), f32)),
    "sum_middle": (lambda x: op.sum(x, 1), ((3, 31, 64), i32)),
    "sum_all": (lambda x: op.sum(x), ((17, 19), i32)),
    "sum_all_float": (lambda x: op.sum(x), ((17, 19), f32)),
    "mean_spatial": (lambda x: op.mean(x, [1, 2], keepdims=True), ((2, 7, 7, 97), f32)),
    "max_keep": (lambda x: op.max(x, [1], True), ((2, 7, 20), i8)),
    "min_strided": (lambda x: op.min(x, [0]), ((40, 3), f32)),
    "prod": (lambda x: op.prod(x, -1), ((3, 4, 5), f32)),
    "variance": (lambda x: op.variance(x, -1), ((3, 45), f32)),
    "argmax": (lambda x: op.argmax(x, -1), ((7, 1001), f32)),
    "argmin_axis0": (lambda x: op.argmin(x, 0), ((12, 7), i32)),
    "softmax": (lambda x: nn.softmax(x, -1), ((7, 1001), f32)),
    "softmax_large": (lambda x: nn.softmax(x, -1), ((8, 128, 128), f32)),
    "softmax_axis1": (lambda x: nn.softmax(x, 1), ((3, 20, 17), f32)),
    "log_softmax": (lambda x: nn.log_softmax(x, -1), ((3, 10), f32)),
    "layer_norm": (
        lambda x, g, b: nn.layer_norm(x, g, b, axes=-1),
        ((4, 9, 64), f32),
        ((64,), f32),
        ((64,), f32),
    ),
    "gelu": (lambda x: nn.gelu(x), ((3, 130), f32)),
    "silu_like": (lambda x: op.multiply(x, op.sigmoid(x)), ((3, 130), f32)),
    "max_pool": (
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 0, 1, 2), layout="NHWC"),
        ((2, 13, 11, 35), u8),
    ),
    "max_pool_large": (
        lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (0, 0, 1, 1), layout="NHWC"),
        ((1, 112, 112, 64), u8),
    ),
    "avg_pool": (lambda x: nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1), layout="NHWC"), ((1, 9, 8, 10), f32)),
    "adaptive_pool": (lambda x: nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"), ((1, 7, 7, 40), f32)),
    "max_pool_nchw": (lambda x: nn.max_pool2d(x, (2, 2), (2, 2)), ((1, 3, 16, 14), f32)),
    "resize": (
        lambda x: op.image.resize2d(x, relax.ShapeExpr((13, 9)), layout="NHWC", method="linear"),
        ((1, 7, 5, 12), f32),
    ),
    "resize_nearest": (
        lambda x: op.image.resize2d(
            x, relax.ShapeExpr((26, 18)), layout="NHWC", method="nearest_neighbor", rounding_method="floor"
        ),
        ((1, 13, 9, 3), u8),
    ),
    "matmul": (lambda x, y: op.matmul(x, y), ((1, 37), f32), ((37, 1001), f32)),
    "matmul_large": (lambda x, y: op.matmul(x, y), ((64, 96), f32), ((96, 128), f32)),
    "matmul_transposed": (lambda x, y: op.matmul(x, op.permute_dims(y)), ((12, 40), f32), ((31, 40), f32)),
    "matmul_batch": (lambda x, y: op.matmul(x, y), ((3, 17, 8), i32), ((3, 8, 13), i32)),
    "matmul_vector": (lambda x, y: op.matmul(x, y), ((40,), f32), ((40, 31), f32)),
    "matmul_int8": (lambda x, y: op.matmul(x, y, out_dtype="int32"), ((64, 63), i8), ((63, 48), i8)),
    "conv_nhwc": (
        lambda x, w: nn.conv2d(x, w, (2, 2), (1, 0, 1, 2), data_layout="NHWC", kernel_layout="HWIO"),
        ((2, 15, 13, 7), f32),
        ((3, 3, 7, 24), f32),
    ),
    "conv_large": (
        lambda x, w: nn.conv2d(x, w, (1, 1), (1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO"),
        ((1, 28, 28, 32), f32),
        ((3, 3, 32, 80), f32),
    ),
    "conv_nchw": (lambda x, w: nn.conv2d(x, w, (1, 1), (1, 1, 1, 1)), ((1, 5, 14, 16), f32), ((8, 5, 3, 3), f32)),
    "conv_groups": (
        lambda x, w: nn.conv2d(x, w, (1, 1), (1, 1, 1, 1), groups=4),
        ((1, 8, 9, 9), f32),
        ((12, 2, 3, 3), f32),
    ),
    "conv_depthwise": (
        lambda x, w: nn.conv2d(x, w, (1, 1), (1, 1, 1, 1), groups=24, data_layout="NHWC", kernel_layout="HWOI"),
        ((1, 9, 9, 24), f32),
        ((3, 3, 24, 1), f32),
    ),
    "conv_transpose": (
        lambda x, w: nn.conv2d_transpose(x, w, (2, 2), (1, 1), (0, 0)),
        ((1, 3, 7, 7), f32),
        ((3, 4, 3, 3), f32),
    ),
    "sort": (lambda x: op.sort(op.add(x, x), axis=-1), ((4, 30), f32)),
    "topk": (lambda x: op.topk(op.negative(x), k=3, axis=-1), ((4, 30), f32)),
    "cumsum": (lambda x: op.cumsum(op.add(x, x), axis=1), ((4, 30), i32)),
    "scatter": (
        lambda x, u: op.scatter_elements(x, relax.const(np.array([[1, 0, 3]], "int64")), u, axis=0),
        ((5, 3), f32),
        ((1, 3), f32),
    ),
    "quantize": (
        lambda x: op.quantize(x, relax.const(0.05, f32), relax.const(3, "int8"), axis=-1),
        ((1, 33, 35), f32),
    ),
    "dequantize": (
        lambda x: op.dequantize(x, relax.const(0.05, f32), relax.const(3, "int8"), axis=-1),
        ((1, 33, 35), i8),
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.sampled("fuse")
@pytest.mark.parametrize("fuse", [False, True], ids=["single", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_results_unchanged(name, fuse):
    build, *inputs = CASES[name]
    check(module(build, *inputs, fuse=fuse), inputs, TARGETS["native"])


@pytest.mark.sampled("target")
@pytest.mark.parametrize("target", ["avx512", "avx2", "sse2"])
@pytest.mark.parametrize(
    "name",
    [
        "large_uint8",
        "concat_large",
        "softmax_large",
        "max_pool_large",
        "conv_large",
        "matmul_int8",
        "table",
        "quantize",
    ],
)
def test_other_targets(name, target):
    if not runs_here(target):
        pytest.skip(f"this CPU cannot run {target} code")
    build, *inputs = CASES[name]
    check(module(build, *inputs, fuse=True), inputs, TARGETS[target])


def runs_here(target):
    feature = {"avx512": "avx512bw", "avx2": "avx2", "sse2": "sse2"}[target]
    return tvm.target.codegen.llvm_cpu_has_features(feature, TARGETS["native"])


@pytest.mark.sampled("kind")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 16, 31, 64, 65, 127, 128, 251])
@pytest.mark.parametrize("kind", ["elementwise", "sum_rows", "sum_columns", "matmul", "concat"])
def test_sizes(kind, size):
    build, inputs = {
        "elementwise": (lambda x, y: op.multiply(op.add(x, y), x), [((3, size), i32), ((size,), i32)]),
        "sum_rows": (lambda x: op.sum(x, 1), [((17, size), i32)]),
        "sum_columns": (lambda x: op.sum(x, 0), [((70, size), i32)]),
        "matmul": (lambda x, y: op.matmul(x, y, out_dtype="int32"), [((5, 70), i8), ((70, size), i8)]),
        "concat": (lambda x, y: op.concat([x, y, y, x], -1), [((3, size), u8), ((3, 9), u8)]),
    }[kind]
    check(module(build, *inputs, fuse=True), inputs, TARGETS["native"])


def function(*tensors):
    return te.create_prim_func(list(tensors))


def run_function(func, *arrays):
    executable = tvm.compile(func.with_attr("global_symbol", "main"), target=TARGETS["native"])
    (*_, out) = tensors = [tvm.runtime.tensor(array) for array in arrays]
    executable["main"](*tensors)
    return out.numpy()


def after(previous, rule, name):
    """A stage of the same shape, rule(previous, *indices)."""
    return te.compute(previous.shape, lambda *indices: rule(previous, *indices), name)


def names_of_blocks(func):
    sch = Schedule(func)
    return [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]


def test_products_keep_their_own_rounding():
    """Inlined into the sum behind it, a product would be fused with it and rounded once instead of twice."""
    x, y = (te.placeholder((1000,), f32, name) for name in "xy")
    product = te.compute((1000,), lambda i: x[i] * tirx.const(0.1, f32), "product")
    total = te.compute((1000,), lambda i: product[i] + y[i], "total")
    func = function(x, y, total)
    a, b = (np.random.default_rng(seed).normal(size=1000).astype(f32) for seed in (0, 1))
    got = run_function(schedule_generic(func, TARGETS["native"]), a, b, np.zeros(1000, f32))
    np.testing.assert_array_equal(got, a * np.float32(0.1) + b)


@pytest.mark.parametrize("branch", ["if_then_else", "select"])
def test_products_behind_conditions_keep_their_own_rounding(branch):
    """As in padding: LLVM makes a loop for each side of the condition, without it."""
    x, y = (te.placeholder((1000,), f32, name) for name in "xy")
    choose = {"if_then_else": tirx.if_then_else, "select": tirx.Select}[branch]
    product = te.compute((1000,), lambda i: x[i] * tirx.const(0.1, f32), "product")
    padded = te.compute((1000,), lambda i: choose(i < 900, product[i], tirx.const(0.5, f32)), "padded")
    total = te.compute((1000,), lambda i: y[i] - padded[i], "total")
    a, b = (np.random.default_rng(seed).normal(size=1000).astype(f32) for seed in (0, 1))
    got = run_function(schedule_generic(function(x, y, total), TARGETS["native"]), a, b, np.zeros(1000, f32))
    np.testing.assert_array_equal(got, b - np.where(np.arange(1000) < 900, a * np.float32(0.1), np.float32(0.5)))


def test_expensive_values_are_computed_once():
    """Exponentials that many read stay in a stage; the cast behind them joins it."""
    x = te.placeholder((64,), f32, "x")
    table = te.compute((64,), lambda i: tirx.exp(x[i]), "table")
    wide = te.compute((64,), lambda i: table[i].astype("float64"), "wide")
    outer = te.compute((64, 64), lambda i, j: wide[i] * wide[j], "outer")
    scheduled = schedule_generic(function(x, outer), TARGETS["native"])
    assert names_of_blocks(scheduled) == ["wide", "outer"]
    row = np.linspace(-2, 2, 64, dtype=f32)
    expected = np.multiply.outer(*[np.exp(row).astype("float64")] * 2)
    np.testing.assert_allclose(run_function(scheduled, row, np.zeros((64, 64))), expected, rtol=1e-6)


def test_chains_of_cheap_stages_become_one():
    x = te.placeholder((4, 30), i32, "x")
    stage = x
    for step in range(6):
        stage = after(stage, lambda previous, i, j: previous[i, j] * 3 + 1, f"stage{step}")
    assert names_of_blocks(schedule_generic(function(x, stage), TARGETS["native"])) == ["stage5"]


def test_diamonds_do_not_explode():
    """Twenty doublings would make an expression of a million terms if each were inlined."""
    x = te.placeholder((50,), i32, "x")
    stage = x
    for step in range(20):
        stage = after(stage, lambda previous, i: previous[i] + previous[49 - i], f"stage{step}")
    func = function(x, stage)
    data = np.arange(50, dtype=i32)
    expected = data
    for _ in range(20):
        expected = expected + expected[::-1]
    got = run_function(schedule_generic(func, TARGETS["native"]), data, np.zeros(50, i32))
    np.testing.assert_array_equal(got, expected)


def test_scheduled_functions_are_left_alone():
    x = te.placeholder((8,), i32, "x")
    func = function(x, te.compute((8,), lambda i: x[i] + 1)).with_attr(SCHEDULED, True)
    assert schedule_generic(func, TARGETS["native"]).same_as(func)
    mod = tvm.IRModule({"f": func})
    assert schedule_module(mod, TARGETS["native"])["f"].same_as(func)


def test_every_function_is_marked():
    build, *inputs = CASES["topk"]
    scheduled = schedule_module(module(build, *inputs), TARGETS["native"])
    functions = [func for _, func in scheduled.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert functions and all(func.attrs[SCHEDULED] for func in functions)


def test_hand_written_functions_survive():
    """Opaque blocks, nested loops inside blocks and symbolic shapes are nothing to schedule, and nothing to fail on."""

    @T.prim_func(s_tir=True)
    def opaque(x: T.Buffer((16,), "int32"), y: T.Buffer((16,), "int32")):
        with T.sblock("whole"):
            T.reads(x[0:16])
            T.writes(y[0:16])
            y[0] = x[0]
            for i in range(15):
                y[i + 1] = y[i] + x[i + 1]

    @T.prim_func(s_tir=True)
    def symbolic(x: T.handle, y: T.handle):
        n = T.int64()
        source = T.match_buffer(x, (n,), "int32")
        target = T.match_buffer(y, (n,), "int32")
        for i in range(n):
            with T.sblock("double"):
                vi = T.axis.spatial(n, i)
                target[vi] = source[vi] * 2

    data = np.arange(16, dtype=i32)
    for func, expected in ((opaque, np.cumsum(data)), (symbolic, data * 2)):
        got = run_function(schedule_generic(func, TARGETS["native"]), data, np.zeros(16, i32))
        np.testing.assert_array_equal(got, expected)


def test_every_step_applies(caplog):
    """Steps may be refused, but not on the ordinary functions above: a refusal there would be an oversight."""
    with caplog.at_level("DEBUG", logger="qnn_ext.topi_int8.generic.schedule"):
        for name in ("softmax_large", "conv_large", "concat_large", "max_pool_large", "mean_spatial", "layer_norm"):
            build, *inputs = CASES[name]
            schedule_module(module(build, *inputs, fuse=True), TARGETS["native"])
    assert not [record for record in caplog.records if "does not apply" in record.message]
