"""Channels last: the same bits, and no transposes left between layers."""

import math

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.op.base import constant, shape_of
from qnn_ext.op.compound import convolution, transposed_convolution
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.layout import channels_last
from qnn_ext.passes.layout.reshapes import blocks
from qnn_ext.passes.rewrite import bindings_of, op_name

from .modules import compile_and_run, inputs_of, module

IMAGE = ((2, 8, 6, 5), "uint8")


def names(mod) -> list[str]:
    return [op_name(binding.value) for binding in bindings_of(mod["main"])]


def check(mod, rng, permutes: int | None = None, compiled: bool = True):
    """The pass changes no bit; `permutes`: how many transposes it leaves."""
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    rewritten = channels_last(mod)
    if permutes is not None:
        assert names(rewritten).count("permute_dims") == permutes, rewritten.script()
    results = {"interpreted": interpret(rewritten, inputs)}
    if compiled:
        results["compiled"] = compile_and_run(mod, "native", inputs)
    for name, result in results.items():
        for number, (actual, wanted) in enumerate(zip(result, expected, strict=True)):
            assert actual.dtype == wanted.dtype
            np.testing.assert_array_equal(actual, wanted, err_msg=f"{name} output {number}")
    return rewritten


class Net:
    """Layers in NCHW with random weights."""

    def __init__(self, emit, rng):
        self.emit, self.rng = emit, rng

    def conv(self, x, out, kernel=3, groups=1, stride=1):
        channels = int(x.ty.shape[1])
        weight = self.rng.integers(-128, 128, (out, channels // groups, kernel, kernel)).astype(np.int8)
        pad = kernel // 2
        acc = convolution(
            x,
            constant(weight),
            4,
            0,
            strides=(stride, stride),
            padding=(pad,) * 4,
            dilation=(1, 1),
            groups=groups,
            emit=self.emit,
        )
        bias = self.rng.integers(-500, 500, (1, out, 1, 1)).astype(np.int32)
        scale = self.rng.uniform(0.5, 2, out).astype(np.float32) * np.float32(40 / 128 / 20 / np.sqrt(weight[0].size))
        acc = self.emit(relax.op.add(acc, constant(bias)))
        return self.emit(qnn.requantize(acc, constant(scale), 0, 1.0, 4, axis=1, out_dtype="uint8"))

    def add(self, x, y):
        return self.emit(qnn.add(x, y, 0.5, 4, 0.4, 4, 0.6, 4, out_dtype="uint8"))

    def max_pool(self, x):
        return self.emit(relax.op.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1, 1, 1)))

    def dense(self, x, out):
        weight = self.rng.integers(-128, 128, (out, int(x.ty.shape[1]))).astype(np.int8)
        return self.emit(qnn.dense(x, constant(weight), 4, 0, 1.0, 1.0))


def resnet(emit, rng, x):
    net = Net(emit, rng)
    y = net.max_pool(net.conv(x, 8))
    y = net.add(net.conv(net.conv(y, 8), 8), y)
    y = net.add(net.conv(net.conv(y, 12, stride=2), 12), net.conv(y, 12, kernel=1, stride=2))
    y = emit(qnn.mean(y, 0.6, 4, 0.5, 4, axis=[2, 3], keepdims=True, out_dtype="uint8"))
    return net.dense(emit(relax.op.reshape(y, (int(x.ty.shape[0]), 12))), 10)


def test_a_resnet_has_one_transpose_at_its_input(rng):
    check(module([IMAGE], lambda emit, x: resnet(emit, rng, x)), rng, permutes=1)


@pytest.mark.parametrize("ending", ["output", "convolution"])
@pytest.mark.parametrize("method", ["take", "resize2d"])
def test_what_enlarges_the_result_reads_it_transposed(rng, ending, method):
    """The smaller tensor is transposed, unless a convolution reads the larger one."""
    index = constant(np.repeat(np.arange(6), 4))

    def body(emit, x):
        net = Net(emit, rng)
        x = net.conv(x, 7)
        if method == "take":
            x = emit(relax.op.take(emit(relax.op.take(x, index, 2)), index, 3))
        else:
            x = emit(relax.op.image.resize2d(x, (24, 24), method="nearest_neighbor", rounding_method="floor"))
        x = emit(relax.op.add(x, x))
        return net.conv(x, 3) if ending == "convolution" else x

    mod = check(module([((2, 8, 6, 6), "uint8")], body), rng)
    moved = [math.prod(shape_of(b.value)) for b in bindings_of(mod["main"]) if op_name(b.value) == "permute_dims"]
    assert max(moved) == (2 * 3 * 24 * 24 if ending == "convolution" else 2 * 8 * 6 * 6)


