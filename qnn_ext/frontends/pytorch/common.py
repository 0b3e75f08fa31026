"""What both halves of the PyTorch frontend need: torch itself and example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ModelFormatError, QnnError, ShapeError


def import_torch() -> Any:
    """The torch module. When it is missing, raises QnnError saying how to install it."""
    try:
        import torch
    except ImportError as error:
        raise QnnError(f"reading PyTorch models needs torch: pip install 'qnn-ext[torch]' ({error})") from error
    return torch


def example_values(
    example_inputs: Any, shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None, names: Sequence[str]
) -> list[Any]:
    """One example per input in model order: tensors as torch tensors, anything else as given.

    example_inputs: a tuple or dict of arrays, tensors, lists or dictionaries of them, or plain Python values; a lone
                    tensor for a lone input
    shapes:         name -> shape, or one shape per input; stands for float32 zeros

    Raises ShapeError when what is given does not fit the model's inputs.
    """
    torch = import_torch()
    if example_inputs is not None:
        return [_as_tensor(value) for value in _in_order(example_inputs, names, "example_inputs")]
    if shapes is None:
        wanted = ", ".join(f"{name!r}: (1, ...)" for name in names)
        raise ShapeError(
            f"the file does not contain the shapes of the inputs {', '.join(map(repr, names))}: give them, on the "
            f"command line with --shape {names[0]}=1,3,224,224, in Python with shapes={{{wanted}}} or "
            "example_inputs=(array, ...)"
        )
    if _is_lone_shape(shapes):
        shapes = [shapes]  # type: ignore[list-item]
    given = _in_order(shapes, names, "shapes")
    return [torch.zeros(_as_shape(name, shape)) for name, shape in zip(names, given, strict=True)]


def left_out(example_inputs: Any, shapes: Any, names: Sequence[str], constants: Mapping[str, Any]) -> list[str]:
    """The inputs that are not bound and have neither an example nor a shape, where any have: the last ones, or those
    that a dictionary lacks."""
    given = shapes if example_inputs is None else example_inputs
    free = [name for name in names if name not in constants]
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [name for name in free if name not in given]
    alone = not isinstance(given, (tuple, list)) or (example_inputs is None and _is_lone_shape(given))
    return free[1 if alone else len(given) :]


def _is_lone_shape(shapes: Any) -> bool:
    if not isinstance(shapes, Sequence) or not shapes:
        return False
    return all(isinstance(dim, (int, np.integer)) for dim in shapes)


def _in_order(values: Any, names: Sequence[str], argument: str) -> list[Any]:
    if isinstance(values, Mapping):
        unknown = [name for name in values if name not in names]
        missing = [name for name in names if name not in values]
        if unknown or missing:
            problem = f"has an entry {unknown[0]!r}" if unknown else f"lacks an entry for {missing[0]!r}"
            raise ShapeError(f"{argument} {problem}; the model's inputs are {', '.join(map(repr, names))}")
        return [values[name] for name in names]
    items = list(values) if isinstance(values, (tuple, list)) else [values]
    if len(items) != len(names):
        raise ShapeError(
            f"{argument} holds {len(items)} values, but the model takes {len(names)}: {', '.join(map(repr, names))}"
        )
    return items


def _as_tensor(value: Any) -> Any:
    torch = import_torch()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value).copy())
    if isinstance(value, Mapping):
        return {key: _as_tensor(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_as_tensor(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _as_shape(name: str, shape: Any) -> tuple[int, ...]:
    try:
        dims = tuple(int(dim) for dim in shape)
    except TypeError:
        raise ShapeError(f"input {name!r}: a shape must be a sequence of integers, found {shape!r}") from None
    if any(dim < 1 for dim in dims):
        raise ShapeError(f"input {name!r} has shape {dims}, but each dimension must be at least 1")
    return dims


def check_quotient(dividend: Any, divisor: Any) -> None:
    """Raises ModelFormatError where truncating integer division of a tensor would kill the process: PyTorch uses the
    CPU's instruction, and the lowest integer divided by −1 has no quotient."""
    torch = import_torch()
    dtype = torch.result_type(dividend, divisor)
    if dtype not in (torch.int8, torch.int16, torch.int32, torch.int64):
        return
    least = torch.iinfo(dtype).min
    if bool((torch.as_tensor(divisor) == -1).any()) and bool((torch.as_tensor(dividend) == least).any()):
        raise ModelFormatError(f"the model divides the {dtype} {least} by −1, which overflows")
