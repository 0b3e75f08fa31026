"""Which differences between compiled and interpreted results rounding explains.

Compiled code equals the interpreter bit for bit, except for sums of floats, which it adds in another order, and
products within sums, which most CPUs round once where the interpreter rounds twice. How far they may differ follows
from the operator: n·u·Σ|terms| for a sum of n terms (u the unit roundoff; Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2). Where Σ|terms| overflows, so may a partial sum, to ±∞ or NaN, in one order and not in another.
The effect on later operators, including tables and comparisons, is found by experiment: the interpreter runs
repeatedly, each time with such errors added to these operators' results.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from tvm import ir, relax

from qnn_ext import Interpreter
from qnn_ext.module import QnnModule
from qnn_ext.op import evaluate
from qnn_ext.op.base import call_attributes, definition_of, has_float_rows
from qnn_ext.op.relax_compiled import evaluate_with_tvm
from tests.cases.blockwise import Weight, bound_of

_LINEAR = {
    "matmul", "einsum", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose",
    "nn.conv3d_transpose", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "sum", "mean", "cumsum",
}  # fmt: skip
_INTERPOLATING = {"image.resize2d", "image.grid_sample", "image.affine_grid", "vision.roi_align"}
_NORMALIZING = {"variance", "std", "nn.batch_norm", "nn.instance_norm", "nn.group_norm", "nn.rms_norm", "nn.layer_norm"}
_RELATIVE = {"prod", "cumprod", "nn.softmax", "nn.log_softmax", "nn.attention"}
_ROWS = ("nn.softmax", "nn.layer_norm")  # computed by our own formulas, and exact where those apply
_APPROXIMATED = {
    "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "power", "nn.gelu", "nn.gelu_tanh",
    "nn.silu", "nn.softmax", "nn.log_softmax",
}  # fmt: skip
_FLUSHED = {"exp", "sigmoid", "nn.softmax"}  # whose approximations may return 0 instead of subnormal numbers
_PACKED = "qnn.blockwise_dense"  # which says itself how far kernels may differ
_EXACT = {
    *("qnn.dequantize", "qnn.fma", "qnn.float_function"),
    *("qnn.lane_norm", "qnn.lane_softmax", "qnn.lane_sum", "qnn.response_norm", "qnn.rms_norm"),
    *("qnn.welford_norm", "qnn.wide_sum"),
}
_ULPS = 16  # by which two approximations of one function may differ
_SIGNS = 6  # runs with errors of maximal size and random signs, besides one without errors and two with equal signs
_STEPS = 8  # roundings of an interpolation: its position, its weights, and their products


@dataclass(frozen=True)
class _Error:
    """For one operator's result: the largest absolute error, and where a partial sum may overflow."""

    bound: np.ndarray
    overflows: np.ndarray


def is_explained(
    module: QnnModule, inputs: Sequence[list[np.ndarray]], name: str, found: np.ndarray, approximate: bool = False
) -> np.ndarray:
    """Where rounding explains `found`, which is output `name` for the last of the inputs that the module ran in order.

    approximate: whether functions (exp, tanh, …) may be approximated differently, and sums and quotients of two rounded
                 differently, as in frameworks; compiled code and interpreter agree on them
    """
    samples = [np.asarray(sample[name]) for sample in _samples(module, inputs, approximate)]
    stack = np.stack(samples).astype(np.float64)
    nan = np.isnan(stack)
    low = np.where(nan, np.inf, stack).min(0)
    high = np.where(nan, -np.inf, stack).max(0)
    with np.errstate(all="ignore"):
        margin = np.nan_to_num(high - low, nan=0.0, posinf=np.inf)
        inside = (found >= np.where(margin < np.inf, low - margin, low)) & (
            found <= np.where(margin < np.inf, high + margin, high)
        )
    return np.asarray(inside | (np.isnan(np.asarray(found, np.float64)) & nan.any(0)))


