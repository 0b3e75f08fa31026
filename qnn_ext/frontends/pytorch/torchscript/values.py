"""What the walk keeps for each TorchScript value: PyTorch's own value for the example inputs, and the expression.

Tensors that depend on the model's inputs are `Traced`. Everything else (sizes, flags, weights, packed parameters) is
the plain Python or PyTorch value, since the example fixes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.base import constant
from ....qparams import QParams
from ..common import import_torch


@dataclass(eq=False)
class Traced:
    """A tensor computed from the inputs. In-place operators replace both fields.

    example: what PyTorch computes for the example inputs; its shape, dtype, memory format and QParams are exact
    expr:    the value in the module under construction; for a quantized tensor, its integers
    """

    example: Any
    expr: relax.Expr
    stale: bool = False  # an in-place operator changed this memory through another view


@dataclass(eq=False)
class PackedData(Traced):
    """The data of packed sequences: `example` has a row for each step of each sequence, `expr` is padded.

    expr:    (steps, batch, …); beyond a sequence's end it may be anything
    lengths: (batch,) int32, from 1 to steps
    """

    lengths: relax.Expr | None = None


@dataclass(eq=False)
class BatchSizes(Traced):
    """How many of the packed sequences have each step; lengths: those of the data."""

    lengths: relax.Expr | None = None


@dataclass(frozen=True)
class Reference:
    """A module, or an object that a module holds, with its path from the model."""

    target: Any
    path: str

    def path_of(self, name: str) -> str:
        """The path of an attribute."""
        return joined(self.path, name)


def joined(path: str, name: str) -> str:
    """The path of an attribute of what has a path; the model itself has none."""
    return f"{path}.{name}" if path else name


def plain(value: Any) -> Any:
    """The value as passed to PyTorch's operators: examples instead of traced tensors."""
    if isinstance(value, Traced):
        return value.example
    if isinstance(value, Reference):
        return value.target
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def traced_in(value: Any) -> Iterator[Traced]:
    """All traced tensors within a value."""
    if isinstance(value, Traced):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from traced_in(item)
    elif isinstance(value, dict):
        yield from traced_in(list(value.values()))


def flattened(value: Any) -> Iterator[Any]:
    """All values within lists, tuples and dictionaries."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flattened(item)
    elif isinstance(value, dict):
        yield from flattened(list(value.values()))
    else:
        yield value


def overlap(one: Any, other: Any) -> bool:
    """Whether two torch tensors have elements in the same memory."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    if one.dtype != other.dtype:
        return True  # the same bytes as other numbers
    torch = import_torch()
    marked = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    first, second = (marked.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (one, other))
    first.fill_(True)
    return bool(second.any())


def qparams_of(tensor: Any) -> QParams | None:
    """The QParams of a quantized torch tensor, None for any other. Raises UnsupportedOperatorError for per-channel
    activations."""
    torch = import_torch()
    if not isinstance(tensor, torch.Tensor) or not tensor.is_quantized:
        return None
    if tensor.qscheme() != torch.per_tensor_affine:
        raise UnsupportedOperatorError(
            f"a quantized activation with {tensor.qscheme()}; only per-tensor ones are supported"
        )
    return QParams(np.float64(tensor.q_scale()), tensor.q_zero_point(), dtype_name(tensor))


def dtype_name(tensor: Any) -> str:
    """The dtype of the integers or floats in a torch tensor, as named by NumPy and TVM."""
    names = {"quint8": "uint8", "qint8": "int8", "qint32": "int32"}
    name = str(tensor.dtype).removeprefix("torch.")
    return names.get(name, name)


def array_of(tensor: Any) -> np.ndarray:
    """The values of a torch tensor, or the integers of a quantized one, as an array. Raises UnsupportedOperatorError
    for dtypes that NumPy lacks."""
    tensor = tensor.detach()
    if dtype_name(tensor).startswith(("bfloat16", "float8")):
        raise UnsupportedOperatorError(
            f"a constant of dtype {tensor.dtype}; call model.float() before the model is traced, without autocast, or "
            "export it with torch.export, whose programs are computed in float32"
        )
    return np.array((tensor.int_repr() if tensor.is_quantized else tensor).numpy(), order="C")


def as_real(tensor: Any) -> Any:
    """A tensor as its expression is: of complex numbers the real and imaginary parts, along a further axis at the
    end."""
    torch = import_torch()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def constant_of(tensor: Any) -> relax.Expr:
    """A torch tensor as a Relax constant."""
    return constant(array_of(tensor))
