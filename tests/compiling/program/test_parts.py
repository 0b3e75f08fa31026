"""Concatenations and slices without copies: results stay equal, and what can be written or read in place is."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.compiling.program import parts
from qnn_ext.frontends.loops import loop
from qnn_ext.module import QnnModule, TensorSpec
from tests.cases.loops import as_model, assembled


def _module(build: Callable, shapes: Sequence[tuple[int, ...]], dtype: str = "uint8") -> QnnModule:
    """build(emit, *variables) returns the results."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            fields = [builder.emit(value) for value in build(builder.emit, *params)]
            result = builder.emit_output(relax.Tuple(fields))
        builder.emit_func_output(result)
    mod = builder.get()
    outputs = [
        TensorSpec(f"y{i}", tuple(int(d) for d in ty.shape), str(ty.dtype))
        for i, ty in enumerate(mod["main"].ret_ty.fields)
    ]
    return QnnModule(mod, tuple(TensorSpec(f"x{i}", s, dtype) for i, s in enumerate(shapes)), tuple(outputs), ())


def _conv(emit: Callable, x: relax.Expr, channels: int, kernel: int = 1) -> relax.Expr:
    rng = np.random.default_rng(channels)
    weight = rng.integers(-128, 128, (channels, kernel, kernel, int(x.ty.shape[3]))).astype(np.int8)
    padding = (kernel // 2,) * 4
    acc = emit(op.conv2d(x, op.base.constant(weight), 3, 0, 0.1, 0.1, padding=padding))
    return emit(op.requantize(acc, 0.01, 0, 2.0, 7, out_dtype="uint8"))


def _dense(emit: Callable, x: relax.Expr, channels: int) -> relax.Expr:
    weight = np.random.default_rng(channels).integers(-128, 128, (channels, int(x.ty.shape[1]))).astype(np.int8)
    acc = emit(op.dense(x, op.base.constant(weight), 3, 0, 0.1, 0.1))
    return emit(op.requantize(acc, 0.01, 0, 2.0, 7, out_dtype="uint8"))


def _check(module: QnnModule, parts_found: int, monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> None:
    """Equal to the interpreter, with this many storages placed in others."""
    monkeypatch.setattr("qnn_ext.compiling.build.join_siblings", lambda mod, target: mod)  # depends on the target
    graphs = []

    def noted(graph, functions, lowered):
        graphs.append(graph)
        return without_copies(graph, functions, lowered)

    without_copies = parts.without_copies
    monkeypatch.setattr("qnn_ext.compiling.program.planning.without_copies", noted)
    engine = qnn_ext.build(module, num_threads=threads)
    rng = np.random.default_rng(0)
    oracle = qnn_ext.Interpreter(module)
    for _ in range(3):
        inputs = [rng.integers(0, 256, spec.shape).astype(spec.dtype) for spec in module.inputs]
        for got, expected in zip(engine.run(inputs).values(), oracle.run(inputs).values(), strict=True):
            np.testing.assert_array_equal(got, expected)
    (graph,) = graphs
    assert sum(storage.whole is not None for storage in graph.storages()) == parts_found
    assert len(engine.profile(repeat=2)) == len(engine.kernels) == len(graph.kernels)


def test_rows_are_written_where_they_belong(monkeypatch):
    def build(emit, x):
        a, b = _dense(emit, x, 20), _dense(emit, x, 33)
        return [emit(relax.op.concat([a, b], 1)), emit(relax.op.reshape(a, (4, 5))), _dense(emit, b, 16)]

    _check(_module(build, [(1, 40)]), 2, monkeypatch)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kernel", "sizes"), [(1, (64, 128, 64)), (3, (5, 24, 100)), (1, (40, 7, 33))])
def test_channels_are_written_where_they_belong(kernel, sizes, threads, monkeypatch):
    """Wherever that is, in whole cache lines or not."""

    def build(emit, x):
        y = [_conv(emit, x, channels, kernel) for channels in sizes]
        return [_conv(emit, emit(relax.op.concat(y, 3)), 16)]

    _check(_module(build, [(1, 9, 7, 16)]), 3, monkeypatch, threads)


def test_pooled_channels_are_written_where_they_belong(monkeypatch):
    """A concatenation is not fused with the pooling before it, which would copy the convolution's channels."""

    def build(emit, x):
        pooled = emit(relax.op.nn.max_pool2d(x, (3, 3), padding=(1, 1, 1, 1), layout="NHWC"))
        return [_conv(emit, emit(relax.op.concat([_conv(emit, x, 24, 3), pooled], 3)), 16)]

    _check(_module(build, [(1, 9, 7, 32)]), 2, monkeypatch)


def test_what_others_read_too_is_read_where_it_belongs(monkeypatch):
    """A layer's input and result joined, as in U-Net and DenseNet, over several layers."""

    def build(emit, x):
        y = _conv(emit, x, 24)
        for channels in (36, 64):
            y = emit(relax.op.concat([y, _conv(emit, _conv(emit, y, channels), 20, 3)], 3))
        return [_conv(emit, y, 16)]

    _check(_module(build, [(1, 9, 7, 16)]), 4, monkeypatch, threads=2)


def test_a_batch_of_images(monkeypatch):
    def build(emit, x):
        y = [_conv(emit, x, channels) for channels in (64, 192)]
        return [emit(relax.op.concat(y, 3)), emit(relax.op.concat([_conv(emit, x, 65), _conv(emit, x, 65)], 0))]

    _check(_module(build, [(2, 5, 3, 16)]), 4, monkeypatch)


def test_what_cannot_be_a_part_is_copied(monkeypatch):
    """A constant, an input, what is joined twice, and what would be read in vectors across rows; not what is alone."""

    def build(emit, x):
        constant = op.base.constant(np.arange(5 * 6 * 64, dtype=np.uint8).reshape(1, 5, 6, 64))
        shared, alone, small = (_conv(emit, x, channels) for channels in (64, 128, 5))
        y = emit(relax.op.concat([shared, constant, alone, x, shared, small], 3))
        return [_conv(emit, y, 16), _conv(emit, shared, 8), _conv(emit, small, 8)]

    _check(_module(build, [(1, 5, 6, 64)]), 2, monkeypatch)


def test_joined_along_different_axes(monkeypatch):
    """Rows of one concatenation are not those of the other: the part of the later one is copied by the earlier one."""

    def build(emit, x):
        shared, beside, below = _conv(emit, x, 64), _conv(emit, x, 32), _conv(emit, x, 64)
        return [
            _conv(emit, emit(relax.op.concat([shared, other], axis)), 8) for other, axis in ((beside, 3), (below, 1))
        ]

    _check(_module(build, [(1, 5, 6, 64)]), 3, monkeypatch)


def test_a_part_of_two_concatenations(monkeypatch):
    def build(emit, x):
        shared, *others = (_conv(emit, x, channels) for channels in (64, 32, 40))
        return [_conv(emit, emit(relax.op.concat([other, shared], 3)), 8) for other in others]

    _check(_module(build, [(1, 5, 6, 64)]), 3, monkeypatch)


def test_a_sequence_stays_compact(monkeypatch):
    """A loop reads each row of it as a tensor of its own."""

    def walk(a, x):
        rows = _dense(a.emit, x, 64)

        def body(states, slices):
            return [a.emit(relax.op.maximum(states[0], slices[0]))], []

        (largest,), _ = loop(a, body, [op.base.constant(np.zeros(64, np.uint8))], [rows], 4)
        return [largest, _dense(a.emit, a.emit(relax.op.concat([rows, _dense(a.emit, x, 32)], 1)), 8)]

    _check(as_model(assembled([("x", (4, 40), "uint8")], walk)), 6, monkeypatch)


def test_results_that_are_parts(monkeypatch):
    """A result of the model may lie in another one."""

    def build(emit, x):
        a, b = _dense(emit, x, 16), _dense(emit, x, 24)
        return [a, emit(relax.op.concat([a, b, a], 1)), b]

    _check(_module(build, [(1, 40)]), 2, monkeypatch)


def test_parts_of_parts(monkeypatch):
    """Joined twice, sliced before and after."""

    def build(emit, x):
        a = _dense(emit, x, 48)
        first = emit(relax.op.strided_slice(a, axes=[1], begin=[0], end=[17]))
        inner = emit(relax.op.concat([_dense(emit, first, 9), a], 1))
        outer = emit(relax.op.concat([_dense(emit, x, 7), inner], 1))
        last = emit(relax.op.strided_slice(outer, axes=[1], begin=[5], end=[45]))
        return [_dense(emit, last, 11), _dense(emit, outer, 12), _dense(emit, inner, 13)]

    _check(_module(build, [(1, 40)]), 6, monkeypatch)


def test_slices_that_are_runs_of_memory(monkeypatch):
    def build(emit, x):
        y = _conv(emit, x, 24)

        def cut(axes, begin, end, strides=None):
            part = emit(relax.op.strided_slice(y, axes=axes, begin=begin, end=end, strides=strides))
            return _conv(emit, part, 8)

        runs = [cut([1], [2], [5]), cut([1, 2], [-1, 1], [6, 4]), cut([1, 2, 3], [3, 2, 8], [4, 3, 16])]
        return [*runs, cut([1, 2], [1, 1], [3, 3]), cut([1], [0], [6], [2])]

    _check(_module(build, [(1, 6, 5, 16)]), 3, monkeypatch)


def test_slices_whose_rows_are_apart(monkeypatch):
    """Channels of all pixels, some of them of a single row; of what is a part itself; the halves of a split,
    one of which is joined again and so copied."""

    def build(emit, x):
        y = emit(relax.op.concat([_conv(emit, x, 48), _conv(emit, x, 24)], 3))
        halves = emit(relax.op.split(y, 2, 3))
        a, b = (emit(relax.TupleGetItem(halves, index)) for index in (0, 1))
        c = emit(relax.op.strided_slice(y, axes=[1, 3], begin=[2, 8], end=[3, 40]))
        d = emit(relax.op.strided_slice(a, axes=[3], begin=[4], end=[36]))
        joined = emit(relax.op.concat([a, _conv(emit, b, 20)], 3))
        return [_conv(emit, value, 8) for value in (joined, c, d, y)]

    _check(_module(build, [(1, 6, 5, 16)]), 7, monkeypatch)


def test_slices_of_inputs_and_constants(monkeypatch):
    def build(emit, x):
        table = op.base.constant(np.arange(80, dtype=np.uint8).reshape(2, 40))
        rows = [emit(relax.op.strided_slice(value, axes=[0], begin=[1], end=[2])) for value in (x, table)]
        return [_dense(emit, rows[0], 8), emit(relax.op.concat([*rows, _dense(emit, x, 40)], 0))]

    _check(_module(build, [(2, 40)]), 2, monkeypatch)


def test_saved_and_loaded(tmp_path):
    def build(emit, x):
        return [emit(relax.op.concat([_dense(emit, x, 20), _dense(emit, x, 33)], 1))]

    module = _module(build, [(1, 40)])
    engine = qnn_ext.build(module, num_threads=1)
    engine.save(tmp_path / "model.qnn")
    x = np.arange(40, dtype=np.uint8).reshape(1, 40)
    np.testing.assert_array_equal(qnn_ext.load(tmp_path / "model.qnn")(x), engine(x))
