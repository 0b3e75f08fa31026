"""Rounding of weights to the integers that keep a layer's results, which are rarely the nearest ones.

With Δ the rounding errors of an output's weights and H = Σ pᵀp over the rows p of the data they are multiplied by,
the squared error of the layer's result is Δ·H·Δᵀ. Nearest rounding minimizes Δ·Δᵀ instead.

"gptq":     weight after weight, the error of each is made up for by those not yet rounded. Frantar et al. 2023 (GPTQ:
            Accurate Post-Training Quantization for Generative Pre-trained Transformers), algorithm 1, with columns in
            order of decreasing H_jj
"adaround": up or down for each weight by descent on Δ·H·Δᵀ with a relaxed choice. Nagel et al. 2020 (Up or Down?
            Adaptive Rounding for Post-Training Quantization), eq. 21 to 25. From the better of this and "gptq", single
            weights are then flipped as long as that helps

Each output takes the best of the candidates, nearest rounding included: on the data it was made with, no result gets
worse. "auto" takes "gptq" for layers with rows of up to LONGEST_QUICK_ROW values, where integers found on one half of
the data lower the error on the other half by a tenth or more: not where there are few rows for many inputs. All are
left at the nearest unless the model's outputs on the other half are closer, with activations in float, both with those
integers and with the ones found on both halves: layers whose results are all closer may still add up to outputs that
are farther off.
"""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ..errors import QuantizationError
from ..module import QnnModule
from ..op.base import call_attributes, constant, definition_of
from ..op.observe import OBSERVE, observe
from ..passes.layout.forms import channels_last_order
from ..passes.rewrite import Emit, rewrite
from .annotate import sites
from .choose import affordable, comparable, weight_errors
from .config import QConfig
from .dataset import Batches, batches
from .engines import engine_of
from .patches import MOST_BATCHES, TensorsOf, WeightedProduct, sampled, weighted_products
from .ranges import Range
from .switchable import Observed, observations

DAMPING = 0.01  # of the mean of H's diagonal: what the sample does not tell counts as independent
LONGEST_ROW = 4096  # H has its square
LONGEST_QUICK_ROW = 1024  # which takes a fraction of a second
_MOST_ELEMENTS = 1 << 25  # of the H that are collected in one pass over the data

_COMPARED = 32  # batches of large models, of whose second half outputs are compared
_CLEARLY = 0.9  # of nearest rounding's error on other data
_BLOCK = 64  # columns that GPTQ rounds before it updates those behind them

# of AdaRound
_STEPS = 200
_MOST_PRODUCTS = 1e11  # multiply-accumulates of a layer's descent, which has fewer steps if they would be more
_RATE = 0.1
_WEIGHT = 0.01
_SHARPNESS = (20.0, 2.0)
_ZETA, _GAMMA = 1.1, -0.1
_MOST_SWEEPS = 8


def round_weights(
    annotated: QnnModule,
    table: Mapping[str, Range],
    dataset: Any,
    config: QConfig,
    progress: Callable[[], None] = lambda: None,
) -> QnnModule:
    """`annotated` with the values of quantized weights replaced by those of the integers chosen.

    table:    site → range; that of a weight has its scales, which stay as they are: `realize` then finds these integers
    config:   `weight_rounding` says how: see the module
    dataset:  as `quantize` takes it
    progress: called after each layer

    Weights of transposed convolutions, and of layers whose rows are longer than LONGEST_ROW, are rounded to the
    nearest. Raises QuantizationError for a data set that is empty or does not fit.
    """
    products = weighted_products(annotated, observations(annotated, table, config))
    products = [product for product in products if product.length <= LONGEST_ROW]
    found = {}
    for product, (even, odd) in _moments(annotated, products, batches(dataset, annotated.inputs)):
        assert even is not None, "an empty data set is refused"
        moment = even if odd is None else even + odd
        found[product.site.site.name] = _rounded(product, moment, config.weight_rounding)
        progress()
    return _with_weights(annotated, found)


