"""What a build may take: memory of the compiled model, time, and constants that would be computed for ever."""

import time

import numpy as np
import pytest
from tvm import IRModule, relax

from qnn_ext import LimitError, Limits, QnnError, QnnModule, TensorSpec, build
from qnn_ext.limits import using
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.passes.modules import products_so_far


def module(shape: tuple[int, ...], *calls, dtype: str = "float32") -> QnnModule:
    """The calls in a row on one input."""
    data = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [data], attrs={"num_input": 1}):
        with builder.dataflow():
            value = data
            for call in calls:
                value = builder.emit(call(builder, value))
            result = builder.emit_output(relax.Tuple([value]))
        builder.emit_func_output(result)
    ir: IRModule = builder.get()
    out = tuple(int(dim) for dim in value.ty.shape)
    return QnnModule(ir, (TensorSpec("x", shape, dtype),), (TensorSpec("y", out, dtype),))


def test_feature_maps_that_no_machine_holds():
    """Computed from shapes: nothing allocates the 16 GiB of input and output."""
    with pytest.raises(LimitError, match=r"bytes, and the limit is 17,179,869,184 .*--limit workspace="):
        build(module((1, 1 << 30), lambda _, x: relax.op.negative(x), dtype="float64"), num_threads=1)


def test_feature_maps_of_the_virtual_machine():
    """It runs no program, but its memory is computed from shapes too, with views counted once."""
    large = module((1, 1 << 30), lambda _, x: products_so_far(x), lambda _, x: relax.op.negative(x), dtype="float64")
    with pytest.raises(LimitError, match=r"takes 25,769,803,776 bytes, .*--limit workspace="):
        build(large, num_threads=1)
    views = [lambda _, x: relax.op.reshape(x, (512, 2)), lambda _, x: relax.op.reshape(x, (1024,))]
    small = module((1024,), lambda _, x: products_so_far(x), *views, *[lambda _, x: products_so_far(x)] * 5)
    assert build(small, num_threads=1, limits=Limits(workspace=3 * 4096)) is not None
    with pytest.raises(LimitError, match="takes 12,288 bytes"):
        build(small, num_threads=1, limits=Limits(workspace=3 * 4096 - 1))


def test_workspace_can_be_raised():
    small = module((1, 1024), lambda _, x: relax.op.exp(x))
    with pytest.raises(LimitError, match="--limit workspace="):
        build(small, num_threads=1, limits=Limits(workspace=4096))
    engine = build(small, num_threads=1, limits=Limits(workspace=1 << 16))
    assert engine.run([np.zeros((1, 1024), np.float32)])["y"].shape == (1, 1024)


