"""Runs what was read from a file: an engine must take any values, a module give the same compiled and interpreted."""

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
from .rounding import can_differ, is_explained

_MOST_ELEMENTS = 200_000  # elements of all tensors of a model that is run: the interpreter is slow
_FLOATS = (0.0, -0.0, 1e-45, -1e-38, 0.5, -1.5, 1e9, -1e19, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)


def execute(subject: Engine | QnnModule, data: bytes) -> Verdict:
    """Run it on ordinary and on hostile values, chosen by the file's content `data`."""
    with np.errstate(all="ignore"):
        return _check_engine(subject, data) if isinstance(subject, Engine) else _check_module(subject, data)


def _check_engine(engine: Engine, data: bytes) -> Verdict:
    """A loaded engine must take any values."""
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
    sets = _input_sets(module.inputs, data, _FLOATS)
    for number, inputs in enumerate(sets):
        found, wanted = _outcome(engine.run, inputs), _outcome(interpreter.run, inputs)
        for outcome in (found, wanted):
            if isinstance(outcome, Exception) and not isinstance(outcome, QnnError):
                return failure(outcome)
        if isinstance(found, Exception) and isinstance(wanted, Exception):
            refused += 1
            continue
        if problem := _difference(found, wanted, module, sets[: number + 1]):
            return Verdict(DIFFERENT, problem, f"{problem.split(':')[0]} in {operators(module)}")
    return Verdict(REFUSED_LATER if refused else RAN)


def _outcome(run: Callable[[Any], dict[str, np.ndarray]], inputs: list[np.ndarray]) -> Any:
    try:
        return run(inputs)
    except Exception as error:
        return error


def _difference(found: Any, wanted: Any, module: QnnModule, inputs: list[list[np.ndarray]]) -> str:
    """How results for the last inputs differ; "" where they are equal bit for bit or rounding explains the difference;
    any NaN equals any other, and 0 equals −0."""
    if isinstance(found, QnnError) or isinstance(wanted, QnnError):
        who, error = ("compiled", found) if isinstance(found, QnnError) else ("interpreted", wanted)
        return f"{who} refuses it, the other does not: {error}"
    for spec, (name, value) in zip(module.outputs, wanted.items(), strict=True):
        other = found[name]
        if value.shape != spec.shape or str(value.dtype) != spec.dtype:
            return f"shape or dtype: '{name}' is {value.dtype}{value.shape}, declared {spec.dtype}{spec.shape}"
        if other.shape != value.shape or other.dtype != value.dtype:
            return f"shape or dtype: '{name}' is {other.dtype}{other.shape}, interpreted {value.dtype}{value.shape}"
        same = _same(other, value)
        if not same.all() and any(map(can_differ, calls(module))):
            same |= is_explained(module, inputs, name, other)
        if not same.all():
            return _mismatch(name, other, value, same)
    return ""


def _same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    same = found == wanted
    return np.asarray(same | (np.isnan(found) & np.isnan(wanted)) if found.dtype.kind == "f" else same)


def _mismatch(name: str, found: np.ndarray, wanted: np.ndarray, same: np.ndarray) -> str:
    kind = f"{found.dtype} values"
    if found.dtype.kind == "f" and ((np.isnan(found) != np.isnan(wanted)) & ~same).any():
        kind = "NaN instead of a number, or the reverse"
    place = tuple(int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
    one, two = np.atleast_1d(found)[place], np.atleast_1d(wanted)[place]
    return f"{kind}: {np.count_nonzero(~same)} of {same.size} in '{name}', at {place} {one!r}, interpreted {two!r}"


def calls(module: QnnModule) -> list[relax.Call]:
    """All calls of a module's functions."""
    functions = [function for function in module.ir.functions.values() if isinstance(function, relax.Function)]
    bindings = [b for function in functions for block in function.body.blocks for b in block.bindings]
    return [binding.value for binding in bindings if isinstance(binding.value, relax.Call)]


def operators(module: QnnModule) -> str:
    """The names of all operators of a module."""
    names = {call.op.name for call in calls(module) if hasattr(call.op, "name")}
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
