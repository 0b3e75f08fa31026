"""More of relay.testing's networks: Inception v3, DenseNet, a generator of images, a player of games and an LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from .basic import ELEMENTWISE, split
from .expressions import Constant, Expr, Function, Tuple, free_vars, var
from .neural import bias_add, dense
from .workloads import Branch, Weight


def inception_v3(
    batch_size: int = 1,
    num_classes: int = 1000,
    image_shape: Sequence[int] = (3, 299, 299),
    dtype: str = "float32",
) -> Function:
    """Inception v3 (Szegedy et al. 2015, arXiv 1512.00567)."""
    net = Branch.start(batch_size, image_shape, "NCHW", dtype)
    net = net.unit("conv", 32, 3, 2).unit("conv_1", 32, 3).unit("conv_2", 64, 3, 1, 1).max_pool(3, 2)
    net = net.unit("conv_3", 80).unit("conv_4", 192, 3).max_pool(3, 2)
    for index, pooled in enumerate((32, 64, 64)):
        net = _inception_a(net, f"mixed_{index}", pooled)
    wide = net.unit("mixed_3_tower", 64).unit("mixed_3_tower_1", 96, 3, 1, 1).unit("mixed_3_tower_2", 96, 3, 2)
    net = net.unit("mixed_3", 384, 3, 2).beside(wide, net.max_pool(3, 2))
    for index, channels in enumerate((128, 160, 160, 192), 4):
        net = _inception_c(net, f"mixed_{index}", channels)
    net = _inception_d(net, "mixed_8")
    for index in (9, 10):
        net = _inception_e(net, f"mixed_{index}", index == 9)
    return net.average().flat().dense("fc1", num_classes).function()


def _inception_a(net: Branch, name: str, pooled: int) -> Branch:
    five = net.unit(f"{name}_tower", 48).unit(f"{name}_tower_1", 64, 5, 1, 2)
    three = net.unit(f"{name}_tower_2", 64).unit(f"{name}_tower_3", 96, 3, 1, 1).unit(f"{name}_tower_4", 96, 3, 1, 1)
    return net.unit(name, 64).beside(five, three, net.average_pool(3, 1, 1).unit(f"{name}_pool", pooled))


_ACROSS, _DOWN = ((1, 7), (0, 3)), ((7, 1), (3, 0))  # window and padding


def _chain(net: Branch, name: str, channels: Sequence[int], windows: Sequence[Any]) -> Branch:
    for index, (width, (kernel, padding)) in enumerate(zip(channels, windows, strict=True)):
        net = net.unit(f"{name}_{index}", width, kernel, 1, padding)
    return net


def _inception_c(net: Branch, name: str, channels: int) -> Branch:
    one = (1, 0)
    short = _chain(net, f"{name}_tower", (channels, channels, 192), (one, _ACROSS, _DOWN))
    long = _chain(net, f"{name}_tower_1", (*[channels] * 4, 192), (one, _DOWN, _ACROSS, _DOWN, _ACROSS))
    return net.unit(name, 192).beside(short, long, net.average_pool(3, 1, 1).unit(f"{name}_pool", 192))


def _inception_d(net: Branch, name: str) -> Branch:
    short = net.unit(f"{name}_tower", 192).unit(f"{name}_tower_3x3", 320, 3, 2)
    long = _chain(net, f"{name}_tower_1", (192, 192, 192), ((1, 0), _ACROSS, _DOWN))
    return short.beside(long.unit(f"{name}_tower_1_3x3", 192, 3, 2), net.max_pool(3, 2))


def _inception_e(net: Branch, name: str, averaged: bool) -> Branch:
    def both(half: Branch, label: str) -> Branch:
        return half.unit(f"{label}_across", 384, (1, 3), 1, (0, 1)).beside(
            half.unit(f"{label}_down", 384, (3, 1), 1, (1, 0))
        )

    short = both(net.unit(f"{name}_tower", 384), f"{name}_tower")
    long = both(net.unit(f"{name}_tower_1", 448).unit(f"{name}_tower_1_3x3", 384, 3, 1, 1), f"{name}_tower_1")
    pooled = net.average_pool(3, 1, 1) if averaged else net.max_pool(3, 1, 1)
    return net.unit(name, 320).beside(short, long, pooled.unit(f"{name}_pool", 192))


_DENSENETS = {
    121: (64, 32, [6, 12, 24, 16]),
    161: (96, 48, [6, 12, 36, 24]),
    169: (64, 32, [6, 12, 32, 32]),
    201: (64, 32, [6, 12, 48, 32]),
}


def densenet(
    densenet_size: int = 121,
    classes: int = 1000,
    batch_size: int = 4,
    image_shape: Sequence[int] = (3, 224, 224),
    dtype: str = "float32",
) -> Function:
    """DenseNet of 121, 161, 169 or 201 layers (Huang et al. 2016, arXiv 1608.06993)."""
    if densenet_size not in _DENSENETS:
        known = ", ".join(map(str, _DENSENETS))
        raise ShapeError(f"densenet: densenet_size must be {known}, found {densenet_size}")
    first, growth, blocks = _DENSENETS[densenet_size]
    net = Branch.start(batch_size, image_shape, "NCHW", dtype)
    net = net.unit("conv1", first, 7, 2, 3).max_pool(3, 2, 1)
    for block, layers in enumerate(blocks, 1):
        for layer in range(layers):
            name = f"block{block}_layer{layer}"
            new = net.norm(f"{name}_bn1").relu().conv(f"{name}_conv1", 4 * growth, 1, 1, 0)
            net = net.beside(new.norm(f"{name}_bn2").relu().conv(f"{name}_conv2", growth))
        net = net.norm(f"block{block}_bn").relu()
        if block < len(blocks):
            net = net.conv(f"block{block}_conv", net.shape[0] // 2, 1, 1, 0).average_pool(2, 2)
    return net.average().flat().dense("dense", classes).open_function()


def dcgan(
    batch_size: int,
    oshape: Sequence[int] = (3, 64, 64),
    ngf: int = 128,
    random_len: int = 100,
    layout: str = "NCHW",
    dtype: str = "float32",
) -> Function:
    """The generator of DCGAN (Radford et al. 2015, arXiv 1511.06434): images from vectors of noise."""
    channels = oshape[layout[1:].index("C")]
    if sorted(oshape) != sorted((channels, 64, 64)):
        raise ShapeError(f"dcgan: images must be of 64 × 64 pixels, found {tuple(oshape)}")
    noise = var("data", shape=(batch_size, random_len), dtype=dtype)
    net = Branch(noise, (random_len, 1, 1), layout, dtype).dense("g1", 4 * 4 * ngf * 8).reshaped((8 * ngf, 4, 4))
    net = net.norm("g1_bn").relu()
    for index, width in enumerate((4 * ngf, 2 * ngf, ngf), 2):
        net = net.deconv(f"g{index}", width).norm(f"g{index}_bn").relu()
    return net.deconv("g5", channels).open_function(ELEMENTWISE["tanh"])


def dqn(
    batch_size: int = 1,
    num_actions: int = 18,
    image_shape: Sequence[int] = (4, 84, 84),
    dtype: str = "float32",
    layout: str = "NCHW",
) -> Function:
    """The network that plays Atari games (Mnih et al. 2015): the value of each action."""
    net = Branch.start(batch_size, image_shape, layout, dtype)
    for index, (channels, kernel, strides) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 1):
        net = net.conv(f"conv{index}", channels, kernel, strides, 0, bias=True).relu()
    return net.flat().dense("dense1", 512).relu().dense("dense2", num_actions).open_function()


def lstm(iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32") -> Function:
    """An LSTM cell, `iterations` times with weights of their own (Hochreiter and Schmidhuber 1997); the result is the
    last hidden state. Every step has its own input, `data`."""
    hidden: Expr = Constant(np.zeros((batch_size, num_hidden), dtype))
    cell = hidden
    add, multiply = ELEMENTWISE["add"], ELEMENTWISE["multiply"]
    tanh, sigmoid = ELEMENTWISE["tanh"], ELEMENTWISE["sigmoid"]
    data = [var("data", shape=(batch_size, num_hidden), dtype=dtype) for _ in range(iterations)]

    def gates(value: Expr, name: str) -> Expr:
        weight = Weight(f"{name}_weight", (4 * num_hidden, num_hidden), dtype, num_hidden)
        bias = var(f"{name}_bias", shape=(4 * num_hidden,), dtype=dtype)
        return bias_add(dense(value, weight, units=4 * num_hidden), bias, axis=-1)

    for step, value in enumerate(data):
        both = add(gates(value, f"i2h_{step}"), gates(hidden, f"h2h_{step}"))
        kept, forgotten, new, shown = split(both, 4, axis=1)
        cell = add(multiply(sigmoid(forgotten), cell), multiply(sigmoid(kept), tanh(new)))
        hidden = multiply(sigmoid(shown), tanh(cell))
    return Function(free_vars(Tuple([*data, hidden])), hidden)
