"""qnn.winograd_data and qnn.winograd_results: what stands before and after the products of a Winograd convolution."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics.winograd import FORMS, NUMPY, WINDOW, form_for_data, form_for_products
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Kind, Traits


def result_size(size: tuple[int, int], padding: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the convolution's result. padding: top, left, bottom, right"""
    height, width = size
    top, left, bottom, right = padding
    return height + top + bottom - WINDOW + 1, width + left + right - WINDOW + 1


def _infer_data(data: TensorInfo, *, padding: tuple[int, ...], pad_value: int) -> tuple[Shape, str]:
    check_dtype(data, *(dtype for form in FORMS for dtype in form.dtypes[0]))
    check_rank(data, 4)
    n, height, width, channels = data.shape
    if len(padding) != 4 or min(padding) < 0:
        raise ShapeError(f"padding must be four numbers that are not negative, found {tuple(padding)}")
    rows, columns = result_size((height, width), padding)
    if min(rows, columns) < 1:
        raise ShapeError(f"data {data.shape} with padding {tuple(padding)} are smaller than a window of 3 × 3")
    form = form_for_data(data.dtype)
    return (n, form.tiles(rows), form.tiles(columns), form.tile_products * channels), form.dtypes[1]


def _data(data: np.ndarray, *, padding: tuple[int, ...], pad_value: int) -> np.ndarray:
    form = form_for_data(str(data.dtype))
    n, height, width, channels = data.shape
    top, left, *_ = padding
    rows, columns = (form.tiles(size) for size in result_size((height, width), padding))
    shape = (n, form.size + form.results * rows, form.size + form.results * columns, channels)
    padded = np.full(shape, pad_value, form.dtypes[1])
    padded[:, top : top + height, left : left + width] = data

    def taps(k: int, j: int) -> np.ndarray:
        """Element (k, j) of all tiles."""
        return np.asarray(padded[:, k :: form.results, j :: form.results][:, :rows, :columns])

    size = range(form.size)
    with np.errstate(all="ignore"):
        halves = [form.data([taps(k, j) for k in size], NUMPY) for j in size]
        values = [form.data([halves[j][i] for j in size], NUMPY) for i in size]
    return np.concatenate([value for row in values for value in row], axis=-1)


WINOGRAD_DATA = define("winograd_data", "data", _infer_data, _data, Traits(Kind.OTHER), "tiles of data, transformed")


def winograd_data(data: relax.Expr, padding: tuple[int, int, int, int], pad_value: int = 0) -> relax.Call:
    """V[n, y, x, p · C + c] = (Bᵀ d B)[p], d the tile of channel c whose first element is (r · y − top, r · x − left).

    data:      NHWC. float32: tiles of 6 × 6, r = 4, and float32 results; int8 or uint8: tiles of 4 × 4, r = 2, and
               int16 results, which are exact
    padding:   of the convolution: top, left, bottom, right
    pad_value: what elements outside of the data are

    A convolution of 3 × 3 at every position is `winograd_results` of the product of these tiles by the form's
    `transformed_weight` of its weights: a convolution of 1 × 1 in a group for each element of a tile, see
    numerics/winograd.py. Raises ShapeError.
    """
    return WINOGRAD_DATA.call(data, padding=tuple(padding), pad_value=int(pad_value))


def _infer_results(data: TensorInfo, *, size: tuple[int, ...]) -> tuple[Shape, str]:
    check_dtype(data, *(form.dtypes[2] for form in FORMS))
    check_rank(data, 4)
    form = form_for_products(data.dtype)
    n, rows, columns, channels = data.shape
    if len(size) != 2 or tuple(map(form.tiles, size)) != (rows, columns):
        side = form.results
        raise ShapeError(f"{rows} × {columns} tiles of {side} × {side} do not make results of size {tuple(size)}")
    if channels % form.tile_products:
        raise ShapeError(f"{channels} values of a tile are not {form.tile_products} for each channel")
    return (n, *size, channels // form.tile_products), data.dtype


def _results(data: np.ndarray, *, size: tuple[int, ...]) -> np.ndarray:
    form = form_for_products(str(data.dtype))
    n, rows, columns, channels = data.shape
    m = data.reshape(n, rows, columns, form.size, form.size, channels // form.tile_products)
    with np.errstate(all="ignore"):
        halves = [form.products([m[..., k, j, :] for k in range(form.size)], NUMPY) for j in range(form.size)]
        values = [form.products([half[i] for half in halves], NUMPY) for i in range(form.results)]
    tiled = np.stack([np.stack(row, axis=3) for row in values], axis=2)  # n, rows, results, columns, results, channels
    whole = tiled.reshape(n, rows * form.results, columns * form.results, -1)
    kept = whole[:, : size[0], : size[1]]
    return np.ascontiguousarray(kept >> form.shift if form.shift else kept)


WINOGRAD_RESULTS = define(
    "winograd_results", "data", _infer_results, _results, Traits(Kind.OTHER), "results from the products of tiles"
)


def winograd_results(data: relax.Expr, size: tuple[int, int]) -> relax.Call:
    """Y[n, r · y + i, r · x + j, k] = (Aᵀ M A)[i, j], M the products data[n, y, x, p · K + k] of a tile.

    data: (N, tiles of rows, tiles of columns, products · K). float32: 36 products of a tile, r = 4; int32: 16 products,
          r = 2, and a quarter of that: Y >> 2
    size: height and width of the result, (N, height, width, K); the last tiles may reach beyond it

    Raises ShapeError. See `winograd_data`.
    """
    return WINOGRAD_RESULTS.call(data, size=tuple(size))


export_to_script(winograd_data=winograd_data, winograd_results=winograd_results)
