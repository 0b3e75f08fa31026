"""qnn.winograd_data and qnn.winograd_results: what stands before and after the products of a Winograd convolution."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics.winograd import (
    NUMPY,
    PRODUCTS,
    RESULTS,
    SIZE,
    WINDOW,
    tiles,
    transformed_data,
    transformed_products,
)
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Kind, Traits


def result_size(size: tuple[int, int], padding: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of the convolution's result. padding: top, left, bottom, right"""
    height, width = size
    top, left, bottom, right = padding
    return height + top + bottom - WINDOW + 1, width + left + right - WINDOW + 1


def _infer_data(data: TensorInfo, *, padding: tuple[int, ...]) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    check_rank(data, 4)
    n, height, width, channels = data.shape
    if len(padding) != 4 or min(padding) < 0:
        raise ShapeError(f"padding must be four numbers that are not negative, found {tuple(padding)}")
    rows, columns = result_size((height, width), padding)
    if min(rows, columns) < 1:
        raise ShapeError(f"data {data.shape} with padding {tuple(padding)} are smaller than a window of 3 × 3")
    return (n, tiles(rows), tiles(columns), PRODUCTS * channels), data.dtype


def _data(data: np.ndarray, *, padding: tuple[int, ...]) -> np.ndarray:
    n, height, width, channels = data.shape
    top, left, *_ = padding
    rows, columns = (tiles(size) for size in result_size((height, width), padding))
    padded = np.zeros((n, SIZE + RESULTS * rows, SIZE + RESULTS * columns, channels), np.float32)
    padded[:, top : top + height, left : left + width] = data

    def taps(k: int, j: int) -> np.ndarray:
        """Element (k, j) of all tiles."""
        return np.asarray(padded[:, k::RESULTS, j::RESULTS][:, :rows, :columns])

    with np.errstate(all="ignore"):
        halves = [transformed_data([taps(k, j) for k in range(SIZE)], NUMPY) for j in range(SIZE)]
        values = [transformed_data([halves[j][i] for j in range(SIZE)], NUMPY) for i in range(SIZE)]
    return np.concatenate([value for row in values for value in row], axis=-1)


WINOGRAD_DATA = define("winograd_data", "data", _infer_data, _data, Traits(Kind.OTHER), "tiles of data, transformed")


def winograd_data(data: relax.Expr, padding: tuple[int, int, int, int]) -> relax.Call:
    """V[n, y, x, p · C + c] = (Bᵀ d B)[p], d the 6 × 6 tile of channel c whose first element is (4y − top, 4x − left).

    data:    float32, NHWC; elements outside of it are 0
    padding: of the convolution: top, left, bottom, right

    A convolution of 3 × 3 at every position is `winograd_results` of the product of these tiles by `transformed_weight`
    of its weights: a convolution of 1 × 1 in 36 groups, see numerics/winograd.py. Raises ShapeError.
    """
    return WINOGRAD_DATA.call(data, padding=tuple(padding))


def _infer_results(data: TensorInfo, *, size: tuple[int, ...]) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    check_rank(data, 4)
    n, rows, columns, channels = data.shape
    if len(size) != 2 or (tiles(size[0]), tiles(size[1])) != (rows, columns):
        raise ShapeError(f"{rows} × {columns} tiles of 4 × 4 do not make results of size {tuple(size)}")
    if channels % PRODUCTS:
        raise ShapeError(f"{channels} values of a tile are not {PRODUCTS} for each channel")
    return (n, *size, channels // PRODUCTS), data.dtype


def _results(data: np.ndarray, *, size: tuple[int, ...]) -> np.ndarray:
    n, rows, columns, channels = data.shape
    m = data.reshape(n, rows, columns, SIZE, SIZE, channels // PRODUCTS)
    with np.errstate(all="ignore"):
        halves = [transformed_products([m[..., k, j, :] for k in range(SIZE)], NUMPY) for j in range(SIZE)]
        values = [transformed_products([halves[j][i] for j in range(SIZE)], NUMPY) for i in range(RESULTS)]
    tiled = np.stack([np.stack(row, axis=3) for row in values], axis=2)  # n, rows, 4, columns, 4, channels
    whole = tiled.reshape(n, rows * RESULTS, columns * RESULTS, -1)
    return np.ascontiguousarray(whole[:, : size[0], : size[1]])


WINOGRAD_RESULTS = define(
    "winograd_results", "data", _infer_results, _results, Traits(Kind.OTHER), "results from the products of tiles"
)


def winograd_results(data: relax.Expr, size: tuple[int, int]) -> relax.Call:
    """Y[n, 4y + i, 4x + j, k] = (Aᵀ M A)[i, j], M the 6 × 6 products data[n, y, x, p · K + k] of a tile.

    data: float32, (N, tiles of rows, tiles of columns, 36 · K)
    size: height and width of the result, (N, height, width, K); the last tiles may reach beyond it

    Raises ShapeError. See `winograd_data`.
    """
    return WINOGRAD_RESULTS.call(data, size=tuple(size))


export_to_script(winograd_data=winograd_data, winograd_results=winograd_results)
