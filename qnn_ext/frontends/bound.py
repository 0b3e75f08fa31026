"""Inputs that the caller binds to values at import: from then on they are constants of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..limits import charge, check_elements


def not_constant(index: int, name: str) -> str:
    """The reason why an operator is refused whose input must be known at import."""
    return (
        f"input {index} ('{name}') computed at run time; it must be constant: bind the inputs that it depends on to "
        "values (constants=), or end the model before this operator and compute the rest outside"
    )


def check_bound(constants: Mapping[str, Any], inputs: Sequence[str], source: str) -> None:
    """Raises ShapeError for a name that is no input of the model, and when no input is left."""
    unknown = [name for name in constants if name not in inputs]
    if unknown:
        names = ", ".join(map(repr, inputs))
        raise ShapeError(f"a constant is given for {unknown[0]!r}, but the inputs of {source} are {names}")
    if constants and set(inputs) <= set(constants):
        raise ShapeError(f"constants binds every input of {source}: at least one must stay an input")


def bound_value(name: str, value: Any, dtype: str, shape: Sequence[Any] | None) -> np.ndarray:
    """The value of a bound input in the input's dtype and shape. A number stands for a whole tensor.

    shape: as declared, with anything but a positive integer where a dimension is open; None if it is not declared

    Raises ShapeError when the value does not fit.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ShapeError(f"constants[{name!r}] must be a number or an array of numbers, found {value!r:.80}")
    dims = array.shape if shape is None else [dim if isinstance(dim, int) and dim > 0 else None for dim in shape]
    if array.ndim == 0:
        sizes = check_elements([1 if dim is None else dim for dim in dims], f"input '{name}'", "folded")
        array = np.full(sizes, array)
    if len(array.shape) != len(dims) or any(d not in (None, n) for d, n in zip(dims, array.shape, strict=True)):
        declared = ", ".join("?" if dim is None else str(dim) for dim in dims)
        raise ShapeError(f"constants[{name!r}] has shape {array.shape}, but the input has shape ({declared})")
    charge(array.shape, f"input '{name}'")
    with np.errstate(all="ignore"):
        result = array.astype(dtype)
    if result.dtype.kind in "biu" and not np.array_equal(result, array):
        raise ShapeError(f"constants[{name!r}] holds values that the input's dtype {dtype} cannot hold")
    return result