def test_one_channel_needs_no_transpose(rng):
    def body(emit, x):
        return resnet(emit, rng, x)

    check(module([((2, 1, 7, 5), "uint8")], body), rng, permutes=0)


def test_inverted_residuals_of_a_mobilenet(rng):
    def body(emit, x):
        net = Net(emit, rng)
        y = net.conv(x, 8, stride=2)
        inside = net.conv(y, 16, kernel=1)
        inside = emit(relax.op.clip(net.conv(inside, 16, groups=16), 4, 200))
        y = net.add(net.conv(inside, 8, kernel=1), y)
        pooled = emit(qnn.avg_pool2d(y, 0.5, 4, 0.6, 3, (3, 3), padding=(0,) * 4, layout="NCHW", out_dtype="uint8"))
        return emit(relax.op.squeeze(pooled, [2, 3]))

    check(module([((2, 3, 6, 6), "uint8")], body), rng, permutes=1)


def test_squeeze_and_excite(rng):
    """mean → 1×1 convolution → sigmoid → product broadcast over the pixels, in float32."""

    def body(emit, x):
        net = Net(emit, rng)
        y = net.conv(x, 8)
        squeezed = emit(qnn.mean(y, 0.5, 4, 0.5, 4, axis=[2, 3], keepdims=True, out_dtype="uint8"))
        gate = emit(relax.op.sigmoid(emit(qnn.dequantize(net.conv(squeezed, 8, kernel=1), 0.03, 4))))
        product = emit(relax.op.multiply(emit(qnn.dequantize(y, 0.5, 4)), gate))
        per_channel = constant(rng.uniform(0.1, 2, (8, 1, 1)).astype(np.float32))
        y = emit(qnn.quantize(emit(relax.op.add(product, per_channel)), 0.4, 4, out_dtype="uint8"))
        return net.conv(y, 4)

    check(module([IMAGE], body), rng, permutes=2)


def test_concatenate_split_slice_pad_flip_tile(rng):
    def body(emit, x):
        net = Net(emit, rng)
        y = net.conv(x, 6)
        parts = emit(relax.op.split(y, 3, axis=1))
        a, b, c = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        y = emit(relax.op.concat([c, net.conv(a, 5), b], axis=1))
        y = emit(relax.op.strided_slice(y, [1, 3], [1, 0], [8, 5], [1, 2]))
        y = emit(relax.op.nn.pad(y, [0, 0, 0, 0, 1, 2, 0, 1], pad_mode="constant", pad_value=4))
        y = emit(relax.op.flip(y, 2))
        y = emit(relax.op.tile(y, (1, 1, 1, 2)))
        y = emit(relax.op.repeat(y, 2, 1))
        y = emit(relax.op.take(y, constant(np.int64([3, 1, 2])), 1))
        y = emit(qnn.concatenate([y, y], [0.5, 0.4], [4, 3], 0.6, 4, axis=1, out_dtype="uint8"))
        entries = constant(rng.integers(0, 256, 256).astype(np.uint8))
        return net.conv(emit(qnn.table(y, entries)), 3)

    check(module([IMAGE], body), rng, permutes=2)


def test_channel_shuffle(rng):
    """reshape to five dimensions, transpose, reshape: the channels of one pixel change places."""

    def body(emit, x):
        net = Net(emit, rng)
        y = net.conv(x, 12)
        y = emit(relax.op.reshape(y, (2, 3, 4, 6, 5)))
        y = emit(relax.op.permute_dims(y, [0, 2, 1, 3, 4]))
        return net.conv(emit(relax.op.reshape(y, (2, 12, 6, 5))), 4, groups=2)

    rewritten = check(module([IMAGE], body), rng, permutes=3)
    shuffle = [b.value for b in bindings_of(rewritten["main"]) if op_name(b.value) == "permute_dims"][1]
    assert [int(axis) for axis in shuffle.attrs.axes] == [0, 1, 2, 4, 3]


def test_pixel_shuffle_transposes_once(rng):
    def body(emit, x):
        net = Net(emit, rng)
        y = emit(relax.op.reshape(net.conv(x, 12), (2, 3, 2, 2, 6, 5)))
        y = emit(relax.op.permute_dims(y, [0, 1, 4, 2, 5, 3]))
        return net.conv(emit(relax.op.reshape(y, (2, 3, 12, 10))), 4)

    check(module([IMAGE], body), rng, permutes=3)