def test_a_workspace_limit_makes_tensors_share_more_memory(everything_shared):
    """On two threads tensors keep to their columns, as long as that fits: a wide one, then two half as wide at once."""
    rng = np.random.default_rng(0)
    data, builder = relax.Var("x", relax.TensorType((8, 64), "float32")), relax.BlockBuilder()

    def product(value, rows: int, columns: int):
        weight = constant(rng.uniform(-1, 1, (rows, columns)).astype(np.float32))
        return builder.emit(relax.op.matmul(value, weight))

    with builder.function("main", [data], attrs={"num_input": 1}):
        with builder.dataflow():
            narrow = product(product(data, 64, 400), 400, 16)
            left, right = product(narrow, 16, 240), product(narrow, 16, 240)
            total = builder.emit(relax.op.add(product(left, 240, 16), product(right, 240, 16)))
            result = builder.emit_output(relax.Tuple([total]))
        builder.emit_func_output(result)
    branches = QnnModule(builder.get(), (TensorSpec("x", (8, 64), "float32"),), (TensorSpec("y", (8, 16), "float32"),))
    free = build(branches, num_threads=2)
    tight = build(branches, num_threads=2, workspace_limit=free.memory.feature_maps - 1)
    assert tight.memory.feature_maps < free.memory.feature_maps
    values = rng.uniform(-1, 1, (8, 64)).astype(np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(tight(values), free(values))
    with pytest.raises(LimitError, match=r"bytes in use when '\w+' runs \([\d,]+ (for|of) .*a smaller batch"):
        build(branches, num_threads=2, workspace_limit=tight.memory.feature_maps - 1)
    with pytest.raises(QnnError, match="workspace: must be a positive number"):
        build(branches, workspace_limit=0)


def test_limits_around_builds():
    """Builds that are given no limits, as those of calibration, take those of the command."""
    small = module((1, 1024), lambda _, x: relax.op.exp(x))
    with using(Limits(workspace=4096)):
        with pytest.raises(LimitError, match="--limit workspace="):
            build(small, num_threads=1)
        assert build(small, num_threads=1, limits=Limits()).memory.feature_maps > 4096
    assert build(small, num_threads=1).memory.feature_maps > 4096


def test_weights_do_not_count_as_growth():
    """Of a build, `memory` is what it takes beyond the model's own weights, of which it makes copies."""
    weight = constant(np.ones((4096, 2048), np.float32))
    product = module((1, 4096), lambda _, x: relax.op.matmul(x, weight))
    assert build(product, num_threads=1, limits=Limits(memory=1 << 26)) is not None


def test_seconds():
    with pytest.raises(LimitError, match="--limit seconds="):
        quantized = module((1, 64), lambda _, x: relax.op.exp(x), _quantize)
        build(quantized, num_threads=1, limits=Limits(seconds=1e-9))


def _quantize(_builder, x):
    from qnn_ext import op as qnn

    return qnn.dequantize(_builder.emit(qnn.quantize(x, 0.1, 0, out_dtype="int8")), 0.1, 0)


def test_products_of_constants_that_take_for_ever():
    """2³⁶ multiply-adds of one constant with itself, which TVM would compute while it folds."""
    square = constant(np.ones((1 << 12, 1 << 12), np.float32))

    def added(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        product = builder.emit(relax.op.matmul(square, square))
        return relax.op.add(x, builder.emit(relax.op.sum(product)))

    started = time.monotonic()
    assert build(module((1, 8), added), num_threads=1) is not None
    assert time.monotonic() - started < 20


def test_functions_of_functions():
    """TVM simplifies shared subexpressions as often as they are used: five times exp in one expression took 20 s."""
    chain = module((1, 8), *[lambda _, x: relax.op.negative(x), lambda _, x: relax.op.exp(x)] * 20)
    started = time.process_time()
    engine = build(chain, num_threads=1)
    assert time.process_time() - started < 10
    data = np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)
    np.testing.assert_array_equal(engine(data), interpret(chain.ir, [data])[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("join", [relax.op.concat, relax.op.stack])
@pytest.mark.parametrize("axis", [0, 1])
def test_many_operands(join, axis):
    """TVM's passes recurse once for each operand of a kernel that joins, and overflowed the stack."""

    def joined(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        parts = [builder.emit(relax.op.multiply(x, relax.const(index, "float32"))) for index in range(66)]
        return join([*parts, *[x] * 1200], axis)

    wide = module((2, 3), joined)
    engine = build(wide, num_threads=1)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(engine(data), interpret(wide.ir, [data])[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("axis", [0, 1])
def test_many_results(axis):
    """A kernel that writes 1,200 tensors took LLVM 25 s."""
    shape = (600, 3) if axis == 0 else (2, 600)

    def parts(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        split = builder.emit(relax.op.split(builder.emit(relax.op.negative(x)), 600, axis))
        chosen = [builder.emit(relax.op.negative(builder.emit(relax.TupleGetItem(split, i)))) for i in range(600)]
        return relax.op.concat(chosen[::-1], axis)

    wide = module(shape, parts)
    started = time.process_time()
    engine = build(wide, num_threads=1)
    assert time.process_time() - started < 20
    data = np.arange(1800, dtype=np.float32)[: np.prod(shape)].reshape(shape)
    np.testing.assert_array_equal(engine(data), np.flip(data, axis))


def test_many_kernels():
    """Kernels that are called from one function took LLVM quadratic time, 2,000 of them 8 s."""
    weights = [constant(np.eye(8, dtype=np.float32) * (1 if step % 2 else -1)) for step in range(1500)]
    calls = [lambda builder, x, weight=weight: relax.op.matmul(x, weight) for weight in weights]
    chain = module((256, 8), *calls)
    started = time.process_time()
    engine = build(chain, num_threads=1)
    assert time.process_time() - started < 15
    data = np.arange(2048, dtype=np.float32).reshape(256, 8)
    np.testing.assert_array_equal(engine(data), data)
    assert len(engine.profile(repeat=2)) == 1500
