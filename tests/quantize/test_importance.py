"""How much errors in channels matter: in a network of products alone, as much as they change its outputs."""

import numpy as np
from tvm import relax

from qnn_ext.op.base import constant, constant_value
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.quantize.importance import importances
from qnn_ext.quantize.inserted_factors import channel_axes

from .networks import float_module

RNG = np.random.default_rng(5)


def weight(*shape):
    return constant(RNG.normal(size=shape).astype(np.float32))


def found(body, energies):
    function = float_module((1, 3, 4, 4), body).ir["main"]
    found = importances(function, channel_axes(function), energies)
    return [found[binding.var] for binding in bindings_of(function)]


def squares(array):
    return np.square(np.asarray(constant_value(array), np.float64))


def test_products_sums_and_factors():
    first, second, third = weight(4, 3, 1, 1), weight(4, 1, 1, 1), weight(2, 4, 1, 1)
    factors = constant(np.array([1, 2, 3, 4], np.float32).reshape(4, 1, 1))

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, first))
        z = emit(relax.op.multiply(emit(relax.op.nn.conv2d(y, second, groups=4)), factors))
        return emit(relax.op.nn.conv2d(emit(relax.op.add(y, z)), third))

    one, two, multiplied, added, result, *_ = found(body, [8.0])
    np.testing.assert_allclose(result, 1 / 8)
    np.testing.assert_allclose(added, squares(third).sum(axis=(0, 2, 3)) / 8)
    np.testing.assert_allclose(multiplied, added)
    np.testing.assert_allclose(two, added * np.array([1, 4, 9, 16]))
    np.testing.assert_allclose(one, added + two * squares(second).reshape(4))


def test_joined_channels_and_what_mixes_them():
    first, second, third = weight(4, 3, 1, 1), weight(2, 3, 1, 1), weight(5, 6, 1, 1)

    def body(emit, x):
        one, two = (emit(relax.op.nn.conv2d(x, w)) for w in (first, second))
        joined = emit(relax.op.concat([one, two], 1))
        return emit(relax.op.reshape(emit(relax.op.nn.conv2d(joined, third)), (1, 80)))

    one, two, joined, *_ = found(body, [0.0])  # an output that is always zero
    np.testing.assert_allclose(joined, squares(third).sum(axis=(0, 2, 3)))
    np.testing.assert_allclose(np.concatenate([one, two]), joined)
