"""How far behind what they read microcontrollers' kernels must write, against every access in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qnn_ext.topi_int8.cortex_m import depthwise, depthwise_mla, mla, smlad, vmladav
from qnn_ext.topi_int8.cortex_m.tiles import Tiles, order_of
from qnn_ext.topi_int8.workload import Conv2dWorkload, DenseWorkload

DATA, OPERAND, RESULT = "data", "operand", "result"
Access = tuple[str, int]
"""A tensor that is read, or the result, which is written, and which element."""

PLANS = {"smlad": smlad.plan, "vmladav": vmladav.plan, "mla": mla.plan_mla, "muls": mla.plan_muls}
ROWS = {
    "smlad": depthwise.DspRows,
    "vmladav": depthwise.HeliumRows,
    "mla": depthwise_mla.MlaRows,
    "muls": depthwise_mla.MulsRows,
}


def convolution(size, channels, out_channels, kernel=(1, 1), strides=(1, 1), padding=(0, 0, 0, 0), groups=1):
    dtypes = "int8", "int8"
    return Conv2dWorkload(1, *size, channels, out_channels, kernel, strides, padding, (1, 1), groups, *dtypes)


PRODUCTS = [
    DenseWorkload(1, 16, 12, "int8", "int8"),
    DenseWorkload(7, 8, 10, "int8", "int8"),
    convolution((5, 7), 40, 40),
    convolution((3, 3), 4, 18),
    convolution((4, 5), 18, 3),
    convolution((5, 5), 6, 6, (3, 3), padding=(1, 1, 1, 1)),
    convolution((6, 7), 4, 9, (3, 2), (2, 1), (1, 0, 0, 1)),
    convolution((3, 2), 4, 5, (3, 2)),  # a single window
]
DEPTHWISE = [
    convolution((5, 7), 18, 18, (3, 3), padding=(1, 1, 1, 1), groups=18),
    convolution((7, 6), 5, 5, (3, 3), (2, 2), (0, 0, 1, 1), groups=5),
    convolution((4, 3), 4, 4, (1, 1), groups=4),
    convolution((6, 5), 7, 7, (2, 3), (3, 1), groups=7),
]


def product_accesses(tiles: Tiles) -> Iterator[Access]:
    """Those of a convolution or a dense layer, tile by tile."""
    window = tiles.window
    for tile in range(tiles.tiles):
        first = min(tile * tiles.pixels, window.pixels - tiles.pixels)
        pixels = range(first, first + tiles.pixels)
        reads = [(DATA, place) for pixel in pixels for place in _under(window, pixel)]
        yield from reads
        for block in range(tiles.blocks):
            if tiles.direct:
                yield from reads
            start = min(block * tiles.lanes, max(0, tiles.channels - tiles.lanes))
            for pixel in pixels:
                lanes = range(start, min(start + tiles.lanes, tiles.channels))
                yield from _epilogue(pixel * tiles.channels + lane for lane in lanes)


def _under(window, pixel: int) -> Iterator[int]:
    """The elements under a window."""
    y, x = divmod(pixel, window.across)
    for down in range(window.kernel[0]):
        for across in range(window.kernel[1]):
            row = y * window.strides[0] - window.padding[0] + down * window.dilation[0]
            column = x * window.strides[1] - window.padding[1] + across * window.dilation[1]
            if 0 <= row < window.height and 0 <= column < window.width:
                place = (row * window.width + column) * window.channels
                yield from range(place, place + window.channels)


def depthwise_accesses(workload: Conv2dWorkload, rows: type[depthwise.Rows]) -> Iterator[Access]:
    """Those of a depthwise convolution: lines of input, then the tiles of a row."""
    pixels, line, copied = rows.pixels(workload), workload.width * workload.in_channels, 0
    for y in range(workload.out_height):
        last = min(workload.height, y * workload.strides[0] - workload.padding[0] + workload.kernel[0])
        begin = max(copied, y * workload.strides[0] - workload.padding[0], 0)
        yield from ((DATA, place) for place in range(begin * line, last * line))
        copied = max(copied, last)
        for tile in range(0, workload.out_width, pixels):
            first = min(tile, workload.out_width - pixels)
            for channel in range(0, workload.out_channels, rows.lanes):
                start = min(channel, workload.out_channels - rows.lanes)
                for x in range(first, first + pixels):
                    place = (y * workload.out_width + x) * workload.out_channels + start
                    yield from _epilogue(range(place, place + rows.lanes))


def _epilogue(places) -> Iterator[Access]:
    for place in places:
        yield from ((OPERAND, place), (RESULT, place))


def least_distances(accesses: list[Access]) -> dict[str, int]:
    """For each tensor that is read, the least distance from which on it may be to be read before it is overwritten."""
    written: list[int] = []
    least = {DATA: 0, OPERAND: 0}
    for tensor, place in accesses:
        if tensor == RESULT:
            written.append(place)
        elif written:
            least[tensor] = max(least[tensor], max(written) + 1 - place)
    return least


def check(accesses: list[Access], order) -> None:
    least = least_distances(accesses)
    assert order.behind_data(1, 1) >= least[DATA]
    assert order.behind_operands(1) >= least[OPERAND]


@pytest.mark.parametrize("core", PLANS)
@pytest.mark.parametrize("workload", PRODUCTS, ids=str)
def test_products(workload, core):
    tiles = PLANS[core](workload)
    check(list(product_accesses(tiles)), order_of(tiles))


@pytest.mark.parametrize("core", ROWS)
@pytest.mark.parametrize("workload", DEPTHWISE, ids=str)
def test_depthwise(workload, core):
    rows = ROWS[core]
    check(list(depthwise_accesses(workload, rows)), rows.order(workload))


def test_distances_are_not_whole_tensors():
    """The order is worth something: pixel by pixel, a result needs little more room than its operand."""
    order = order_of(smlad.plan(convolution((5, 7), 40, 40)))
    assert order.behind_data(1, 1) <= 40  # the last tile begins a pixel early
    assert order.behind_operands(1) <= 4 * 40
