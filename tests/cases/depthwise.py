"""Depthwise convolutions of awkward shapes."""

from __future__ import annotations

from qnn_ext.topi_int8 import Conv2dWorkload

PAD = (1, 1, 1, 1)
NINE_BITS = {"weight_dtype": "int16", "nine_bit_weights": True}


def depthwise(shape, kernel=(3, 3), multiplier=1, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), **dtypes):
    """A workload on an input of shape (n, h, w, c)."""
    dtypes = {"data_dtype": "uint8", "weight_dtype": "int8"} | dtypes
    channels = shape[-1]
    return Conv2dWorkload(*shape, channels * multiplier, kernel, strides, padding, dilation, channels, **dtypes)


# fmt: off
SHAPES = [
    depthwise((1, 14, 14, 144), padding=PAD),
    depthwise((1, 28, 28, 32), padding=(0, 0, 1, 1), strides=(2, 2)),      # TensorFlow's SAME for even sizes
    depthwise((2, 7, 7, 96), (5, 5), padding=(2, 2, 2, 2)),
    depthwise((1, 12, 10, 16)),                                            # no copy: needs no padding or filling
    depthwise((1, 12, 10, 24)),
    depthwise((1, 9, 15, 17), padding=(2, 0, 1, 3)),
    depthwise((1, 13, 17, 33), padding=PAD),                               # prime sizes
    depthwise((2, 11, 5, 3), (1, 3), padding=(0, 1, 0, 1), strides=(1, 2)),
    depthwise((1, 16, 16, 8), padding=(2, 2, 2, 2), dilation=(2, 2)),
    depthwise((1, 17, 19, 20), (2, 3), padding=(1, 0, 2, 3), dilation=(3, 2), strides=(2, 3)),
    depthwise((1, 7, 7, 64), (7, 7)),                                      # the window is the image
    depthwise((1, 20, 20, 18), (9, 9), padding=(4, 4, 4, 4)),              # too many taps to unroll
    depthwise((1, 3, 3, 40), (1, 1)),
    depthwise((1, 1, 1, 130), padding=PAD),
    depthwise((1, 5, 1, 7), (3, 1), padding=(1, 0, 1, 0)),
    depthwise((1, 8, 8, 12), padding=PAD, multiplier=2),
    depthwise((2, 9, 7, 5), padding=PAD, multiplier=3, strides=(2, 1)),
    depthwise((1, 6, 6, 2), multiplier=8),
    depthwise((1, 66, 66, 32), padding=PAD),                               # large enough to run in parallel
]
# fmt: on


def describe(workload: Conv2dWorkload) -> str:
    n, h, w, c = workload.batch, workload.height, workload.width, workload.in_channels
    text = f"{n}x{h}x{w}x{c}x{workload.multiplier}-k{workload.kernel[0]}x{workload.kernel[1]}"
    return text + f"-s{workload.strides}-p{workload.padding}-d{workload.dilation}".replace(" ", "")
