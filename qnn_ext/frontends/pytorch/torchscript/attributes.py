"""Attributes of the model that a call changes: tensors are states, which the engine keeps from call to call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from tvm import relax

from ....errors import UnsupportedOperatorError
from ....limits import charge
from ....module import State
from ....op.base import shape_of
from ...assembly import Assembly
from ..common import import_torch
from .evaluate import where
from .values import Reference, Traced, array_of, constant_of, dtype_name, joined, overlap, qparams_of


class ChangedAttribute(BaseException):
    """An attribute is changed that was taken for a constant: the import begins anew. It is no Exception, as those
    become errors that name an operator."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def assigned_attributes(graph: Any) -> frozenset[str]:
    """The paths of the attributes that a graph assigns, in its blocks too."""
    owner = next(graph.inputs()).debugName()
    found = ((node.s("name"), _path(next(node.inputs()), owner)) for node in _nodes(graph, "prim::SetAttr"))
    return frozenset(joined(path, name) for name, path in found if path is not None)


def _nodes(block: Any, kind: str) -> Iterator[Any]:
    for node in block.nodes():
        if node.kind() == kind:
            yield node
        for inner in node.blocks():
            yield from _nodes(inner, kind)


def _path(value: Any, owner: str) -> str | None:
    """That of a module within the model; None for other objects."""
    if value.debugName() == owner:
        return ""
    node = value.node()
    if node.kind() != "prim::GetAttr":
        return None
    path = _path(next(node.inputs()), owner)
    return None if path is None else joined(path, node.s("name"))


class Attributes:
    """The values of such attributes during a call.

    changing: their paths; traced: makes a traced tensor of an example and its expression
    """

    def __init__(self, changing: Collection[str], assembly: Assembly, traced: Callable[..., Traced]) -> None:
        self._changing, self._assembly, self._traced = changing, assembly, traced
        self._before: dict[str, Any] = {}  # of those that are read before they are assigned
        self._now: dict[str, Any] = {}

    def is_changing(self, owner: Any, name: str) -> bool:
        return isinstance(owner, Reference) and owner.path_of(name) in self._changing

    def read(self, node: Any, owner: Reference, name: str) -> Any:
        """The value that an attribute has now."""
        path = owner.path_of(name)
        if path not in self._now:
            self._before[path] = value = getattr(owner.target, name)
            if isinstance(value, import_torch().Tensor):
                value = self._state(node, path, value)
            elif not (value is None or isinstance(value, (bool, int, float, str))):
                raise UnsupportedOperatorError(
                    f"{where(node)}: the model changes its attribute {path!r}, a {type(value).__name__}; only a tensor "
                    "can be a state that is kept for the next call"
                )
            self._now[path] = value
        return self._now[path]

    def _state(self, node: Any, path: str, value: Any) -> Traced:
        if value.is_complex() or qparams_of(value) is not None:
            raise UnsupportedOperatorError(
                f"{where(node)}: the model changes its attribute {path!r}, but complex and quantized tensors can be no "
                "states"
            )
        charge(tuple(value.shape), f"state {path!r}")
        return self._traced(value.detach().clone(), self._assembly.state(tuple(value.shape), dtype_name(value)))

    def assign(self, owner: Reference, name: str, value: Any) -> None:
        self._now[owner.path_of(name)] = value

    def shares(self, tensor: Any) -> bool:
        """Whether a constant has elements in common with a state."""
        return any(isinstance(one, import_torch().Tensor) and overlap(one, tensor) for one in self._before.values())

    def states(self, source: str) -> list[tuple[State, relax.Expr]]:
        """The states, each with its value after the call. Raises UnsupportedOperatorError where the next call would be
        another one: by an attribute that is no tensor, or a tensor of another shape."""
        result = []
        for path, before in self._before.items():
            now = self._now[path]
            if not isinstance(before, import_torch().Tensor):
                if type(now) is not type(before) or now != before:
                    raise _another_call(source, path, repr(before), "another value")
                continue
            described = f"{dtype_name(before)} {tuple(before.shape)}"
            if now is None:
                raise _another_call(source, path, described, "None")
            expr = now.expr if isinstance(now, Traced) else constant_of(now)
            found = f"{expr.ty.dtype} {shape_of(expr)}"
            if found != described or self._assembly.builder.sizes.of(expr):
                raise _another_call(source, path, described, found)
            result.append((State(path, array_of(before).copy()), expr))
        return result


def _another_call(source: str, path: str, before: str, now: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{source}: a call changes the attribute {path!r} of the model from {before} to {now}, and the next one would "
        "compute something else; run the model once on such inputs before the import"
    )