def learned_steps(annotated: QnnModule, table: Mapping[str, Range], dataset: Any, config: QConfig) -> dict[str, str]:
    """For each weight that "auto" rounds: by how many steps its integers differ from the nearest ones, as `with_steps`
    takes it. Inside `shared_engines` it takes the program that compares ranges; products that read moved tensors, which
    that does not compute, are left out. Arguments and errors as of `round_weights`."""
    products = [
        product
        for product in weighted_products(annotated, observations(annotated, table, config))
        if product.length <= LONGEST_QUICK_ROW and product.source is not None and not product.moved
    ]
    if not products:
        return {}
    data = batches(dataset, annotated.inputs)
    compared = [site.name for site in sites(annotated) if site.role != "weight"]
    tensors_of = _compared_tensors(annotated, products, compared)
    steps, of_half = {}, {}
    for product, (even, odd) in _moments(annotated, products, data, tensors_of):
        if even is None or odd is None:  # a single batch
            continue
        real = _in_steps(product)
        nearest = np.clip(np.rint(real), *product.site.limits)
        found = round_matrices(real, even, *product.site.limits)
        errors = (result_errors(real, one, with_damping(odd)).sum() for one in (found, nearest))
        if next(errors) < _CLEARLY * next(errors):
            name, both = product.site.site.name, round_matrices(real, even + odd, *product.site.limits)
            of_half[name], steps[name] = (
                encoded(product.weight.with_matrices(one - nearest).array) for one in (found, both)
            )
    if not steps:
        return {}
    other = list(itertools.islice(data, 1, affordable(annotated, _COMPARED, MOST_BATCHES), 2))
    modules = annotated, *(with_steps(annotated, table, config, found) for found in (of_half, steps))
    nearest, half, both = (errors.sum() for errors in weight_errors(modules, table, compared, other, config))
    return steps if half < nearest and both < nearest else {}


def with_steps(
    annotated: QnnModule, table: Mapping[str, Range], config: QConfig, steps: Mapping[str, str]
) -> QnnModule:
    """`annotated` with these weights moved to integers that many steps from the nearest ones. Raises QuantizationError
    if they do not fit."""
    if not steps:
        return annotated
    observed = {one.site.name: one for one in observations(annotated, table, config) if one.site.value is not None}
    values = {}
    for name, text in steps.items():
        one = observed.get(name)
        moved = None if one is None else decoded(text, one.site.shape)
        if one is None or moved is None:
            raise QuantizationError(
                f"the roundings of the calibration table do not fit: weight {name!r} is missing or has another size; "
                "calibrate again"
            )
        values[name] = one.qparams.dequantize(np.clip(_integers(one, one.site.value) + moved, *one.limits))
    return _with_weights(annotated, values)


def _integers(observed: Observed, array: Any) -> np.ndarray:
    return np.clip(observed.qparams.quantize(np.asarray(array)), *observed.limits).astype(np.int64)


def encoded(steps: np.ndarray) -> str:
    """Small integers as text."""
    return base64.b64encode(zlib.compress(np.clip(steps, -128, 127).astype(np.int8).tobytes())).decode()


def decoded(text: str, shape: Sequence[int]) -> np.ndarray | None:
    """What `encoded` made text; None if it is damaged, or of another size."""
    size = math.prod(shape)
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error):
        return None
    return np.frombuffer(content, np.int8).reshape(shape).astype(np.int64) if len(content) == size else None


