"""Tensors that share their elements, and what an in-place operator changes: other views of them, constants, and
tensors that the model keeps between calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from tvm import relax

from ....errors import UnsupportedOperatorError
from ...assembly import Assembly
from ..common import import_torch
from .values import Traced, as_real, constant_of, dtype_name, flattened, overlap, traced_in
from .views import rewritten


class SharedElements:
    """The tensors of one import."""

    def __init__(self, assembly: Assembly, environment: dict[str, Any], source: str) -> None:
        """environment: the values of the graph by name; of what an in-place operator changes, other ones"""
        self._assembly, self._environment, self._source = assembly, environment, source
        self._tensor = import_torch().Tensor
        self._traced: list[Traced] = []
        self._overwritten: list[Any] = []  # constants that an in-place operator changed
        self._held: list[tuple[Any, str]] = []  # tensors that the model keeps between calls, with their paths if any

    def new(self, example: Any, expr: relax.Expr) -> Traced:
        """A tensor computed from the inputs."""
        traced = Traced(example, expr)
        self._traced.append(traced)
        return traced

    def hold(self, value: Any, path: str = "") -> Any:
        """The value, remembered if it is a tensor: the model keeps it."""
        if isinstance(value, self._tensor):
            self._held.append((value, path))
        return value

    def held_by(self, target: Any) -> Iterable[str]:
        """The paths of tensors that the model keeps and that share elements with this one; "" for those without."""
        return (path for other, path in self._held if overlap(target, other))

    def constant_to_change(self, target: Any) -> Traced:
        """A constant that an in-place operator is about to change, and with it others that share its elements, are no
        constants from now on."""
        self._overwritten.append(target)  # what else shares them, such as an item of a list, is refused when it is read
        made: dict[int, Traced] = {id(target): self.new(target, constant_of(target))}
        for name, value in self._environment.items():
            if isinstance(value, self._tensor) and overlap(value, target):
                if id(value) not in made:
                    made[id(value)] = self.new(value, constant_of(value))
                self._environment[name] = made[id(value)]
        return made[id(target)]

    def in_dtype_of(self, example: Any, expr: Any) -> Any:
        """What is written to a tensor, which keeps its dtype."""
        if not isinstance(expr, relax.Expr) or example.is_quantized:
            return expr
        expr, dtype = self._assembly.emit(expr), dtype_name(as_real(example))
        return expr if str(expr.ty.dtype) == dtype else relax.op.astype(expr, dtype)

    def overwrite(self, target: Traced, result: Traced) -> Traced:
        """An in-place operator: the tensor it writes to now holds the result, and other views of the elements that it
        changed hold them too."""
        self._traced.remove(result)
        for other in self._traced:
            if other is not target and overlap(other.example, result.example):
                found = None
                if not (self._assembly.builder.sizes.of(result.expr) or other.example.is_complex()):
                    found = rewritten(self._assembly.emit, other.example, other.expr, result.example, result.expr)
                other.stale = found is None
                other.expr = other.expr if found is None else found
        target.example, target.expr = result.example, result.expr
        return target

    def check(self, values: Any, reader: str) -> None:
        """Raises UnsupportedOperatorError if any of these is not what PyTorch has there."""
        stale = any(traced.stale for traced in traced_in(values))
        if stale or (self._overwritten and any(self._is_overwritten(value) for value in flattened(values))):
            raise UnsupportedOperatorError(
                f"{self._source}: {reader} reads a tensor that an in-place operator changed through a view: of another "
                "dtype, in a list, or with more elements than the limit `folded`; use the out-of-place operator instead"
            )

    def _is_overwritten(self, value: Any) -> bool:
        return isinstance(value, self._tensor) and any(overlap(value, other) for other in self._overwritten)

    def is_of(self, value: Any, ids: Collection[int]) -> bool:
        """Whether it is one of the tensors with these ids, or shares elements with one."""
        shared = isinstance(value, Traced) and any(
            overlap(one.example, value.example) for one in self._traced if id(one) in ids
        )
        return shared or id(value) in ids

    def __len__(self) -> int:
        return len(self._traced)

    def forget(self, count: int) -> None:
        """Forget all tensors computed behind the first `count`."""
        del self._traced[count:]