def test_patches_of_a_transformer(rng):
    """(N, C, H, W) → (N, C, H·W) → (N, H·W, C) is what the convolution computed."""

    def body(emit, x):
        y = Net(emit, rng).conv(x, 12)
        tokens = emit(relax.op.permute_dims(emit(relax.op.reshape(y, (2, 12, 30))), [0, 2, 1]))
        return emit(qnn.softmax(tokens, 0.1, 4, 1 / 256, -128))

    check(module([IMAGE], body), rng, permutes=1)


def test_transposes_of_the_model_cancel(rng):
    """An image with the channels last, in a model with the channels first."""

    def body(emit, x):
        y = Net(emit, rng).conv(emit(relax.op.permute_dims(x, [0, 3, 1, 2])), 6)
        return emit(relax.op.permute_dims(y, [0, 2, 3, 1]))

    check(module([((2, 6, 5, 8), "uint8")], body), rng, permutes=0)


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks_stay_channels_last_between_layers(rng, rank):
    shape = {1: (2, 8, 9), 3: (2, 4, 5, 6, 7)}[rank]

    def layer(emit, x, out, pad):
        weight = rng.integers(-128, 128, (out, int(x.ty.shape[1]), *(3,) * rank)).astype(np.int8)
        geometry = {"strides": (1,) * rank, "padding": (pad,) * 2 * rank, "dilation": (1,) * rank, "groups": 1}
        acc = convolution(x, constant(weight), 4, 0, emit=emit, **geometry)
        bias = constant(rng.integers(-99, 99, (out, *(1,) * rank)).astype(np.int32))
        scale = constant(rng.uniform(1e-4, 1e-3, out).astype(np.float32))
        biased = emit(relax.op.add(acc, bias))
        return emit(qnn.requantize(biased, scale, 0, 0.5, 4, axis=1, out_dtype="uint8"))

    def body(emit, x):
        y = layer(emit, layer(emit, x, 6, 1), 7, 0)
        if rank == 1:
            y = emit(relax.op.nn.max_pool1d(y, 2, 2))
        return y

    check(module([(shape, "uint8")], body), rng, permutes={1: 2, 3: 4}[rank])


def test_transposed_convolution_and_resize(rng):
    weight = rng.integers(-128, 128, (6, 5, 3, 3)).astype(np.int8)

    def body(emit, x):
        y = Net(emit, rng).conv(x, 6)
        acc = transposed_convolution(
            y,
            constant(weight),
            4,
            0,
            strides=(2, 2),
            padding=(1, 1, 1, 1),
            output_padding=(1, 0),
            dilation=(1, 1),
            groups=1,
            emit=emit,
        )
        y = emit(qnn.requantize(acc, 0.001, 0, 0.5, 4, out_dtype="uint8"))
        y = emit(
            relax.op.image.resize2d(
                y,
                (7, 9),
                method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric",
                rounding_method="floor",
            )
        )
        return Net(emit, rng).conv(y, 4)

    check(module([IMAGE], body), rng, permutes=2)


def test_float_operators(rng):
    """Reductions and pools keep the order of their sums; a reduction over the channels goes back for it."""

    def body(emit, x):
        real = emit(qnn.dequantize(Net(emit, rng).conv(x, 6), 0.01, 4))
        scaled = emit(relax.op.multiply(real, constant(rng.uniform(0.1, 2, (6, 1, 1)).astype(np.float32))))
        prelu = emit(relax.op.nn.prelu(scaled, constant(rng.uniform(0.1, 2, 6).astype(np.float32)), 1))
        return [
            emit(relax.op.mean(prelu, [2, 3])),
            emit(relax.op.sum(prelu, [1, 3])),
            emit(relax.op.max(prelu, [1, 2], keepdims=True)),
            emit(relax.op.nn.avg_pool2d(prelu, (2, 2), (1, 1), padding=(1, 1, 0, 0))),
            emit(relax.op.nn.adaptive_avg_pool2d(prelu, (1, 1))),
            emit(relax.op.nn.softmax(prelu, 1)),
            emit(relax.op.nn.softmax(prelu, 3)),
        ]

    check(module([IMAGE], body), rng)


