"""What rounding explains: for every output of a program, bounds on what float32 arithmetic may give.

PyTorch computes these programs in float32, where the order of a sum and the approximation of exp depend on the kernel;
ours computes with integers and tables. Each operator's result is enclosed in bounds derived from its operands:
operators that give the same bits in both (quantize, dequantize, moves, single additions, products, extrema, averages
over windows) are evaluated at the ends of their operands' bounds, sums get their rounding error, functions that of
their approximation. Bounds that a quantize maps to the same integer determine it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..builder import Registry
from ..recipe import Case
from .builder import Call, Program, Ref
from .interval import LARGEST, SMALLEST, UNIT, Interval, added, anything, bilinear, grain, hull

Bounds = tuple[np.ndarray, np.ndarray]
RULES = Registry()  # operator -> (call, its arguments) -> Interval, or a list of them; else `at_both_ends`
rule = RULES.generates
aten = torch.ops.aten


def enclose(case: Case) -> list[list[Bounds]]:
    """For every trial and output, the least and the greatest value that rounding explains; NaN: any value."""
    return [outputs_of(case.content, values) for values in case.trials]


def outputs_of(program: Program, inputs: list[np.ndarray]) -> list[Bounds]:
    values: dict[str, Any] = {name: Interval.point(tensor) for name, tensor in program.named_buffers()}
    values |= {key: Interval.point(array) for key, array in zip(program.inputs, inputs, strict=True)}
    with torch.no_grad():
        for call in program.calls:
            values[call.key] = evaluated(call, values)
    return [(values[key].low.numpy(), values[key].high.numpy()) for key in program.outputs]


def evaluated(call: Call, values: dict[str, Any]) -> Any:
    args, kwargs = pytree.tree_map_only(Ref, lambda ref: values[ref.key], (call.args, call.kwargs))
    if call.name == "getitem":
        return args[0][args[1]]
    found = RULES.get(call.name)
    return at_both_ends(call, *args, **kwargs) if found is None else found((call, args, kwargs))


def at_both_ends(call: Call, *args: Any, **kwargs: Any) -> Any:
    """For a monotonic operator: its results at both ends of its operands."""
    is_interval = lambda leaf: isinstance(leaf, Interval)  # noqa: E731
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=is_interval)
    known = all(leaf.is_point for leaf in leaves if isinstance(leaf, Interval))
    ends = []
    for end in ("low", "high")[: 1 if known else 2]:
        pick = lambda leaf, end=end: getattr(leaf, end) if isinstance(leaf, Interval) else leaf  # noqa: E731
        low_args, low_kwargs = pytree.tree_map(pick, (args, kwargs), is_leaf=is_interval)
        ends.append(call.target(*low_args, **low_kwargs))
    rescaled = any(leaf.rescaled for leaf in leaves if isinstance(leaf, Interval))
    if isinstance(ends[0], (tuple, list)):
        return [Interval(low, high, rescaled) for low, high in zip(ends[0], ends[-1], strict=True)]
    return Interval(ends[0], ends[-1], rescaled)


Node = tuple[Call, tuple[Any, ...], dict[str, Any]]


def argument(node: Node, name: str) -> Any:
    """An argument by its name in the operator's schema."""
    call, args, kwargs = node
    for position, described in enumerate(call.target._schema.arguments):  # type: ignore[attr-defined]
        if described.name == name:
            return args[position] if position < len(args) else kwargs.get(name, described.default_value)
    raise KeyError(name)


# ---- quantization ------------------------------------------------------------------------------------------------

DECOMPOSED = "quantized_decomposed"
QUANTIZE = ("per_tensor.default", "per_tensor.tensor", "per_tensor.tensor2", "per_channel.default", "per_token.default")


