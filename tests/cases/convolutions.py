"""Convolutions of awkward shapes."""

from __future__ import annotations

from qnn_ext.topi_int8 import Conv2dWorkload


def conv(shape, channels, kernel, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, **dtypes):
    """A workload on an input of shape (n, h, w, c)."""
    dtypes = {"data_dtype": "uint8", "weight_dtype": "int8"} | dtypes
    return Conv2dWorkload(*shape, channels, kernel, strides, padding, dilation, groups, **dtypes)


# fmt: off
SHAPES = [
    conv((1, 8, 8, 16), 16, (1, 1)),
    conv((3, 7, 5, 64), 64, (1, 1)),                                      # a batch is one row of pixels
    conv((1, 19, 19, 16), 17, (1, 1)),                                    # 361 pixels: no handy divisor
    conv((1, 13, 1, 5), 10, (1, 1)),
    conv((1, 1, 1, 64), 100, (1, 1)),                                     # one pixel
    conv((3, 9, 9, 17), 100, (1, 1), strides=(2, 2)),
    conv((1, 14, 14, 64), 64, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 7, 7, 64), 100, (3, 3), padding=(1, 1, 1, 1)),
    conv((3, 19, 23, 16), 17, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 17, 13, 1), 16, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
    conv((1, 31, 29, 3), 64, (5, 5), strides=(2, 2), padding=(1, 2, 2, 1)),   # a first layer
    conv((1, 35, 70, 3), 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3)),   # its window rows are contiguous in memory
    conv((2, 11, 131, 3), 24, (3, 3), strides=(2, 1), padding=(0, 2, 1, 1)),
    conv((1, 27, 40, 2), 64, (5, 3), padding=(4, 0, 4, 2), dilation=(2, 1)),
    conv((1, 31, 31, 3), 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),   # 16 columns, divided by no tile
    conv((1, 37, 75, 3), 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),   # 19 rows, 38 columns
    conv((3, 9, 11, 4), 10, (3, 3), strides=(1, 3), padding=(2, 0, 1, 3)),
    conv((1, 12, 12, 5), 16, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv((1, 12, 12, 64), 17, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv((1, 5, 23, 17), 64, (1, 7), padding=(0, 3, 0, 3)),
    conv((1, 23, 5, 16), 1, (7, 1), padding=(3, 0, 3, 0)),
    conv((1, 5, 5, 64), 1, (5, 5)),                                       # the window is the image
    conv((1, 4, 4, 3), 1, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 9, 13, 57), 5, (1, 2), strides=(1, 2), padding=(1, 1, 2, 1)),    # nothing is read past a line
    conv((1, 9, 10, 16), 32, (3, 3), padding=(1, 1, 1, 1), groups=2),     # groups that fill lanes
    conv((1, 9, 10, 16), 64, (3, 3), strides=(2, 2), groups=4),
    conv((3, 6, 7, 12), 20, (3, 3), padding=(0, 1, 2, 3), groups=4),      # groups that do not
    conv((1, 8, 8, 10), 100, (1, 1), groups=2),
    conv((1, 8, 8, 64), 64, (3, 3), padding=(1, 1, 1, 1), groups=16),
    conv((2, 6, 5, 24), 336, (1, 1), groups=3),                           # seven blocks per group
    conv((1, 9, 10, 120), 120, (3, 3), padding=(1, 1, 1, 1), groups=2),   # a group's last block is not full
    conv((2, 7, 9, 180), 84, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1), groups=3),
    conv((2, 6, 7, 88), 88, (1, 1), groups=2),                            # the same, images as rows of pixels
    conv((3, 1, 11, 56), 88, (1, 1), groups=2),
    conv((1, 12, 9, 45), 63, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=3),  # odd channels, in and out
    conv((2, 8, 7, 35), 185, (3, 3), padding=(1, 1, 1, 1), groups=5),
    conv((1, 6, 7, 128), 416, (1, 1), groups=2),                          # 13 blocks per group
    conv((1, 7, 6, 21), 7, (3, 3), padding=(1, 1, 1, 1), groups=7),       # one output channel per group
    conv((1, 9, 9, 90), 90, (1, 3), strides=(1, 2), groups=3),            # groups read past the last channel
]
# fmt: on


def describe(workload: Conv2dWorkload) -> str:
    n, h, w, c = workload.batch, workload.height, workload.width, workload.in_channels
    text = f"{n}x{h}x{w}x{c}-{workload.out_channels}-k{workload.kernel[0]}x{workload.kernel[1]}"
    return text + f"-s{workload.strides}-p{workload.padding}-d{workload.dilation}-g{workload.groups}".replace(" ", "")