def _compared_tensors(annotated: QnnModule, products: Sequence[WeightedProduct], compared: Sequence[str]) -> TensorsOf:
    """What these products read, computed by the program that compares ranges. compared: the sites of its tensors"""
    instrumented = comparable(annotated, {}, compared)
    engine = engine_of(instrumented.module)
    read: dict[str, list[str]] = {}
    for product in products:
        read.setdefault(str(product.source), []).append(product.data)

    def tensors_of(batch: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        tensors: dict[str, np.ndarray] = {}
        arrays = engine.run(list(batch)).values()
        for of, channels_last, array in zip(instrumented.sites, instrumented.channels_last, arrays, strict=True):
            if channels_last:
                array = array.transpose(np.argsort(channels_last_order(array.ndim)))
            tensors.update((name, array) for site in of for name in read.get(site, ()))
        return tensors

    return tensors_of


def _moments(
    annotated: QnnModule, products: Sequence[WeightedProduct], data: Batches, tensors_of: TensorsOf | None = None
) -> Iterator[tuple[WeightedProduct, list[np.ndarray | None]]]:
    """Of each product H, of the batches at even and at odd positions: float32 (groups, length, length)."""
    while products:
        size = np.cumsum([product.weight.groups * product.length**2 for product in products])
        count = max(1, int(np.searchsorted(size, _MOST_ELEMENTS, "right")))
        moments = _second_moments(annotated, products[:count], data, tensors_of)
        for product in products[:count]:
            yield product, moments.pop(product.site.site.name)
        products = products[count:]


def _second_moments(
    annotated: QnnModule, products: Sequence[WeightedProduct], data: Batches, tensors_of: TensorsOf | None
) -> dict[str, list[np.ndarray | None]]:
    counts = {product.site.site.name: min(8192, max(2048, 4 * product.length)) for product in products}
    moments: dict[str, list[np.ndarray | None]] = {name: [None, None] for name in counts}
    numbers: Counter[str] = Counter()
    for product, rows in sampled(annotated, products, data, counts, tensors_of=tensors_of):
        name = product.site.site.name
        with np.errstate(over="ignore"):
            added = np.matmul(rows.transpose(0, 2, 1), rows)
        if not np.isfinite(added).all():
            rows = rows.astype(np.float64)  # squares of large values are beyond float32
            added = np.matmul(rows.transpose(0, 2, 1), rows)
        if not np.isfinite(added).all():
            raise QuantizationError(
                f"site {name!r}: its layer's data are NaN, infinite or too large: check the float model's results"
            )
        half = numbers[name] % 2
        known = moments[name][half]
        moments[name][half] = added if known is None else known + added
        numbers[name] += 1
    return moments


def _rounded(product: WeightedProduct, moment: np.ndarray, how: str) -> np.ndarray:
    """The values of the weight's chosen integers, in the shape of the weight."""
    steps = round_matrices(_in_steps(product), moment, *product.site.limits, how)
    return product.weight.with_matrices(steps * _scale(product)).array.astype(np.float32)


def _in_steps(product: WeightedProduct) -> np.ndarray:
    """The weight's matrices in units of their scales."""
    return product.weight.matrices / _scale(product)


def _scale(product: WeightedProduct) -> np.ndarray:
    """(groups, outputs, 1)"""
    scale = np.asarray(product.site.qparams.scale, np.float64).reshape(-1)
    return np.broadcast_to(scale, (product.weight.outputs,)).reshape(product.weight.groups, -1, 1)


def _with_weights(annotated: QnnModule, values: Mapping[str, np.ndarray]) -> QnnModule:
    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if definition_of(value) is not OBSERVE:
            return None
        attributes = call_attributes(value)
        array = values.get(str(attributes["site"]))
        return None if array is None else observe(constant(array), **attributes)

    return replace(annotated, ir=rewrite(annotated.ir, rule))


# ---- matrices ----------------------------------------------------------------------------------------------------


def round_matrices(real: np.ndarray, moment: np.ndarray, low: int, high: int, how: str = "gptq") -> np.ndarray:
    """Integers within low … high, as float64, for weights in units of their scales.

    real:   (groups, outputs, length); moment: H (groups, length, length)
    how:    "nearest", "gptq" or "adaround"

    For every output, Δ·H·Δᵀ + damping·Δ·Δᵀ is at most that of nearest rounding; "adaround"'s at most that of "gptq".
    """
    damped = with_damping(moment)
    nearest = np.clip(np.rint(real), low, high)
    candidates = [nearest]
    if how != "nearest":
        candidates.append(compensated(real, damped, low, high))
    if how == "adaround":
        relaxed = _relaxed(real, damped, low, high)
        candidates += [] if relaxed is None else [relaxed]
    best = best_rows(real, damped, candidates)
    return _flipped(real, best, damped, low, high) if how == "adaround" else best


def result_errors(real: np.ndarray, integers: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Δ·H·Δᵀ of each output, in units of its squared scale: (groups, outputs)."""
    delta = integers - real
    return np.asarray((np.matmul(delta, moment) * delta).sum(axis=-1))


def with_damping(moment: np.ndarray) -> np.ndarray:
    """H + damping, of mean 1 on its diagonal; the identity where all data are zero."""
    moment = np.asarray(moment, np.float64)
    length = moment.shape[-1]
    mean = np.trace(moment, axis1=1, axis2=2)[:, None, None] / length
    moment = np.where(mean > 0, moment / np.where(mean > 0, mean, 1.0), np.eye(length))
    return np.asarray(moment + DAMPING * np.eye(length))


def best_rows(real: np.ndarray, moment: np.ndarray, candidates: Sequence[np.ndarray]) -> np.ndarray:
    """For each output the candidate with the smallest error; of equals, the first."""
    errors = np.stack([result_errors(real, one, moment) for one in candidates])
    choice = errors.argmin(axis=0)
    return np.asarray(np.take_along_axis(np.stack(candidates), choice[None, :, :, None], axis=0)[0])


def compensated(
    real: np.ndarray,
    moment: np.ndarray,
    low: int,
    high: int,
    scale: np.ndarray | float = 1.0,
    zero_point: np.ndarray | float = 0.0,
) -> np.ndarray:
    """GPTQ: the integers of weights that stand for (q − zero_point) · scale, (groups, outputs, length).

    moment: H with damping; scale, zero_point: of each weight, or for all
    """
    order = np.argsort(-np.diagonal(moment, axis1=1, axis2=2), axis=1, kind="stable")
    ordered = np.take_along_axis(np.take_along_axis(moment, order[:, :, None], 1), order[:, None, :], 2)

    def in_order(values: np.ndarray | float) -> np.ndarray:
        return np.take_along_axis(np.broadcast_to(values, real.shape), order[:, None, :], 2)

    left, scale, zero_point = in_order(real).copy(), in_order(scale), in_order(zero_point)
    upper = np.linalg.cholesky(np.linalg.inv(ordered)).transpose(0, 2, 1)
    integers = np.empty_like(left)
    length = left.shape[2]
    for start in range(0, length, _BLOCK):
        end = min(start + _BLOCK, length)
        errors = np.empty((*left.shape[:2], end - start))
        for j in range(start, end):
            unit, zero = scale[..., j], zero_point[..., j]
            integers[..., j] = np.clip(np.rint(left[..., j] / unit + zero), low, high)
            error = (left[..., j] - (integers[..., j] - zero) * unit) / upper[:, j, j, None]
            left[..., j:end] -= error[..., None] * upper[:, None, j, j:end]
            errors[..., j - start] = error
        left[..., end:] -= np.matmul(errors, upper[:, start:end, end:])
    return np.take_along_axis(integers, np.argsort(order, axis=1)[:, None, :], 2)


def _relaxed(real: np.ndarray, moment: np.ndarray, low: int, high: int) -> np.ndarray | None:
    """AdaRound's descent, in float32; None for a layer so large that it would have hardly any steps.

    Weights are ⌊w⌋ + h(v), h(v) = clip(σ(v)·(ζ − γ) + γ, 0, 1), from h(v) = w − ⌊w⌋; the loss is Δ·H·Δᵀ and a penalty
    Σ 1 − |2h − 1|^β that pushes h to 0 or 1 as β falls.
    """
    steps = min(_STEPS, int(_MOST_PRODUCTS / (real.size * real.shape[2])))
    if steps < _STEPS // 10:
        return None
    floor = np.floor(real).astype(np.float32)
    rest = (real - floor).astype(np.float32)
    hessian = moment.astype(np.float32)
    inner = np.clip((rest - _GAMMA) / (_ZETA - _GAMMA), 1e-4, 1 - 1e-4)
    v = np.log(inner / (1 - inner))
    mean, square = np.zeros_like(v), np.zeros_like(v)
    first, last = _SHARPNESS
    for step in range(1, steps + 1):
        sigmoid = 1 / (1 + np.exp(-v))
        h = np.clip(sigmoid * (_ZETA - _GAMMA) + _GAMMA, 0, 1)
        gradient = 2 * np.matmul(h - rest, hessian)
        done = step / steps
        if done > 0.2:  # first the error alone
            beta = last + (first - last) * 0.5 * (1 + np.cos(np.pi * (done - 0.2) / 0.8))
            centred = 2 * h - 1
            gradient -= _WEIGHT * done * 2 * beta * np.sign(centred) * np.abs(centred) ** (beta - 1)
        gradient *= np.where((h > 0) & (h < 1), sigmoid * (1 - sigmoid) * (_ZETA - _GAMMA), 0)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        v -= _RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return np.clip(floor + (v > 0), low, high).astype(np.float64)


def _flipped(real: np.ndarray, integers: np.ndarray, moment: np.ndarray, low: int, high: int) -> np.ndarray:
    """Column by column, weights are moved to their other neighbour where that lowers Δ·H·Δᵀ, until nothing changes."""
    integers = integers.copy()
    below, above = (np.clip(f(real), low, high) for f in (np.floor, np.ceil))
    slope = np.matmul(integers - real, moment)
    for _ in range(_MOST_SWEEPS):
        moved = False
        for j in range(real.shape[2]):
            other = np.where(integers[..., j] == below[..., j], above[..., j], below[..., j])
            step = other - integers[..., j]
            gain = step * (step * moment[:, j, j, None] + 2 * slope[..., j])
            group, output = np.nonzero(gain < -1e-9)
            if group.size:
                integers[group, output, j] = other[group, output]
                slope[group, output] += step[group, output, None] * moment[group, j]
                moved = True
        if not moved:
            break
    return integers