@rule(*(f"{DECOMPOSED}.quantize_{kind}" for kind in QUANTIZE))
def quantize(node: Any, name: str) -> Interval:
    """At both ends; NaN may become any integer, and so may floats beyond int32, whose conversion C leaves undefined."""
    call, args, kwargs = node
    x, parameters = args[0], [arg for arg in args[1:] if isinstance(arg, Interval)]
    if not all(parameter.is_point for parameter in parameters):
        return anything(torch.empty(x.low.shape, dtype=argument(node, "dtype")))
    if in_double(name, parameters):
        x = x.widened(4 * UNIT)
    found = at_both_ends(call, x, *args[1:], **kwargs)
    unknown, whole = x.low.isnan() | x.high.isnan(), anything(found.low)
    if found.low.dtype == torch.int32:
        scale = argument(node, "scale")
        steps = x.size / float(scale.low.item() if isinstance(scale, Interval) else scale)
        unknown = unknown | (steps >= 2.0**30)
    if "token" in name or "tensor" in name:
        inverse = 1 / operand(args[1]).low.double()
        unknown = unknown | (x.low.double() * inverse).isnan() | (x.high.double() * inverse).isnan()
    if not unknown.any():
        return found
    low, high = torch.where(unknown, whole.low, found.low), torch.where(unknown, whole.high, found.high)
    return Interval(low, high)


def in_double(name: str, parameters: list[Interval]) -> bool:
    """Whether PyTorch multiplies by per-channel float64 scales, which ours rounds to float32 as observers do."""
    return "per_channel" in name and parameters[0].low.dtype == torch.float64


DEQUANTIZE = ("tensor.default", "tensor.tensor", "tensor.tensor2", "token.default", "channel.default",
              "channel_group.default")  # fmt: skip


@rule(*(f"{DECOMPOSED}.dequantize_per_{kind}" for kind in DEQUANTIZE))
def dequantize(node: Any, name: str) -> Interval:
    """At both ends, where the parameters are known."""
    call, args, kwargs = node
    parameters = [arg for arg in args[1:] if isinstance(arg, Interval)]
    if not all(parameter.is_point for parameter in parameters):
        return anything(args[0].low.float())
    found: Interval = at_both_ends(call, *args, **kwargs)
    scale = operand(args[1]).low
    found = Interval(found.low, found.high, bool((torch.frexp(scale)[0] != 0.5).any()))
    return found.widened(4 * UNIT) if in_double(name, parameters) else found


CHOOSERS = (
    "choose_qparams.tensor",
    "choose_qparams_symmetric.tensor",
    "choose_qparams_per_token.default",
    "choose_qparams_per_token_asymmetric.default",
    "_choose_qparams_per_token_asymmetric_impl.default",
)


@rule(*(f"{DECOMPOSED}.{name}" for name in CHOOSERS))
def choose(node: Any, name: str) -> list[Interval]:
    """On known, finite data only: bounds cannot express how scale and zero point depend on each other, and the zero
    point of a row with an infinity is converted from NaN, which C leaves undefined."""
    call, args, kwargs = node
    known = args[0].is_point and bool(args[0].low.isfinite().all())
    sample = args[0] if known else Interval.point(torch.zeros_like(args[0].low))
    found: list[Interval] = at_both_ends(call, sample, *args[1:], **kwargs)
    return found if known else [anything(result.low.double()) for result in found]


# ---- arithmetic --------------------------------------------------------------------------------------------------


def operand(value: Any) -> Interval:
    """A tensor, or a number as a tensor."""
    return value if isinstance(value, Interval) else Interval.point(torch.tensor(float(value)))


def negated(x: Interval) -> Interval:
    return Interval(-x.low, -x.low) if x.is_point else Interval(-x.high, -x.low)


@rule("aten.neg.default")
def negate(node: Any) -> Interval:
    return negated(node[1][0])


@rule(*(f"aten.{name}.{kind}" for name in ("add", "sub", "rsub") for kind in ("Tensor", "Scalar")))
def add(node: Any, name: str) -> Interval:
    """Rounded once; with alpha perhaps twice, or once in a fused multiply-add."""
    one, two = (operand(value) for value in node[1][:2])
    if "rsub" in name:
        one, two = two, one
    alpha = node[2].get("alpha", 1)
    two = two if "add" in name else negated(two)
    if alpha == 1:
        return Interval(one.low + two.low, one.high + two.high)
    if "rsub" in name:  # other − alpha · self
        one, two = node[1][1], negated(node[1][0])
    centre = one.centre + alpha * two.centre
    terms = one.size + abs(alpha) * two.size
    return Interval.about(centre, one.radius + abs(alpha) * two.radius + 3 * UNIT * terms + SMALLEST)


