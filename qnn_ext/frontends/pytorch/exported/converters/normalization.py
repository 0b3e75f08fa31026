"""Stand-alone normalizations: those after convolutions were folded when the model was quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import constant, constant_value, shape_of
from ....building import group_norm
from ..registry import converter
from ..values import dtype_of, reshape


@converter("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def _batch_norm(
    importer: Any, x: relax.Expr, weight: Any, bias: Any, mean: Any, variance: Any, *options: Any
) -> relax.Expr | tuple[relax.Expr]:
    """x · a + b with a = weight / sqrt(variance + eps), b = bias − mean · a, in float32."""
    inference_only = "no_training" in str(importer.node.target)
    training, eps = (False, options[1]) if inference_only else (options[0], options[2])
    if mean is None:
        return _of_batch(importer, x, weight, bias, eps)
    if training or variance is None:
        raise UnsupportedOperatorError("batch normalization is in training mode; export the model in eval mode")
    factor = np.float32(1) / np.sqrt(_known(variance) + np.float32(eps))
    factor = factor if weight is None else factor * _known(weight)
    offset = -_known(mean) * factor
    offset = offset if bias is None else _known(bias) + offset
    shape = (1, -1, *[1] * (len(shape_of(x)) - 2))
    scaled = importer.emit(relax.op.multiply(x, constant(factor.reshape(shape).astype(dtype_of(x)))))
    result = importer.emit(relax.op.add(scaled, constant(offset.reshape(shape).astype(dtype_of(x)))))
    return (result,) if inference_only else result


def _known(parameter: relax.Expr) -> np.ndarray:
    value = constant_value(parameter)
    if value is None:
        raise UnsupportedOperatorError("batch normalization with parameters computed at run time is not supported")
    return value


@converter("aten.layer_norm.default")
def _layer_norm(
    importer: Any, x: relax.Expr, shape: list[int], weight: Any, bias: Any, eps: float, _cudnn: bool
) -> relax.Expr:
    return _normalized(importer, x, shape, weight, bias, eps)


@converter("aten.native_layer_norm.default")
def _native_layer_norm(
    importer: Any, x: relax.Expr, shape: list[int], weight: Any, bias: Any, eps: float
) -> tuple[relax.Expr]:
    return (_normalized(importer, x, shape, weight, bias, eps),)


def _normalized(importer: Any, x: relax.Expr, shape: list[int], weight: Any, bias: Any, eps: float) -> relax.Expr:
    dims, dtype = [int(dim) for dim in shape], dtype_of(x)
    gamma = constant(np.ones(dims, dtype)) if weight is None else weight
    beta = constant(np.zeros(dims, dtype)) if bias is None else bias
    return importer.emit(relax.op.nn.layer_norm(x, gamma, beta, axes=list(range(-len(dims), 0)), epsilon=float(eps)))


@converter("aten.group_norm.default")
def _group_norm(
    importer: Any, x: relax.Expr, groups: int, weight: Any, bias: Any, eps: float, _cudnn: bool
) -> relax.Expr:
    return _grouped(importer, x, int(groups), weight, bias, eps)


@converter("aten.native_group_norm.default")
def _native_group_norm(
    importer: Any, x: relax.Expr, weight: Any, bias: Any, _n: int, _c: int, _size: int, groups: int, eps: float
) -> tuple[relax.Expr]:
    return (_grouped(importer, x, int(groups), weight, bias, eps),)


def _grouped(importer: Any, x: relax.Expr, groups: int, weight: Any, bias: Any, eps: float) -> relax.Expr:
    gamma, beta = _per_channel(importer, x, weight, bias)
    return importer.emit(group_norm(importer.emit, x, gamma, beta, groups, eps))


def _per_channel(importer: Any, x: relax.Expr, weight: Any, bias: Any) -> tuple[relax.Expr, relax.Expr]:
    """γ and β as vectors, 1 and 0 where there are none."""
    channels, dtype = shape_of(x)[1], dtype_of(x)
    gamma = constant(np.ones(channels, dtype)) if weight is None else reshape(importer, weight, (channels,))
    beta = constant(np.zeros(channels, dtype)) if bias is None else reshape(importer, bias, (channels,))
    return gamma, beta


@converter("aten.instance_norm.default")
def _instance_norm(
    importer: Any,
    x: relax.Expr,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    of_input: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> relax.Expr | tuple[relax.Expr]:
    """With the statistics of each channel of each sample, or, where a model in eval mode tracked them, with those."""
    if not of_input:
        return _batch_norm(importer, x, weight, bias, mean, variance, False, momentum, eps, cudnn)
    return _of_channels(importer, x, weight, bias, eps)


@converter("aten._native_batch_norm_legit.no_stats")
def _batch_statistics(
    importer: Any, x: relax.Expr, weight: Any, bias: Any, _training: bool, _momentum: float, eps: float
) -> tuple[relax.Expr]:
    """What the two above are decomposed into, aten.instance_norm with channels of all samples as those of one."""
    return (_of_batch(importer, x, weight, bias, eps),)


def _of_batch(importer: Any, x: relax.Expr, weight: Any, bias: Any, eps: float) -> relax.Expr:
    """With the statistics of each channel in all samples, where a model tracks none: samples as a dimension of one."""
    samples, channels, *spatial = shape_of(x)
    if samples == 1:
        return _of_channels(importer, x, weight, bias, eps)
    order = [1, 0, *range(2, len(spatial) + 2)]
    moved = reshape(importer, importer.emit(relax.op.permute_dims(x, order)), (1, channels, samples, *spatial))
    result = reshape(importer, _of_channels(importer, moved, weight, bias, eps), (channels, samples, *spatial))
    return importer.emit(relax.op.permute_dims(result, order))


def _of_channels(importer: Any, x: relax.Expr, weight: Any, bias: Any, eps: float) -> relax.Expr:
    gamma, beta = _per_channel(importer, x, weight, bias)
    axes = list(range(2, len(shape_of(x))))
    return importer.emit(relax.op.nn.instance_norm(x, gamma, beta, channel_axis=1, axes=axes, epsilon=float(eps)))
