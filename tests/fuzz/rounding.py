"""What rounding explains of a difference between compiled and interpreted results.

Compiled code is equal to the interpreter bit for bit, but for sums of floats, which it adds in another order, and
products within sums, which most CPUs round once where the interpreter rounds twice. How far that may go follows from
the operator: n·u·Σ|terms| for a sum of n terms (u the unit roundoff; Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2). Where Σ|terms| overflows, so may a partial sum, to ±∞ or NaN, in one order and not in another.
What becomes of it in the operators behind, tables and comparisons among them, is found by trying: the interpreter runs
again and again, each time with such errors added to what these operators yield.
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

from qnn_ext import Interpreter, interpreter
from qnn_ext.module import QnnModule
from qnn_ext.op.base import definition_of, has_float_rows

_LINEAR = {
    "matmul", "einsum", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose",
    "nn.conv3d_transpose", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "sum", "mean", "cumsum",
}  # fmt: skip
_INTERPOLATING = {"image.resize2d", "image.grid_sample", "image.affine_grid", "vision.roi_align"}
_NORMALIZING = {"variance", "std", "nn.batch_norm", "nn.instance_norm", "nn.group_norm", "nn.rms_norm", "nn.layer_norm"}
_RELATIVE = {"prod", "cumprod", "nn.softmax", "nn.log_softmax", "nn.attention"}
_ROWS = ("nn.softmax", "nn.layer_norm")  # of our own formulas, exact where they apply
_SIGNS = 6  # runs whose errors all have their largest size and random signs, beside two with one sign
_STEPS = 8  # roundings of an interpolation: its position, its weights, and their products


@dataclass(frozen=True)
class _Error:
    """Of one operator's result: the largest absolute error, and where a partial sum may overflow."""

    bound: np.ndarray
    overflows: np.ndarray


def is_explained(module: QnnModule, inputs: Sequence[list[np.ndarray]], name: str, found: np.ndarray) -> np.ndarray:
    """Where `found`, output `name` for the last of the inputs, which the module had one after the other, may be so."""
    samples = [np.asarray(sample[name]) for sample in _samples(module, inputs)]
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


def _samples(module: QnnModule, inputs: Sequence[list[np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Outputs for the last inputs under errors of every kind."""
    rng = np.random.default_rng(0)
    extreme = np.finfo(np.float32).max
    wild: list[float | None] = [None, np.inf, -np.inf, np.nan, extreme, -extreme, 0.0]
    signs: list[int | None] = [1, -1, *[None] * _SIGNS]
    for place in range(max(len(wild), len(signs))):
        with _disturbed(rng, signs[place % len(signs)], wild[place % len(wild)], mixed=place >= len(wild)):
            runner = Interpreter(module)
            for values in inputs:
                result = runner.run(values)
            yield result


@contextlib.contextmanager
def _disturbed(rng: np.random.Generator, sign: int | None, wild: float | None, mixed: bool) -> Iterator[None]:
    """Within, the interpreter makes errors: of this sign, or of random ones. What may overflow becomes `wild` or stays;
    `mixed`: each element of it becomes one or the other."""
    evaluate = interpreter._evaluate_call

    def evaluate_with_errors(mod: Any, call: relax.Call, args: list[Any]) -> Any:
        result = evaluate(mod, call, args)
        error = _error(call, args, result, lambda values: evaluate(mod, call, values))
        if error is None:
            return result
        signs = rng.choice((-1.0, 1.0), np.shape(result)) if sign is None else sign
        disturbed = np.asarray(result, np.float64) + signs * error.bound
        if wild is not None or mixed:
            values = rng.choice([0.0, np.inf, -np.inf, np.nan], np.shape(result)) if mixed else wild
            disturbed = np.where(error.overflows, values, disturbed)
        finite = np.finfo(result.dtype)
        clipped = np.where(np.isfinite(disturbed), np.clip(disturbed, finite.min, finite.max), disturbed)
        return np.where(np.isfinite(result) | error.overflows, clipped, result).astype(result.dtype)

    with np.errstate(all="ignore"), mock.patch.object(interpreter, "_evaluate_call", evaluate_with_errors):
        yield


def can_differ(call: relax.Call) -> bool:
    """Whether an operator sums floats, or makes a product that another may sum."""
    if isinstance(call.op, ir.GlobalVar) or definition_of(call) is not None or not hasattr(call.op, "name"):
        return False
    name = call.op.name.removeprefix("relax.")
    if name in _ROWS and has_float_rows(call):
        return False
    return name in _LINEAR | _INTERPOLATING | _NORMALIZING | _RELATIVE | {"multiply"}


def _error(call: relax.Call, args: list[Any], result: Any, evaluate: Any) -> _Error | None:
    """None where results are exact."""
    if not can_differ(call) or not isinstance(result, np.ndarray) or result.dtype.kind != "f":
        return None
    name = call.op.name.removeprefix("relax.")
    unit, most = float(np.finfo(result.dtype).eps) / 2, float(np.finfo(result.dtype).max)
    if name == "multiply":
        finite = np.isfinite(args[0]) & np.isfinite(args[1])
        return _Error(2 * unit * np.abs(np.where(np.isfinite(result), result, 0)), finite & np.isinf(result))
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
    """Of a sum, at most."""
    first = args[0][0] if isinstance(args[0], tuple) else args[0]
    if name == "matmul":
        return int(first.shape[-1])
    if name.startswith("nn.conv"):
        return math.prod(args[1].shape) // max(min(args[1].shape[:2]), 1)
    return int(first.size) if isinstance(first, np.ndarray) else result.size


def _of_magnitudes(call: relax.Call, args: list[Any]) -> np.ndarray:
    """The operator of the absolute values of its finite operands: Σ|terms|, ∞ where that overflows."""
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
    return np.asarray(interpreter._evaluate_with_tvm(positive, values))


def _magnitude(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return np.where(np.isfinite(value), np.abs(value), np.zeros_like(value))


def _variable(value: Any) -> relax.Var | None:
    if not isinstance(value, np.ndarray):
        return None
    return relax.Var("operand", relax.TensorType(value.shape, str(value.dtype)))