def corners(function: Callable[[Any, Any], torch.Tensor], one: Interval, two: Interval) -> Interval:
    """A product or quotient takes its extrema at the ends of its operands."""
    if one.is_point and two.is_point:
        return Interval.point(function(one.low, two.low))
    return hull([function(a, b) for a in (one.low, one.high) for b in (two.low, two.high)])


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def multiply(node: Any, name: str) -> Interval:
    return corners(torch.mul, *map(operand, node[1]))


DIVISIONS = ("div.Tensor", "div.Scalar", "true_divide.Tensor", "div.Tensor_mode", "div.Scalar_mode",
             "floor_divide.default", "floor_divide.Scalar")  # fmt: skip


@rule(*(f"aten.{name}" for name in DIVISIONS))
def divide(node: Any, name: str) -> Interval:
    call, args, kwargs = node
    one, two = operand(args[0]), operand(args[1])
    if not isinstance(args[1], Interval):
        result = hull([call.target(one.low, args[1], **kwargs), call.target(one.high, args[1], **kwargs)])
        return Interval.point(result.low) if one.is_point else result
    result = corners(lambda a, b: call.target(a, b, **kwargs), one, two)
    crosses = ~((two.low > 0) | (two.high < 0))
    if two.is_point or not crosses.any():
        return result
    return Interval(*(torch.where(crosses, torch.nan, end) for end in (result.low, result.high)))


@rule("aten.abs.default", "aten.square.default")
def even(node: Any, name: str) -> Interval:
    """The minimum is at zero."""
    call, (x,), _ = node
    if x.is_point:
        return Interval.point(call.target(x.low))
    ends = hull([call.target(x.low), call.target(x.high)])
    return Interval(torch.where((x.low < 0) & (x.high > 0), 0.0, ends.low), ends.high)


@rule("aten.prelu.default")
def prelu(node: Any) -> Interval:
    """Where the slope is negative, the minimum is at zero."""
    call, (x, slopes), _ = node
    if x.is_point:
        return Interval.point(call.target(x.low, slopes.low))
    ends = hull([call.target(x.low, slopes.low), call.target(x.high, slopes.low)])
    return Interval(torch.where((x.low < 0) & (x.high > 0), ends.low.clamp(max=0.0), ends.low), ends.high)


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@rule(*(f"aten.{name}.{kind}" for name in COMPARISONS for kind in ("Tensor", "Scalar")))
def compare(node: Any, name: str) -> Interval:
    """Known where the bounds do not overlap, or are points."""
    one, two = map(operand, node[1])
    shared = one.low.expand(torch.broadcast_shapes(one.low.shape, two.low.shape))
    result = getattr(torch, name.split(".")[1])(one.low, two.low)
    points = (one.low == one.high) & (two.low == two.high)
    known = points | (one.high < two.low) | (one.low > two.high) | (shared.isnan() & torch.tensor(one.is_point))
    return Interval(result & known, result | ~known)


WHERE = ("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")


def chosen(mask: Interval, one: Interval, two: Interval) -> Interval:
    """Where the mask is unknown, either operand."""
    low, high = (torch.where(mask.low, getattr(one, end), getattr(two, end)) for end in ("low", "high"))
    if mask.is_point:
        return Interval(low, high)
    either = hull([*torch.broadcast_tensors(one.low, one.high, two.low, two.high)])
    known = mask.low == mask.high
    return Interval(torch.where(known, low, either.low), torch.where(known, high, either.high))


@rule(*WHERE)
def where(node: Any, name: str) -> Interval:
    return chosen(node[1][0], operand(node[1][1]), operand(node[1][2]))


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(node: Any, name: str) -> Interval:
    x, mask, value = node[1]
    return chosen(mask, operand(value), x)


# ---- functions ---------------------------------------------------------------------------------------------------