def test_float_convolutions(rng):
    """Depthwise and 1×1 ones add their products in the same order; another stays channels first."""

    def body(emit, x):
        real = emit(qnn.dequantize(Net(emit, rng).conv(x, 6), 0.01, 4))
        weights = [
            rng.standard_normal(shape).astype(np.float32) for shape in ((6, 1, 3, 3), (4, 6, 1, 1), (4, 6, 3, 3))
        ]
        return [
            emit(relax.op.nn.conv2d(real, constant(weight), padding=(1, 1), groups=6 // weight.shape[1]))
            for weight in weights
        ]

    rewritten = check(module([IMAGE], body), rng, compiled=False)  # compiled ones fuse products and sums
    layouts = [b.value.attrs.data_layout for b in bindings_of(rewritten["main"]) if op_name(b.value) == "nn.conv2d"]
    assert layouts == ["NHWC", "NHWC", "NCHW"]


def test_operands_of_fewer_dimensions(rng):
    def body(emit, x, row, image, scalar):
        y = Net(emit, rng).conv(x, 8)
        for other in (row, image, scalar):
            y = emit(qnn.add(y, other, 0.5, 4, 0.4, 3, 0.6, 4, out_dtype="uint8"))
        vector = constant(np.linspace(0.1, 0.8, 8).astype(np.float32))
        channels = constant(rng.integers(0, 255, (8, 1, 1)).astype(np.uint8))
        y = emit(qnn.mul(y, channels, 0.5, 4, vector, 3, 5.0, 4, rhs_axis=0, out_dtype="uint8"))
        return emit(
            qnn.requantize(y, vector, constant(np.arange(8, dtype=np.int32)), 0.3, 4, axis=-3, out_dtype="int8")
        )

    check(module([IMAGE, ((5,), "uint8"), ((8, 6, 5), "uint8"), ((), "uint8")], body), rng)


def test_whole_tuples_and_scalars(rng):
    def body(emit, x):
        parts = emit(relax.op.split(Net(emit, rng).conv(x, 6), 2, axis=1))
        return [emit(relax.op.concat(parts, axis=2)), emit(relax.op.max(emit(relax.TupleGetItem(parts, 1))))]

    check(module([IMAGE], body), rng)


def test_a_module_without_channels_first_is_returned(rng):
    mod = module([((2, 5), "uint8")], lambda emit, x: Net(emit, rng).dense(x, 4))
    assert channels_last(mod) is mod


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed):
    rng = np.random.default_rng(seed)

    def body(emit, x):
        net = Net(emit, rng)
        values = [x]

        def pick():
            return values[rng.integers(max(0, len(values) - 4), len(values))]

        def same(y):
            return next((v for v in values[::-1] if v is not y and v.ty.shape == y.ty.shape), y)

        def shuffled(y):
            n, c, h, w = (int(dim) for dim in y.ty.shape)
            split = emit(relax.op.reshape(y, (n, 2, c // 2, h, w)))
            return emit(relax.op.reshape(emit(relax.op.permute_dims(split, [0, 2, 1, 3, 4])), (n, c, h, w)))

        layers = [
            lambda y: net.conv(y, int(rng.integers(2, 5)) * 2, kernel=int(rng.choice([1, 3]))),
            lambda y: net.conv(y, int(y.ty.shape[1]), groups=int(y.ty.shape[1])),
            lambda y: net.add(y, same(y)),
            lambda y: net.max_pool(y) if int(y.ty.shape[2]) > 3 else y,
            lambda y: emit(relax.op.concat([y, same(y)], axis=int(rng.choice([1, -1])))),
            lambda y: emit(relax.op.flip(y, int(rng.integers(1, 4)))),
            lambda y: emit(relax.op.permute_dims(y, [0, 1, 3, 2])),
            shuffled,
            lambda y: net.add(y, emit(qnn.max(y, 0.5, 4, 0.5, 4, axis=[2, 3], keepdims=True, out_dtype="uint8"))),
        ]
        for _ in range(10):
            values.append(layers[rng.integers(len(layers))](pick()))
        last = values[-1]
        flat = emit(relax.op.reshape(last, (int(last.ty.shape[0]), -1)))
        return [net.dense(flat, 3), net.conv(values[-1], 2), values[-2]]

    check(module([IMAGE], body), rng, compiled=seed < 3)


def test_blocks_of_a_reshape():
    assert blocks((2, 6, 4, 1), (2, 2, 3, 4)) == [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,))]
    assert blocks((2, 3, 4), (1, 6, 4)) == [((0, 1), (1,)), ((2,), (2,))]
    assert blocks((4, 6), (6, 4)) == [((0, 1), (0, 1))]
    assert blocks((1, 1), ()) == []
