"""Convolutions and their transposes over one to three dimensions, with or without a batch."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import shape_of
from ..registry import converter
from ..values import pair, reshape

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}


@converter("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def _convolution(
    importer: Any, x: relax.Expr, weight: relax.Expr, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> relax.Expr:
    rank = len(shape_of(weight)) - 2
    sides = pair(padding, rank)
    return _convolve(importer, x, weight, bias, stride, [*sides, *sides], dilation, groups)


@converter("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _convolution_with_named_padding(
    importer: Any, x: relax.Expr, weight: relax.Expr, bias: Any, stride: Any, padding: str, dilation: Any, groups: int
) -> relax.Expr:
    """ "same" puts an odd element of padding at the end, "valid" pads nothing."""
    kernel = shape_of(weight)[2:]
    totals = [d * (k - 1) for d, k in zip(pair(dilation, len(kernel)), kernel, strict=True)]
    totals = totals if padding == "same" else [0] * len(kernel)
    before = [total // 2 for total in totals]
    after = [total - first for total, first in zip(totals, before, strict=True)]
    return _convolve(importer, x, weight, bias, stride, [*before, *after], dilation, groups)


def _convolve(
    importer: Any,
    x: relax.Expr,
    weight: relax.Expr,
    bias: Any,
    stride: Any,
    padding: list[int],
    dilation: Any,
    groups: int,
) -> relax.Expr:
    rank = len(shape_of(weight)) - 2
    batched = _with_batch(importer, x, rank)
    result = importer.emit(
        _CONVOLUTIONS[rank](
            batched,
            weight,
            strides=pair(stride, rank),
            padding=padding,
            dilation=pair(dilation, rank),
            groups=int(groups),
        )
    )
    return _finished(importer, x, result, bias, rank)


@converter("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _transposed(
    importer: Any,
    x: relax.Expr,
    weight: relax.Expr,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> relax.Expr:
    rank = len(shape_of(weight)) - 2
    sides = pair(padding, rank)
    result = importer.emit(
        _TRANSPOSED[rank](
            _with_batch(importer, x, rank),
            weight,
            strides=pair(stride, rank),
            padding=[*sides, *sides],
            output_padding=pair(output_padding, rank),
            dilation=pair(dilation, rank),
            groups=int(groups),
        )
    )
    return _finished(importer, x, result, bias, rank)


@converter("aten.convolution.default")
def _any_convolution(
    importer: Any,
    x: relax.Expr,
    weight: relax.Expr,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> relax.Expr:
    """The form that decompositions turn all the others into."""
    if transposed:
        return _transposed(importer, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(importer, x, weight, bias, stride, padding, dilation, groups)


def _with_batch(importer: Any, x: relax.Expr, rank: int) -> relax.Expr:
    if len(shape_of(x)) not in (rank + 1, rank + 2):
        raise UnsupportedOperatorError(
            f"a convolution over {rank} dimensions does not take an input of shape {shape_of(x)}"
        )
    return x if len(shape_of(x)) == rank + 2 else reshape(importer, x, (1, *shape_of(x)))


def _finished(importer: Any, x: relax.Expr, result: relax.Expr, bias: Any, rank: int) -> relax.Expr:
    if bias is not None:
        result = importer.emit(relax.op.add(result, reshape(importer, bias, (1, shape_of(bias)[0], *[1] * rank))))
    return result if len(shape_of(x)) == rank + 2 else reshape(importer, result, shape_of(result)[1:])