# name -> (units in the last place between two implementations, the greatest slope where the function is not monotonic
# (None: it is), the error of cancelling terms as a multiple of u · max(1, |x|))
FUNCTIONS: dict[str, tuple[float, float | None, float]] = {
    "aten.sigmoid.default": (8, None, 0),
    "aten.tanh.default": (8, None, 0),
    "aten.exp.default": (8, None, 0),
    "aten.log.default": (8, None, 0),
    "aten.erf.default": (8, None, 0),
    "aten.sqrt.default": (1, None, 0),  # MKL rounds some to the neighbour
    "aten.rsqrt.default": (4, None, 0),
    "aten.pow.Tensor_Scalar": (8, None, 0),
    "aten.silu.default": (10, 1.1, 0),
    "aten.gelu.default": (10, 1.13, 6),
    "aten.mish.default": (16, 1.1, 4),
    "aten.elu.default": (10, None, 6),
    "aten.hardswish.default": (0, 1.5, 0),
}


@rule(*FUNCTIONS)
def function(node: Any, name: str) -> Interval:
    """PyTorch's value in float32, with the error that another implementation may have."""
    call, args, kwargs = node
    x = args[0]
    places, slope, cancelled = FUNCTIONS[name]
    call_on = lambda tensor: call.target(tensor, *args[1:], **kwargs)  # noqa: E731
    absolute = cancelled * UNIT * x.size.clamp(min=1.0)
    if slope is None or x.is_point:
        ends = [call_on(x.low)] if x.is_point else [call_on(x.low), call_on(x.high)]
        found = hull(ends)
    else:
        found = Interval.about(call_on(x.centre), slope * x.radius + 16 * UNIT * call_on(x.centre).abs())
    if not places and not cancelled:
        return found
    return Interval.about(found.centre, found.radius + 2 * places * UNIT * found.size + absolute + SMALLEST)


# ---- sums --------------------------------------------------------------------------------------------------------


@rule(*(f"aten.conv{rank}d.{kind}" for rank in (1, 2, 3) for kind in ("default", "padding")),
      "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input",
      "aten.convolution.default", "aten.linear.default")  # fmt: skip
def layer(node: Any, name: str) -> Interval:
    """Σ x·w + b. The number of a weight's elements per output channel bounds the number of terms."""
    call, args, kwargs = node
    x, w, bias = args[0], args[1], args[2] if len(args) > 2 else None
    run = lambda a, b: call.target(a, b, None, *args[3:], **kwargs)  # noqa: E731
    rank = w.low.ndim - 2
    if bias is not None:
        bias = Interval(*(end.reshape(-1, *[1] * rank) for end in (bias.low, bias.high)))
    return bilinear(run, x, w, terms_of(node, name, w.low), bias)


def terms_of(node: Node, name: str, w: torch.Tensor) -> int:
    if "transpose" in name or (name == "aten.convolution.default" and argument(node, "transposed")):
        return w.numel() // w.shape[1]
    return w.numel() // w.shape[0]


