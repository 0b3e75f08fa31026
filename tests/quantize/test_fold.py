"""fold: the same results, fewer operators."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.fold import fold

from .networks import float_module


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def operators(module: QnnModule) -> list[str]:
    return [name for binding in bindings_of(module.ir["main"]) if (name := op_name(binding.value))]


def check_same(module: QnnModule, rng: np.random.Generator, relative: float = 2e-6) -> QnnModule:
    """Fold `module`; its results on random data must stay the same up to rounding."""
    folded = fold(module)
    x = rng.normal(size=module.inputs[0].shape).astype(np.float32)
    before, after = Interpreter(module)(x), Interpreter(folded)(x)
    np.testing.assert_allclose(after, before, rtol=0, atol=relative * np.abs(before).max())
    return folded


def along(rng: np.random.Generator, *shape: int) -> relax.Expr:
    return constant(rng.uniform(0.5, 2.0, shape).astype(np.float32))


PRODUCTS = {
    "conv1d": ((1, 4, 9), (6, 4, 3), lambda x, w: relax.op.nn.conv1d(x, w)),
    "conv2d": ((1, 4, 6, 6), (6, 4, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w, padding=(1, 1))),
    "grouped": ((1, 4, 6, 6), (6, 2, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w, groups=2)),
    "depthwise": ((1, 6, 6, 6), (6, 1, 3, 3), lambda x, w: relax.op.nn.conv2d(x, w, groups=6)),
    "channels_last": (
        (1, 6, 6, 4),
        (6, 3, 3, 4),
        lambda x, w: relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI"),
    ),
    "transposed": ((1, 4, 5, 5), (4, 6, 2, 2), lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=(2, 2))),
    "transposed_grouped": ((1, 4, 5, 5), (4, 3, 2, 2), lambda x, w: relax.op.nn.conv2d_transpose(x, w, groups=2)),
    "dense": ((3, 4), (4, 6), relax.op.matmul),
    "vector": ((4,), (4, 6), relax.op.matmul),
    "batched": ((2, 3, 4), (2, 4, 6), relax.op.matmul),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_linear_operators_behind_a_product(name, rng):
    """bias, batch norm as multiply and add, a division by a number: all in weight and one bias."""
    shape, weight, product = PRODUCTS[name]
    w = constant(rng.normal(size=weight).astype(np.float32))

    def body(emit, x):
        y = emit(product(x, w))
        last = name in ("channels_last", "dense", "vector", "batched")
        channels = [6] if last else [6, *(1,) * (len(shape) - 2)]
        y = emit(relax.op.add(y, along(rng, *channels)))
        y = emit(relax.op.multiply(along(rng, *channels), y))
        y = emit(relax.op.subtract(y, along(rng, *channels)))
        return emit(relax.op.divide(y, constant(np.float32(3))))

    folded = check_same(float_module(shape, body), rng)
    assert operators(folded)[1:] == ["add"]


def test_names_of_product_and_result_stay(rng):
    def body(emit, x):
        y = emit(relax.op.matmul(x, along(rng, 4, 6)), "fc_part")
        return emit(relax.op.add(emit(relax.op.multiply(y, along(rng, 6)), "scaled"), along(rng, 6)), "fc")

    folded = check_same(float_module((2, 4), body), rng)
    names = [str(binding.var.name) for binding in bindings_of(folded.ir["main"])]
    assert names[:2] == ["fc_part", "fc"]


def test_factor_in_front_of_a_product(rng):
    def body(emit, x):
        return emit(relax.op.matmul(emit(relax.op.divide(x, constant(np.float32(255)))), along(rng, 4, 6)))

    assert operators(check_same(float_module((2, 4), body), rng)) == ["matmul"]


def test_factor_that_others_read_stays(rng):
    def body(emit, x):
        half = emit(relax.op.multiply(x, constant(np.float32(0.5))))
        return emit(relax.op.add(emit(relax.op.matmul(half, along(rng, 4, 4))), half))

    assert operators(check_same(float_module((2, 4), body), rng)) == ["multiply", "matmul", "add"]


@pytest.mark.parametrize("behind_product", [True, False])
def test_batch_norm(behind_product, rng):
    def body(emit, x):
        if behind_product:
            x = emit(relax.op.nn.conv2d(x, constant(rng.normal(size=(4, 4, 1, 1)).astype(np.float32))))
        norm = relax.op.nn.batch_norm(x, *(along(rng, 4) for _ in range(4)), axis=1, training=False)
        return emit(relax.TupleGetItem(emit(norm), 0))

    folded = check_same(float_module((1, 4, 5, 5), body), rng)
    assert operators(folded) == (["nn.conv2d", "add"] if behind_product else ["multiply", "add"])


def test_what_is_not_linear_per_channel_stays(rng):
    """A factor per pixel, a value that is read twice, an accumulator subtracted from a constant."""

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, along(rng, 4, 4, 1, 1)))
        y = emit(relax.op.multiply(y, along(rng, 1, 1, 5, 5)))
        z = emit(relax.op.nn.conv2d(y, along(rng, 4, 4, 1, 1)))
        doubled = emit(relax.op.multiply(z, constant(np.float32(2))))
        return emit(relax.op.add(doubled, emit(relax.op.subtract(constant(np.float32(1)), z))))

    module = float_module((1, 4, 5, 5), body)
    assert operators(check_same(module, rng)) == operators(module)


def test_constants_are_computed_and_idle_operators_go(rng):
    def body(emit, x):
        weight = emit(relax.op.permute_dims(emit(relax.op.reshape(along(rng, 24), [6, 4]))))
        y = emit(relax.op.matmul(emit(relax.op.reshape(x, [2, 4])), weight))
        y = emit(relax.op.permute_dims(y, [0, 1]))
        y = emit(relax.op.nn.relu(emit(relax.op.multiply(y, constant(np.float32(1))))))
        return emit(relax.op.add(y, constant(np.float32(0))))

    assert operators(check_same(float_module((2, 4), body), rng)) == ["matmul", "nn.relu"]
