"""The shapes that the inputs of an ONNX model get at import: declared, given by the user, or with an open batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index as operator_index
from typing import Any

from ...errors import ShapeError
from ...limits import check_elements
from ..unread import needed
from .reader import Model, Value, values_read, values_written

Dimension = int | str | None


class InputShapes:
    """The inputs' shapes with no dimension left open, but for one that may be a batch of any size.

    shapes: input name -> shape, where a name or None in one place stands for a batch of any size; or dimension
            name -> size, also as a shape of one dimension. Raises ShapeError for anything else, and for other
            dimensions left open.
    """

    def __init__(self, model: Model, shapes: Mapping[str, Any] | None) -> None:
        self.model = model
        self._given = dict(shapes or {})
        self._check_names()
        self._dims = {value.name: self._resolve(value) for value in model.inputs}
        self.dynamic_batch = self._has_open_batch()
        self._check_open()

    def all(self, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """The shape of every input, with an open batch dimension set to `batch`."""
        return {
            name: check_elements([dim if isinstance(dim, int) else batch for dim in dims], f"input '{name}'")
            for name, dims in self._dims.items()
        }

    def _check_names(self) -> None:
        inputs = [value.name for value in self.model.inputs]
        names = {dim for value in self.model.inputs for dim in value.shape or () if isinstance(dim, str)}
        for key in self._given:
            if key not in inputs and key not in names:
                dims = f"; its open dimensions are {', '.join(map(repr, sorted(names)))}" if names else ""
                raise ShapeError(
                    f"a shape is given for {key!r}, but the inputs are {', '.join(map(repr, inputs))}{dims}"
                )

    def _resolve(self, value: Value) -> tuple[Dimension, ...]:
        return tuple(operator_index(dim) if _is_integer(dim) else dim for dim in self._wanted(value))

    def _wanted(self, value: Value) -> Sequence[Any]:
        wanted = self._given.get(value.name)
        if wanted is None:
            if value.shape is None:
                raise ShapeError(
                    f"input '{value.name}' has no declared shape; give one: shapes={{{value.name!r}: (...)}}"
                )
            return [_size(self._given.get(dim, dim)) if isinstance(dim, str) else dim for dim in value.shape]
        if isinstance(wanted, (str, bytes)) or not isinstance(wanted, Sequence):
            raise ShapeError(f"input '{value.name}': a shape must be a sequence of integers, found {wanted!r}")
        if value.shape is not None and len(wanted) != len(value.shape):
            raise ShapeError(
                f"input '{value.name}' has {len(value.shape)} dimensions and cannot be given shape {tuple(wanted)}"
            )
        return wanted

    def _has_open_batch(self) -> bool:
        """Whether one dimension of inputs is left open: the first one of every input, under one common name or none, or
        one with a name that no input has twice, or an unnamed one of a single input."""
        places = [(axis, dim) for dims in self._dims.values() for axis, dim in enumerate(dims) if _is_open(dim)]
        named = {dim for _, dim in places if dim is not None}
        once = all(sum(map(_is_open, dims)) < 2 for dims in self._dims.values())
        first = len(places) == len(self._dims) and all(axis == 0 for axis, _ in places)
        same = None not in [dim for _, dim in places] or len(places) == 1
        return bool(places) and once and len(named) <= 1 and (first or same)

    @property
    def batch_first(self) -> bool:
        """Whether the open batch is the first dimension of every input, as is usual."""
        return self.dynamic_batch and all(dims and _is_open(dims[0]) for dims in self._dims.values())

    def _check_open(self) -> None:
        for name, dims in self._dims.items():
            for dim in dims:
                if _is_open(dim):
                    if self.dynamic_batch:
                        continue
                    raise self.open_error("only one may stay open, as their batch, under one name")
                if not isinstance(dim, int):
                    raise ShapeError(f"input '{name}': a shape must be a sequence of integers, found {dims!r}")
                if dim < 1:
                    raise ShapeError(
                        f"input '{name}' has shape {dims}, but each dimension must be at least 1; give "
                        f"a valid one: shapes={{{name!r}: ...}}"
                    )

    def open_error(self, reason: str) -> ShapeError:
        """What is open, why it cannot stay so, and shapes that work."""
        unfixed = {name: dims for name, dims in self._dims.items() if any(map(_is_open, dims))}
        shown = ", ".join(f"{name} {_show(dims)}" for name, dims in unfixed.items())
        shapes = {name: tuple(1 if _is_open(dim) else dim for dim in dims) for name, dims in unfixed.items()}
        options = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in shapes.items())
        unnamed = any(None in dims for dims in unfixed.values()) or any(name in self._given for name in unfixed)
        names = sorted({dim for dims in unfixed.values() for dim in dims if isinstance(dim, str)})
        example: dict[str, Any] = shapes if unnamed else dict.fromkeys(names, 1)
        return ShapeError(
            f"the model leaves dimensions of its inputs open: {shown}; {reason}: fix them, for example "
            f"from_onnx(..., shapes={example!r}), or {options}{self._branches()}"
        )

    def _branches(self) -> str:
        """How the inputs are bound that choose branches, as of merged decoders, in which the shapes differ."""
        chosen = {operator.inputs[0] for operator in self.model.operators if operator.op_type == "If"}
        for operator in needed(self.model.operators, chosen, values_read, values_written):
            chosen.update(values_read(operator))
        flags = [one.name for one in self.model.inputs if one.name in chosen and one.shape in ((), (1,))]
        if not flags:
            return ""
        constants = ", ".join(f"{name!r}: …" for name in flags)
        options = " ".join(f"--constant {name}=…" for name in flags)
        return (
            f"; the model chooses between branches by {', '.join(map(repr, flags))}: bind it, and import the model "
            f"once for each branch, constants={{{constants}}} or {options}"
        )


def fixing_hint(model: Model) -> str:
    """How a user can fix the batch size of this model."""
    names = [dim for value in model.inputs for dim in (value.shape or ())[:1] if isinstance(dim, str)]
    if names:
        return f"from_onnx(..., shapes={{{names[0]!r}: 1}})"
    shapes = {value.name: (1, *(value.shape or ())[1:]) for value in model.inputs}
    return f"from_onnx(..., shapes={shapes!r})"


def _size(given: Any) -> Any:
    """The size given for a dimension."""
    return given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given


def _is_open(dim: Any) -> bool:
    return dim is None or isinstance(dim, str)


def _is_integer(dim: Any) -> bool:
    try:
        operator_index(dim)
    except TypeError:
        return False
    return True


def _show(dims: Sequence[Any]) -> str:
    return f"({', '.join('?' if dim is None else str(dim) for dim in dims)})"