def _samples(
    module: QnnModule, inputs: Sequence[list[np.ndarray]], approximate: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Outputs for the last inputs, with errors of every kind."""
    rng = np.random.default_rng(0)
    extreme = np.finfo(np.float32).max
    wild: list[float | None] = [None, np.inf, -np.inf, np.nan, extreme, -extreme, 0.0]
    signs: list[int | None] = [0, 1, -1, *[None] * _SIGNS]
    for place in range(max(len(wild), len(signs))):
        mixed = place >= len(wild)
        with _disturbed(rng, signs[place % len(signs)], wild[place % len(wild)], mixed, approximate):
            runner = Interpreter(module)
            for values in inputs:
                result = runner.run(values)
            yield result


@contextlib.contextmanager
def _disturbed(
    rng: np.random.Generator, sign: int | None, wild: float | None, mixed: bool, approximate: bool
) -> Iterator[None]:
    """Within, the interpreter makes errors of this sign (0: none), or of random signs. What may overflow becomes
    `wild`, or stays if None; `mixed`: each such element becomes a random one of zero, ±∞ and NaN."""
    original = evaluate.evaluate_call

    def evaluate_with_errors(mod: Any, call: relax.Call, args: list[Any]) -> Any:
        result = original(mod, call, args)
        error = _error(call, args, result, lambda values: original(mod, call, values), approximate)
        if error is None and approximate:
            error = _approximation(call, args, result)
        if error is None:
            return result
        signs = rng.choice((-1.0, 1.0), np.shape(result)) if sign is None else sign
        disturbed = np.asarray(result, np.float64) + signs * _with_subnormals(call, error.bound, result, approximate)
        if wild is not None or mixed:
            values = rng.choice([0.0, np.inf, -np.inf, np.nan], np.shape(result)) if mixed else wild
            disturbed = np.where(error.overflows, values, disturbed)
        finite = np.finfo(result.dtype)
        clipped = np.where(np.isfinite(disturbed), np.clip(disturbed, finite.min, finite.max), disturbed)
        return np.where(np.isfinite(result) | error.overflows, clipped, result).astype(result.dtype)

    with np.errstate(all="ignore"), mock.patch.object(evaluate, "evaluate_call", evaluate_with_errors):
        yield


def _with_subnormals(call: relax.Call, bound: np.ndarray, result: np.ndarray, approximate: bool) -> np.ndarray:
    """The bound, large enough for results that may be flushed to zero, or be subnormal where ours are zero."""
    if not approximate or call.op.name.removeprefix("relax.") not in _FLUSHED:
        return bound
    tiny = float(np.finfo(result.dtype).tiny)
    return np.where(np.abs(result) < tiny, np.maximum(bound, tiny), bound)


def can_differ(call: relax.Call, approximate: bool = False) -> bool:
    """Whether an operator sums floats, or makes a product that another may sum. approximate: includes our own formulas,
    which compiled code shares with the interpreter."""
    if getattr(call.op, "name", "").removeprefix("relax.") == _PACKED:
        return True
    if isinstance(call.op, ir.GlobalVar) or definition_of(call) is not None or not hasattr(call.op, "name"):
        return False
    name = call.op.name.removeprefix("relax.")
    if name in _ROWS and has_float_rows(call) and not approximate:
        return False
    return name in _LINEAR | _INTERPOLATING | _NORMALIZING | _RELATIVE | {"multiply"}


def _approximation(call: relax.Call, args: list[Any], result: Any) -> _Error | None:
    """The error bound, a few units in the last place: of the result for elementwise float operators, of the operands
    for sums and differences; of the largest result for our own operators that sum floats."""
    name = getattr(call.op, "name", "").removeprefix("relax.")
    if not isinstance(result, np.ndarray) or result.dtype.kind != "f" or name in _EXACT:
        return None
    if definition_of(call) is not None:
        size = np.full(result.shape, np.abs(result[np.isfinite(result)]).max(initial=0))
    elif name in _APPROXIMATED:
        size = np.abs(np.where(np.isfinite(result), result, 0))
    elif name in ("add", "subtract", "divide"):
        size = np.abs(np.where(np.isfinite(result), result, 0)) + (
            0 if name == "divide" else sum(np.abs(np.where(np.isfinite(arg), arg, 0)) for arg in args)
        )
    else:
        return None
    ulps = 2 if name in ("add", "subtract", "divide") else _ULPS
    return _Error(np.broadcast_to(_rounded(ulps, size, result.dtype), result.shape), np.zeros(result.shape, bool))


def _rounded(count: float, size: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The total error of so many roundings of numbers of this size: relative to it, except for subnormal ones."""
    limits = np.finfo(dtype)
    least = np.where((size > 0) & (size < count * limits.tiny), float(limits.smallest_subnormal), 0.0)
    return np.asarray(count * np.maximum(float(limits.eps) / 2 * np.asarray(size, np.float64), least))


def _error(call: relax.Call, args: list[Any], result: Any, evaluate: Any, approximate: bool) -> _Error | None:
    """None where results are exact."""
    if not can_differ(call, approximate) or not isinstance(result, np.ndarray) or result.dtype.kind != "f":
        return None
    name = call.op.name.removeprefix("relax.")
    if name == _PACKED:
        attributes = call_attributes(call)
        kind, group = str(attributes["weight_dtype"]), int(attributes["group_size"])
        weight = Weight(*args[1:4], kind, group, args[0].shape[1])
        data = np.where(np.isfinite(args[0]), args[0], 0).astype(np.float64)
        zeros = np.abs(args[3].astype(np.float64)).max(initial=0) if args[3].dtype.kind == "f" else 0.0
        sums = np.abs(data).sum(axis=1, keepdims=True) * (256 + zeros)  # of data times integers, before their scale
        bound, most = bound_of(data, weight), float(np.finfo(np.float32).max)
        overflows = (sums >= most) | ~(bound < most)
        return _Error(np.where(overflows, 0, bound), overflows)
    unit, most = float(np.finfo(result.dtype).eps) / 2, float(np.finfo(result.dtype).max)
    if name == "multiply":
        finite = np.isfinite(args[0]) & np.isfinite(args[1])
        size = np.abs(np.where(np.isfinite(result), result, 0))
        return _Error(_rounded(2, size, result.dtype), finite & np.isinf(result))
    arrays = [np.asarray(arg) for arg in args if isinstance(arg, np.ndarray) and arg.dtype.kind == "f"]
    largest = max((float(np.abs(a[np.isfinite(a)]).max(initial=0)) for a in arrays), default=0.0)
    terms = _terms(name, args, result)
    if name in _LINEAR:
        magnitudes = np.asarray(_of_magnitudes(call, args), np.float64)
        overflows = ~(magnitudes * (1 + terms * unit) < most)
        return _Error((terms + 2) * unit * np.where(overflows, 0, magnitudes), overflows)
    if name in _INTERPOLATING:
        size = max((max(a.shape, default=1) for a in arrays), default=1)
        bound = _STEPS * unit * size * largest
        return _Error(np.full(result.shape, bound if bound < most else 0.0), np.full(result.shape, largest > most / 16))
    squares = largest * largest * terms
    overflow = np.full(result.shape, squares > most)
    if name in _NORMALIZING:
        errors = [
            a + np.asarray(terms * unit * np.abs(a[np.isfinite(a)]).max(initial=0), a.dtype)
            * np.where(np.arange(a.size).reshape(a.shape) % 2, 1, -1).astype(a.dtype)
            if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
            for a in args
        ]  # fmt: skip
        change = np.abs(np.asarray(evaluate(errors), np.float64) - result)
        return _Error(np.where(np.isfinite(change), change, 0) + 4 * unit * np.abs(np.nan_to_num(result)), overflow)
    grown = largest if name == "nn.log_softmax" else largest * (1 + squares) if name == "nn.attention" else 0.0
    bound = terms * unit * (np.abs(np.nan_to_num(result, posinf=0, neginf=0)) + grown)
    if name in ("prod", "cumprod"):
        logs = sum(float(np.log(np.maximum(np.abs(np.nan_to_num(a, posinf=1, neginf=1)), 1)).sum()) for a in arrays)
        overflow = np.full(result.shape, logs > math.log(most))
    elif name != "nn.attention":
        overflow = np.zeros(result.shape, bool)
    return _Error(np.minimum(bound, most), overflow)


def _terms(name: str, args: list[Any], result: np.ndarray) -> int:
    """The largest error of a sum."""
    first = args[0][0] if isinstance(args[0], tuple) else args[0]
    if name == "matmul":
        return int(first.shape[-1])
    if name.startswith("nn.conv"):
        return math.prod(args[1].shape) // max(min(args[1].shape[:2]), 1)
    return int(first.size) if isinstance(first, np.ndarray) else result.size


def _of_magnitudes(call: relax.Call, args: list[Any]) -> np.ndarray:
    """The operator applied to the absolute values of its finite operands: Σ|terms|, ∞ where that overflows."""
    operands: list[Any] = []
    values: list[Any] = []
    for operand, value in zip(call.args, args, strict=True):
        parts = [_magnitude(item) for item in value] if isinstance(value, tuple) else [_magnitude(value)]
        variables = [_variable(part) for part in parts]
        if any(variable is None for variable in variables):  # a shape
            operands.append(operand)
            values.append(value)
        else:
            operands.append(relax.Tuple(variables) if isinstance(value, tuple) else variables[0])
            values.append(tuple(parts) if isinstance(value, tuple) else parts[0])
    positive = relax.Call(call.op, operands, call.attrs, call.ty_args)
    return np.asarray(evaluate_with_tvm(positive, values))


def _magnitude(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return np.where(np.isfinite(value), np.abs(value), np.zeros_like(value))


def _variable(value: Any) -> relax.Var | None:
    if not isinstance(value, np.ndarray):
        return None
    return relax.Var("operand", relax.TensorType(value.shape, str(value.dtype)))