@rule("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def matmul(node: Any, name: str) -> Interval:
    one, two = node[1]
    return bilinear(torch.matmul, one, two, one.low.shape[-1])


@rule("aten.addmm.default", "aten.baddbmm.default")
def addmm(node: Any, name: str) -> Interval:
    """β·c + α·a b: with factors, sums are not exact."""
    addend, one, two = node[1]
    alpha, beta = node[2].get("alpha", 1), node[2].get("beta", 1)
    count = one.low.shape[-1]
    if alpha == beta == 1:
        return bilinear(torch.matmul, one, two, count, addend)
    product = bilinear(torch.matmul, one, two, count)
    centre = alpha * product.centre + beta * addend.centre
    terms = abs(alpha) * torch.matmul(one.size, two.size) + abs(beta) * addend.size
    return added(centre, abs(alpha) * product.radius + abs(beta) * addend.radius, terms, count + 1, 0.0)


@rule("aten.scaled_dot_product_attention.default")
def attention(node: Any) -> Interval:
    q, k, v = node[1][:3]
    mask, causal, scale = argument(node, "attn_mask"), argument(node, "is_causal"), argument(node, "scale")
    factor = 1 / math.sqrt(q.low.shape[-1]) if scale is None else scale
    scores = bilinear(lambda a, b: torch.matmul(a, b.transpose(-1, -2)), q, k, q.low.shape[-1] + 4)
    scores = Interval.about(scores.centre * factor, scores.radius * factor).widened(4 * UNIT)
    if mask is not None:
        scores = Interval(scores.low + mask.low, scores.high + mask.high).widened(2 * UNIT)
    hidden = torch.ones(scores.low.shape[-2:]).tril().logical_not() if causal else None
    return bilinear(torch.matmul, row_softmax(scores, -1, hidden), v, v.low.shape[-2] + 4)


MEANS = ("aten.mean.dim", "aten.mean.default", "aten.sum.dim_IntList", "aten.sum.default")
ADAPTIVE = (*(f"aten.adaptive_avg_pool{rank}d.default" for rank in (1, 2, 3)),
            *(f"aten._adaptive_avg_pool{rank}d.default" for rank in (2, 3)))  # fmt: skip


@rule(*MEANS, *ADAPTIVE)
def mean(node: Any, name: str) -> Interval:
    """A sum, and a division or two."""
    call, args, kwargs = node
    x = args[0]
    run = lambda tensor: call.target(tensor, *args[1:], **kwargs)  # noqa: E731
    centre, size, spread = run(x.centre), run(x.size), run(x.radius)
    count = x.low.numel() // max(1, centre.numel())
    if "sum" in name:
        return added(centre, spread, size, count, grain(x))
    return added(centre, spread, size, 2 * count + 4, 0.0)


@rule("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def average_pool(node: Any, name: str) -> Interval:
    """Cell by cell in the same order as ours: the same bits, except with a divisor_override."""
    call, args, kwargs = node
    found = at_both_ends(call, *args, **kwargs)
    divided = "1d" not in name and argument(node, "divisor_override") is not None
    return found.widened(4 * UNIT) if divided else found


# ---- rows --------------------------------------------------------------------------------------------------------


def row_softmax(x: Interval, axis: int, hidden: torch.Tensor | None = None) -> Interval:
    """exp(x − max) / Σ: a change of x by r changes the result by a factor of up to exp(2r). Ours sums exponentials in
    steps of 2⁻²³, an error of 2u / Σ, or 2u times the greatest result."""
    logits = x.centre if hidden is None else x.centre.masked_fill(hidden, -torch.inf)
    centre = logits.softmax(axis)
    distance = (logits.amax(axis, keepdim=True) - logits).nan_to_num(0.0, posinf=0.0)
    change = 2 * x.radius.amax() + UNIT * (6 * x.size.amax() + distance)
    relative = torch.expm1(change) + (x.low.shape[axis] + 24) * UNIT
    return Interval.about(centre, centre * relative + 2 * UNIT * centre.amax(axis, keepdim=True) + SMALLEST)


@rule("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
def softmax(node: Any, name: str) -> Interval:
    x, axis = node[1][:2]
    if "log" not in name:
        return row_softmax(x, axis)
    centre = x.centre.log_softmax(axis)
    error = 2 * x.radius.amax() + UNIT * (x.low.shape[axis] + 24 + 6 * x.size.amax())
    return Interval.about(centre, error + 4 * UNIT * centre.abs())


def moments(x: Interval, axes: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean and its error, the variance and its error, from sums of n terms, one of them of squares."""
    mean, size = x.centre.mean(axes, keepdim=True), x.size.mean(axes, keepdim=True)
    count = x.low.numel() // max(1, mean.numel())
    spread = x.radius.amax()
    mean_error = spread + (count + 8) * UNIT * size
    variance = (x.centre - mean).square().mean(axes, keepdim=True)
    squares = x.size.square().mean(axes, keepdim=True)
    return mean, mean_error, variance, 4 * (count + 8) * UNIT * squares + 4 * spread * (size + spread)


def normalized(x: Interval, axes: Any, weight: Any, bias: Any, eps: float) -> Interval:
    """(x − mean) / √(variance + ε) · weight + bias."""
    mean, mean_error, variance, error = moments(x, axes)
    factor = (variance + eps).rsqrt()
    most, least = ((variance - error).clamp(min=0) + eps).rsqrt(), (variance + error + eps).rsqrt()
    off = (x.centre - mean).abs()
    wrong = (mean_error + x.radius + 2 * UNIT * x.size) * most + off * (most - least)
    result = (x.centre - mean) * factor
    wrong = wrong + 8 * UNIT * result.abs()
    if weight is not None:
        result, wrong = result * weight.centre, wrong * weight.size
    if bias is not None:
        result, wrong = result + bias.centre, wrong + 4 * UNIT * bias.size
    found = Interval.about(result, wrong + 4 * UNIT * result.abs() + SMALLEST)
    beyond = (x.size.square().sum(axes, keepdim=True) > LARGEST).expand(result.shape)  # the squares are float32
    return Interval(*(torch.where(beyond, torch.nan, end) for end in (found.low, found.high)))


@rule("aten.layer_norm.default", "aten.native_layer_norm.default")
def layer_norm(node: Any, name: str) -> Any:
    x, shape, weight, bias, eps = node[1][:5]
    found = normalized(x, list(range(-len(shape), 0)), weight, bias, eps)
    return found if "native" not in name else [found, found, found]  # no program reads the mean and deviation


@rule("aten.group_norm.default", "aten.native_group_norm.default")
def group_norm(node: Any, name: str) -> Any:
    native = "native" in name
    x, weight, bias, groups, eps = (node[1][i] for i in ((0, 1, 2, 6, 7) if native else (0, 2, 3, 1, 4)))
    shape, channels = x.low.shape, x.low.shape[1]
    grouped = x.mapped(lambda t: t.reshape(shape[0], groups, channels // groups, *shape[2:]))
    vectors = [v and v.mapped(lambda t: t.reshape(1, groups, -1, *[1] * (len(shape) - 2))) for v in (weight, bias)]
    found = normalized(grouped, list(range(2, grouped.low.ndim)), *vectors, eps)
    found = found.mapped(lambda t: t.reshape(shape))
    return [found, found, found] if native else found


@rule("aten.instance_norm.default", "aten._native_batch_norm_legit.no_stats")
def instance_norm(node: Any, name: str) -> Any:
    native = "native" in name
    x, weight, bias, eps = (node[1][i] for i in (0, 1, 2, 5 if native else 7))
    axes = list(range(2, x.low.ndim))
    vectors = [v and v.mapped(lambda t: t.reshape(-1, *[1] * len(axes))) for v in (weight, bias)]
    found = normalized(x, axes, *vectors, eps)
    return [found, found, found] if native else found


@rule("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(node: Any, name: str) -> Any:
    """x·a + b with a = weight / √(variance + ε), b = bias − mean·a."""
    x, *vectors = node[1][:5]
    along = lambda v: v and v.centre.reshape(-1, *[1] * (x.low.ndim - 2))  # noqa: E731
    weight, bias, mean, variance = (along(v) for v in vectors)
    eps = argument(node, "eps")
    factor = (variance + eps).rsqrt() * (1.0 if weight is None else weight)
    offset = (0.0 if bias is None else bias) - mean * factor
    error = 8 * UNIT * (x.size * factor.abs() + (mean * factor).abs() + (0.0 if bias is None else bias.abs()))
    found = Interval.about(x.centre * factor + offset, x.radius * factor.abs() + error + SMALLEST)
    return found if "native" not in name else [found, found, found]


@rule("aten.var.correction", "aten.std.correction", "aten.var_mean.correction")
def variance(node: Any, name: str) -> Any:
    x, axes = node[1]
    correction, keepdim = node[2]["correction"], node[2]["keepdim"]
    mean, mean_error, found, error = moments(x, axes)
    count = x.low.numel() // max(1, mean.numel())
    factor = count / (count - correction)
    low, high = ((found - error) * factor).clamp(min=0), (found + error) * factor
    if "std" in name:
        low, high = low.sqrt(), high.sqrt()
    results = [Interval.about((low + high) / 2, (high - low) / 2 + 8 * UNIT * high + SMALLEST)]
    results.append(Interval.about(mean, mean_error))
    if not keepdim:
        results = [result.mapped(lambda t: t.squeeze(axes)) for result in results]
    return results if "var_mean" in name else results[0]
