"""Runs what was read from a file: an engine takes any values, a module gives the same compiled and interpreted."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

import qnn_ext
from qnn_ext import Engine, Interpreter, QnnError
from qnn_ext.module import QnnModule, TensorSpec

from .check import DIFFERENT, IMPORTED, RAN, REFUSED_LATER, Verdict, failure, refusal

_MOST_ELEMENTS = 200_000  # of all tensors of a model that is run: the interpreter is slow
_OVERFLOW = 1e30  # beyond, partial sums may overflow in one order and not in another
_SUMS = {
    "matmul", "einsum", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose",
    "nn.conv3d_transpose",
    "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d",
    "nn.adaptive_avg_pool3d", "sum", "mean", "variance", "std", "cumsum", "prod", "cumprod", "nn.batch_norm",
    "nn.instance_norm", "nn.group_norm", "nn.rms_norm", "nn.layer_norm", "nn.attention", "nn.softmax",
    "nn.log_softmax", "image.resize2d", "image.grid_sample",
    "image.affine_grid", "vision.roi_align",
}  # fmt: skip
_FLOATS = (0.0, -0.0, 1e-45, -1e-38, 0.5, -1.5, 1e9, -1e19, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)
_SUMMABLE = tuple(value for value in _FLOATS if not 1e10 < abs(value) < np.inf)


def execute(subject: Engine | QnnModule, data: bytes) -> Verdict:
    """Run it on ordinary and on hostile values, which the file's content `data` chooses."""
    with np.errstate(all="ignore"):
        return _check_engine(subject, data) if isinstance(subject, Engine) else _check_module(subject, data)


def _check_engine(engine: Engine, data: bytes) -> Verdict:
    """A loaded engine takes any values."""
    if sum(math.prod(spec.shape) for spec in (*engine.inputs, *engine.outputs)) > _MOST_ELEMENTS:
        return Verdict(IMPORTED)
    try:
        for inputs in _input_sets(engine.inputs, data, _FLOATS):
            engine.run(inputs)
    except QnnError as error:
        return refusal(error, REFUSED_LATER)
    except Exception as error:
        return failure(error)
    return Verdict(RAN)


def _check_module(module: QnnModule, data: bytes) -> Verdict:
    """The compiled module against the interpreter."""
    if total_elements(module) > _MOST_ELEMENTS:
        return Verdict(IMPORTED)
    try:
        engine = qnn_ext.build(module, num_threads=1)
    except QnnError as error:
        return refusal(error, REFUSED_LATER)
    except Exception as error:
        return failure(error)
    interpreter, refused = Interpreter(module), 0
    floats = _SUMMABLE if sums_floats(module) else _FLOATS
    for inputs in _input_sets(module.inputs, data, floats):
        found, wanted = _outcome(engine.run, inputs), _outcome(interpreter.run, inputs)
        for outcome in (found, wanted):
            if isinstance(outcome, Exception) and not isinstance(outcome, QnnError):
                return failure(outcome)
        if isinstance(found, Exception) and isinstance(wanted, Exception):
            refused += 1
            continue
        if problem := _difference(found, wanted, module):
            return Verdict(DIFFERENT, problem, f"{problem.split(':')[0]} in {operators(module)}")
    return Verdict(REFUSED_LATER if refused else RAN)


def _outcome(run: Callable[[Any], dict[str, np.ndarray]], inputs: list[np.ndarray]) -> Any:
    try:
        return run(inputs)
    except Exception as error:
        return error


def _difference(found: Any, wanted: Any, module: QnnModule) -> str:
    """How results differ, "" where they are equal bit for bit; any NaN equals any other, and 0
    equals −0. Sums of floats are equal to the last bits."""
    if isinstance(found, QnnError) or isinstance(wanted, QnnError):
        who, error = ("compiled", found) if isinstance(found, QnnError) else ("interpreted", wanted)
        return f"{who} refuses, the other does not: {error}"
    for name, value in wanted.items():
        other = found[name]
        if other.shape != value.shape or other.dtype != value.dtype:
            return f"shape or dtype: '{name}' is {other.dtype}{other.shape}, interpreted {value.dtype}{value.shape}"
        if problem := _array_difference(name, other, value, sums_floats(module)):
            return problem
    return ""


