"""Pooling, means, extrema, softmax and normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Value
from .builder import GENERATORS, Pt2eBuilder
from .moves import axis_of
from .products import windows

generates = GENERATORS.generates
MAX_POOLS = (*(f"aten.max_pool{rank}d.default" for rank in (1, 2, 3)),
             *(f"aten.max_pool{rank}d_with_indices.default" for rank in (2, 3)))  # fmt: skip
AVERAGE_POOLS = tuple(f"aten.avg_pool{rank}d.default" for rank in (1, 2, 3))


def image(b: Pt2eBuilder, name: str) -> tuple[Value, Value | None, tuple[int, ...]]:
    """An operand of the rank in the operator's name, rarely without a batch; and what it was dequantized from."""
    rank = int(next(letter for letter in name if letter.isdigit()))
    whole = rank + 2 if b.draw.chance(0.9) else rank + 1
    if b.draw.chance(0.15):
        x = b.take(("float32",), whole)
        return x, None, x.shape[-rank:]
    q = b.quantized(whole)
    return b.dequantize(q), q, q.shape[-rank:]


@generates(*MAX_POOLS)
def max_pool(b: Pt2eBuilder, name: str) -> None:
    x, q, spatial = image(b, name)
    found = windows(b, spatial)
    padding = [min(p, k // 2) for p, k in zip(found["padding"], found["kernel"], strict=True)]
    fits = all(n + 2 * p > (k - 1) * d for n, p, k, d in zip(spatial, padding, found["kernel"], found["dilation"],
                                                              strict=True))  # fmt: skip
    if not fits:
        found, padding = {**found, "kernel": [1] * len(spatial)}, [0] * len(spatial)
    ceil = b.draw.chance(0.3)
    result = b.call(name, x, found["kernel"], found["stride"], padding, found["dilation"], ceil)
    b.finish(b.mark(result) if x.key in b.integral else result, q)


@generates(*AVERAGE_POOLS)
def average_pool(b: Pt2eBuilder, name: str) -> None:
    x, q, spatial = image(b, name)
    found = windows(b, spatial)
    kernel = [min(k, n) for k, n in zip(found["kernel"], spatial, strict=True)]
    padding = [min(p, k // 2) for p, k in zip(found["padding"], kernel, strict=True)]
    options = [kernel, found["stride"], padding, b.draw.chance(0.3), b.draw.chance(0.5)]
    if "1d" not in name and b.draw.chance(0.15):
        options.append(b.draw.between(1, 9))
    b.finish(b.call(name, x, *options, steady=x.key in b.integral), q)


ADAPTIVE = (*(f"aten.adaptive_avg_pool{rank}d.default" for rank in (1, 2, 3)),
            *(f"aten._adaptive_avg_pool{rank}d.default" for rank in (2, 3)))  # fmt: skip


@generates(*ADAPTIVE)
def adaptive_average(b: Pt2eBuilder, name: str) -> None:
    x, q, spatial = image(b, name)
    size = [b.draw.pick([1, 1, max(1, n // 2), b.draw.between(1, 7)]) for n in spatial]
    b.finish(b.call(name, x, size, steady=x.key in b.integral), q)


@generates("aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default")
def adaptive_max(b: Pt2eBuilder, name: str) -> None:
    """To sizes that divide the image: others are refused."""
    x, q, spatial = image(b, name)
    size = [b.draw.pick([m for m in range(1, n + 1) if n % m == 0]) for n in spatial]
    result = b.call(name, x, size)
    b.finish(b.mark(result) if x.key in b.integral else result, q)


def axes_of(b: Pt2eBuilder, x: Value) -> list[int]:
    chosen = [axis for axis in range(len(x.shape)) if b.draw.chance(0.5)]
    return chosen or [axis_of(b, x)]


@generates("aten.mean.dim", "aten.sum.dim_IntList")
def reduce_axes(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    b.finish(b.call(name, x, axes_of(b, x), b.draw.chance(0.5), steady=x.key in b.integral))


@generates("aten.mean.default", "aten.sum.default")
def reduce_all(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    b.finish(b.call(name, x, steady=x.key in b.integral))


@generates("aten.amax.default", "aten.amin.default")
def extreme(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    b.finish(b.moved(name, x, axes_of(b, x), b.draw.chance(0.5)))


@generates("aten.var.correction", "aten.std.correction", "aten.var_mean.correction")
def variance(b: Pt2eBuilder, name: str) -> None:
    x = b.real((2, 3, 4), where=lambda v: min(v.shape) > 1)
    axes = axes_of(b, x)
    more = int(np.prod([x.shape[axis] for axis in axes])) > 1
    options = {"correction": b.draw.pick([0, 1]) if more else 0, "keepdim": b.draw.chance(0.5)}
    for result in b.results_of(name, x, axes, steady=False, **options):
        b.finish(result)


# ---- rows --------------------------------------------------------------------------------------------------------

SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")


@generates(*SOFTMAX)
def softmax(b: Pt2eBuilder, name: str) -> None:
    x = b.real()
    b.finish(b.call(name, x, axis_of(b, x), *([False] if "._" in name else []), steady=False))


def vector(b: Pt2eBuilder, shape: Any, about: float) -> Any:
    """A parameter, or none."""
    return b.const(b.draw.rng.normal(about, 0.5, shape), "float32") if b.draw.chance(0.7) else None


@generates("aten.layer_norm.default", "aten.native_layer_norm.default")
def layer_norm(b: Pt2eBuilder, name: str) -> None:
    x = b.real((2, 3, 4))
    shape = list(x.shape[-b.draw.between(1, len(x.shape) - 1) :])
    args = (shape, vector(b, shape, 1.0), vector(b, shape, 0.0), b.draw.pick([1e-5, 1e-12]))
    key = (
        b.call(name, x, *args, steady=False) if "native" not in name else b.results_of(name, x, *args, steady=False)[0]
    )
    b.finish(key)


@generates("aten.group_norm.default", "aten.native_group_norm.default")
def group_norm(b: Pt2eBuilder, name: str) -> None:
    x = b.real((3, 4))
    batch, channels, *rest = x.shape
    groups = b.draw.pick([g for g in (1, 2, 3, channels) if channels % g == 0])
    parameters = vector(b, channels, 1.0), vector(b, channels, 0.0)
    if "native" in name:
        args = (*parameters, batch, channels, int(np.prod(rest)), groups, 1e-5)
        b.finish(b.results_of(name, b.moved("aten.contiguous.default", x), *args, steady=False)[0])
    else:
        b.finish(b.call(name, x, groups, *parameters, 1e-5, steady=False))


@generates("aten.instance_norm.default", "aten._native_batch_norm_legit.no_stats")
def instance_norm(b: Pt2eBuilder, name: str) -> None:
    """Of more than one value a channel, as PyTorch asks; the second of one sample, as decompositions write it."""
    single = "no_stats" in name
    x = b.real((3, 4), where=lambda v: np.prod(v.shape[2:]) > 1)
    if single:
        x = b.moved("aten.reshape.default", x, [1, x.shape[0] * x.shape[1], *x.shape[2:]])
    parameters = vector(b, x.shape[1], 1.0), vector(b, x.shape[1], 0.0)
    if single:
        b.finish(b.results_of(name, x, *parameters, True, 0.1, 1e-5, steady=False)[0])
    else:
        b.finish(b.call(name, x, *parameters, None, None, True, 0.1, 1e-5, False, steady=False))


@generates("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(b: Pt2eBuilder, name: str) -> None:
    x = b.real((2, 3, 4))
    channels = x.shape[1]
    mean, spread = b.const(b.draw.rng.normal(0, 0.5, channels), "float32"), b.draw.rng.uniform(0.5, 2, channels)
    statistics = (vector(b, channels, 1.0), vector(b, channels, 0.0), mean, b.const(spread, "float32"))
    if name.startswith("aten.batch_norm"):
        b.finish(b.call(name, x, *statistics, False, 0.1, 1e-5, False))
    else:
        b.finish(b.results_of(name, x, *statistics, 0.1, 1e-5)[0])
