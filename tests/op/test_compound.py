"""Products of any rank against plain NumPy and PyTorch-free definitions, run by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import ShapeError
from qnn_ext.op import compound
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret

RNG = np.random.default_rng(11)


def evaluate(build, *arrays):
    """build(*variables, emit) run on the arrays."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([build(*params, builder.emit)]))
        builder.emit_func_output(result)
    return interpret(builder.get(), list(arrays))[0]


def convolve(x, w, strides, padding, dilation, groups):
    """The definition, tap by tap, over any number of spatial dimensions; x and w without zero points."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)])
    sizes = [(x.shape[2 + i] - (w.shape[2 + i] - 1) * dilation[i] - 1) // strides[i] + 1 for i in range(rank)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes), np.int64)
    per_in, per_out = w.shape[1], w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(t * d, t * d + (size - 1) * s + 1, s)
            for t, d, s, size in zip(tap, dilation, strides, sizes, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * per_in, (g + 1) * per_in), *window)]
            weight = w[(slice(g * per_out, (g + 1) * per_out), slice(None), *tap)]
            out[:, g * per_out : (g + 1) * per_out] += np.einsum("nc...,oc->no...", part, weight)
    return out


def transposed(x, w, strides, padding, output_padding, dilation, groups):
    """Scatter: every input cell adds its kernel to the output."""
    rank = x.ndim - 2
    full = [(x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(rank)]
    per_in, per_out = w.shape[0] // groups, w.shape[1]
    out = np.zeros(
        (x.shape[0], per_out * groups, *(f + o for f, o in zip(full, output_padding, strict=True))), np.int64
    )
    for tap in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(t * d, t * d + (size - 1) * s + 1, s)
            for t, d, s, size in zip(tap, dilation, strides, x.shape[2:], strict=True)
        )
        for g in range(groups):
            part = x[:, g * per_in : (g + 1) * per_in]
            weight = w[(slice(g * per_in, (g + 1) * per_in), slice(None), *tap)]
            target = (slice(None), slice(g * per_out, (g + 1) * per_out), *window)
            out[target] += np.einsum("nc...,co->no...", part, weight)
    crop = tuple(slice(padding[i], out.shape[2 + i] - padding[rank + i]) for i in range(rank))
    return out[(slice(None), slice(None), *crop)]


CONVOLUTIONS = [
    # spatial, kernel, strides, padding, dilation, groups
    ((9,), (3,), (1,), (1, 1), (1,), 1),
    ((11,), (4,), (3,), (2, 0), (2,), 2),
    ((7, 6), (3, 2), (2, 1), (1, 0, 2, 1), (1, 2), 2),
    ((5, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1), 1),
    ((6, 5, 4), (2, 3, 1), (2, 2, 1), (1, 0, 0, 0, 2, 1), (3, 1, 1), 2),
    ((4, 4, 4), (1, 2, 2), (3, 1, 1), (0, 0, 0, 0, 0, 0), (1, 1, 1), 4),
]


@pytest.mark.parametrize(("spatial", "kernel", "strides", "padding", "dilation", "groups"), CONVOLUTIONS)
@pytest.mark.parametrize("running", ["constant", "zero points at run time"])
def test_convolution(spatial, kernel, strides, padding, dilation, groups, running):
    x = RNG.integers(0, 256, (2, 4, *spatial)).astype(np.uint8)
    w = RNG.integers(-128, 128, (8, 4 // groups, *kernel)).astype(np.int8)
    zw = RNG.integers(-20, 20, 8).astype(np.int32)
    geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    expected = convolve(x.astype(int) - 131, w.astype(int) - zw.reshape(-1, *[1] * (w.ndim - 1)), **geometry)
    if running == "constant":
        got = evaluate(
            lambda d, emit: compound.convolution(d, constant(w), 131, constant(zw), **geometry, emit=emit), x
        )
    else:
        got = evaluate(
            lambda d, z, emit: compound.convolution(d, constant(w), z, constant(zw), **geometry, emit=emit),
            x,
            np.int32(131).reshape(()),
        )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("spatial", "kernel", "strides", "padding", "output_padding", "dilation", "groups"),
    [
        ((5,), (3,), (2,), (1, 0), (1,), (1,), 1),
        ((4, 5), (3, 2), (2, 3), (1, 0, 0, 1), (0, 2), (1, 1), 2),
        ((3, 4, 3), (3, 2, 3), (2, 1, 2), (1, 0, 1, 1, 0, 0), (1, 0, 0), (1, 1, 1), 1),
        ((3, 2, 3), (2, 3, 1), (1, 2, 1), (0, 1, 0, 0, 1, 0), (0, 1, 0), (2, 1, 1), 2),
        ((4, 2, 2), (1, 2, 2), (3, 1, 1), (2, 0, 0, 1, 0, 0), (0, 0, 0), (1, 1, 1), 1),
    ],
)
def test_transposed_convolution(spatial, kernel, strides, padding, output_padding, dilation, groups):
    x = RNG.integers(-128, 128, (2, 4, *spatial)).astype(np.int8)
    w = RNG.integers(-128, 128, (4, 3, *kernel)).astype(np.int8)
    geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    geometry["output_padding"] = output_padding
    expected = transposed(x.astype(int) + 7, w.astype(int), **geometry)
    got = evaluate(lambda d, emit: compound.transposed_convolution(d, constant(w), -7, 0, **geometry, emit=emit), x)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 7), (7, 3)),
        ((2, 3, 5, 7), (7, 3)),
        ((2, 3, 5, 7), (2, 3, 7, 4)),
        ((2, 1, 5, 7), (3, 7, 4)),
        ((5, 7), (2, 3, 7, 4)),
        ((7,), (7, 4)),
        ((2, 5, 7), (7,)),
        ((7,), (7,)),
        ((7,), (3, 7, 2)),
    ],
)
@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("per_column", [False, True])
def test_matmul(left, right, weights, per_column):
    x = RNG.integers(0, 256, left).astype(np.uint8)
    y = RNG.integers(-128, 128, right).astype(np.int8)
    columns = right[-1] if per_column and len(right) > 1 else 1
    zy = RNG.integers(-9, 9, columns).astype(np.int32)
    expected = np.matmul(x.astype(int) - 3, y.astype(int) - zy)
    if weights == "constant":
        got = evaluate(lambda a, emit: compound.matmul(a, constant(y), 3, constant(zy), emit=emit), x)
    else:
        got = evaluate(lambda a, b, emit: compound.matmul(a, b, 3, constant(zy), emit=emit), x, y)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["constant", "computed"])
def test_equal_zero_points_of_all_columns_need_no_wider_integers(dtype):
    """As of symmetric weights with a scale per column, of several matrices at once."""
    x = RNG.integers(0, 256, (2, 3, 7)).astype(np.uint8)
    y = RNG.integers(-128, 128, (2, 7, 4)).astype(np.int8)
    seen = []

    def product(a, b, emit):
        def noted(value):
            seen.extend(str(arg.ty.dtype) for arg in value.args)
            return emit(value)

        b = constant(y) if dtype == "constant" else b
        return compound.matmul(a, b, 3, constant(np.full(4, -5, np.int32)), emit=noted)

    got = evaluate(product, x, y)
    np.testing.assert_array_equal(got, np.matmul(x.astype(int) - 3, y.astype(int) + 5))
    assert "int16" not in seen


def test_shapes_that_do_not_fit():
    x, y = (RNG.integers(0, 9, shape).astype(np.uint8) for shape in ((2, 3), (4, 5)))
    with pytest.raises(ShapeError, match="3 columns do not match 4 rows"):
        evaluate(lambda a, b, emit: compound.matmul(a, b, 0, 0, emit=emit), x, y)
    z = RNG.integers(0, 9, (2, 2, 5, 5)).astype(np.uint8)
    w = RNG.integers(0, 9, (3, 3, 4)).astype(np.uint8)
    with pytest.raises(ShapeError, match="do not broadcast"):
        evaluate(lambda a, b, emit: compound.matmul(a, b, 0, 0, emit=emit), z, np.concatenate([w, w[:, :2]], 1))