def _array_difference(name: str, found: np.ndarray, wanted: np.ndarray, sums: bool) -> str:
    kind = f"{found.dtype} values"
    if found.dtype.kind != "f":
        same = found == wanted
    else:
        nan = np.isnan(found), np.isnan(wanted)
        same = (found == wanted) | (nan[0] & nan[1])
        same |= _is_close(found, wanted) if sums else False
        kind = "NaN against a number" if ((nan[0] != nan[1]) & ~same).any() else kind
    if same.all():
        return ""
    place = tuple(int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
    one, two = np.atleast_1d(found)[place], np.atleast_1d(wanted)[place]
    return f"{kind}: {np.count_nonzero(~same)} of {same.size} in '{name}', at {place} {one!r}, interpreted {two!r}"


def _is_close(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where sums in another order may give these: nearly equal by the largest magnitude, or near the overflow."""
    huge = [~np.isfinite(values) | (np.abs(values) > _OVERFLOW) for values in (found, wanted)]
    either_nan = np.isnan(found) ^ np.isnan(wanted)
    finite = np.abs(wanted[~huge[1]]).astype(np.float64)
    near = np.abs(found.astype(np.float64) - wanted) <= 1e-3 * finite.max(initial=0) + 1e-30
    return (near & ~either_nan) | (huge[0] & huge[1])


def sums_floats(module: QnnModule) -> bool:
    """Whether the module holds sums, whose order compiled code chooses, or products within sums, which CPUs round once
    where the interpreter rounds twice."""
    names = set(operators(module).split(", "))
    return bool(_SUMS & names) or ("multiply" in names and bool({"add", "subtract"} & names))


def operators(module: QnnModule) -> str:
    """The names of all operators of a module."""
    names = set()
    for function in module.ir.functions.values():
        if isinstance(function, relax.Function):
            bindings = [binding for block in function.body.blocks for binding in block.bindings]
            names |= {
                b.value.op.name for b in bindings if isinstance(b.value, relax.Call) and hasattr(b.value.op, "name")
            }
    return ", ".join(sorted(name.removeprefix("relax.") for name in names))


def total_elements(module: QnnModule) -> int:
    """Elements of all tensors of the main function."""
    function = module.ir["main"]
    variables = [*function.params, *(b.var for block in function.body.blocks for b in block.bindings)]
    shapes = [v.ty.shape for v in variables if isinstance(v.ty, relax.TensorType)]
    return sum(math.prod(int(dim) for dim in shape) for shape in shapes)


def _input_sets(specs: Any, data: bytes, floats: tuple[float, ...]) -> list[list[np.ndarray]]:
    """Ordinary values, then hostile ones, `floats` among them, chosen by the file's content."""
    rng = np.random.default_rng(zlib.crc32(data))
    ordinary = [_ordinary(spec, rng) for spec in specs]
    hostile = [_ordinary(spec, rng) for spec in specs]
    for spec, values in zip(specs, hostile, strict=True):
        extremes = rng.choice(_extremes(spec.dtype, floats), spec.shape)
        np.copyto(values, extremes, where=rng.random(spec.shape) < 0.4)
    return [ordinary, hostile]


def _ordinary(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    if spec.dtype == "bool":
        return np.asarray(rng.integers(0, 2, spec.shape), bool)
    if not spec.dtype.startswith(("int", "uint")):
        return np.asarray(rng.standard_normal(spec.shape), spec.dtype)
    limits = np.iinfo(spec.dtype)
    low, high = (limits.min, limits.max) if limits.bits == 8 else (max(limits.min, -100), 100)
    return np.asarray(rng.integers(low, high, spec.shape), spec.dtype)


def _extremes(dtype: str, floats: tuple[float, ...]) -> np.ndarray:
    if dtype == "bool":
        return np.array([False, True])
    if not dtype.startswith(("int", "uint")):
        return np.asarray(floats).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray([limits.min, limits.max, 0, limits.min + 1, limits.max - 1, 1], dtype)
