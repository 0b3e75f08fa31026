"""Relay's expressions: a graph of calls that is typed and computed only when it becomes a module (`lowering.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from .arrays import NDArray, array_of


class Any_:
    """A dimension whose size is known only at run time."""

    def __repr__(self) -> str:
        return "?"


class TensorType:
    """Shape and dtype."""

    def __init__(self, shape: Sequence[Any], dtype: str = "float32") -> None:
        self.shape: tuple[Any, ...] = tuple(dim if isinstance(dim, Any_) else int(dim) for dim in shape)
        self.dtype = str(dtype)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        return tuple(int(dim) for dim in self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorType) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"Tensor[{self.shape}, {self.dtype}]"


class TupleType:
    """The types of several tensors."""

    def __init__(self, fields: Sequence[TensorType]) -> None:
        self.fields = list(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TupleType) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(tuple(self.fields))

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.fields))})"


class FuncType:
    """The types of a function's parameters and of its result."""

    def __init__(
        self,
        arg_types: Sequence[Any],
        ret_type: Any,
        type_params: Sequence[Any] | None = None,
        type_constraints: Sequence[Any] | None = None,
    ) -> None:
        self.arg_types, self.ret_type = list(arg_types), ret_type
        self.type_params = list(type_params or ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FuncType) and (self.arg_types, self.ret_type) == (other.arg_types, other.ret_type)

    def __hash__(self) -> int:
        return hash((tuple(self.arg_types), self.ret_type))

    def __repr__(self) -> str:
        return f"fn ({', '.join(map(repr, self.arg_types))}) -> {self.ret_type!r}"


@dataclass(frozen=True)
class Op:
    """A Relay operator by its name, "nn.conv2d"."""

    name: str

    def __repr__(self) -> str:
        return f"Op({self.name})"


@dataclass(frozen=True)
class GlobalVar:
    """The name of a function in a module, of which there is one: "main"."""

    name_hint: str

    def __repr__(self) -> str:
        return f"@{self.name_hint}"


class Attrs(SimpleNamespace):
    """The attributes of a call."""

    def keys(self) -> list[str]:
        return list(vars(self))

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]


_lowering: dict[str, Callable[[Expr], Any]] = {}


def on_lowering(type_of: Callable[[Expr], Any], text_of: Callable[[Expr], str]) -> None:
    """Register what finds an expression's type and its text: lowering, which is built on this file."""
    _lowering.update(type=type_of, text=text_of)


class Expr:
    """Base of all expressions."""

    span: Any = None

    @property
    def checked_type(self) -> Any:
        """The type of the result, a TensorType or TupleType; of a function, a FuncType. Raises ShapeError where
        operands do not fit together."""
        return _lowering["type"](self)

    def astext(self, show_meta_data: bool = False, annotate: Any = None) -> str:
        """The expression as a module in TVMScript, of today's operators."""
        return _lowering["text"](self)

    def children(self) -> Sequence[Expr]:
        """The expressions this one is computed from."""
        return ()

    def astype(self, dtype: str) -> Expr:
        return Call(Op("cast"), [self], dtype=dtype)

    def __neg__(self) -> Expr:
        return Call(Op("negative"), [self])

    def __add__(self, other: Any) -> Expr:
        return _binary("add", self, other)

    def __sub__(self, other: Any) -> Expr:
        return _binary("subtract", self, other)

    def __mul__(self, other: Any) -> Expr:
        return _binary("multiply", self, other)

    def __truediv__(self, other: Any) -> Expr:
        return _binary("divide", self, other)

    def __call__(self, *args: Any) -> Expr:
        return Call(self, args)

    def same_as(self, other: object) -> bool:
        return self is other


def _binary(name: str, left: Expr, right: Any) -> Expr:
    if not isinstance(right, Expr):
        raise TypeError(f"convert {right!r} with relay.const first, which gives it a dtype")
    return Call(Op(name), [left, right])


class Var(Expr):
    """An input of a function.

    type_annotation: a TensorType; None: the variable gets its type from what it stands for
    """

    def __init__(self, name_hint: str, type_annotation: TensorType | None = None) -> None:
        self.name_hint, self.type_annotation = name_hint, type_annotation

    @property
    def vid(self) -> SimpleNamespace:
        return SimpleNamespace(name_hint=self.name_hint)

    def __repr__(self) -> str:
        return f"%{self.name_hint}: {self.type_annotation}"


class Constant(Expr):
    """A tensor of known values."""

    def __init__(self, data: Any) -> None:
        self.data = data if isinstance(data, NDArray) else NDArray(array_of(data))

    def __repr__(self) -> str:
        return f"const({self.data.shape}, {self.data.dtype})"


class Call(Expr):
    """An operator, or a function, applied to expressions."""

    def __init__(
        self,
        op: Op | Expr,
        args: Sequence[Any],
        attrs: Attrs | None = None,
        type_args: Sequence[Any] | None = None,
        span: Any = None,
        **values: Any,
    ) -> None:
        self.op, self.args = op, [as_expr(arg) for arg in args]
        self.attrs = attrs if attrs is not None else Attrs(**values)
        self.type_args, self.span = list(type_args or ()), span

    def children(self) -> Sequence[Expr]:
        return self.args

    def __repr__(self) -> str:
        return f"{self.op!r}({', '.join(map(_short, self.args))})"


class Tuple(Expr):
    """Several results."""

    def __init__(self, fields: Sequence[Any]) -> None:
        self.fields = [as_expr(field) for field in fields]

    def children(self) -> Sequence[Expr]:
        return self.fields

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)

    def __repr__(self) -> str:
        return f"({', '.join(map(_short, self.fields))})"


class TupleGetItem(Expr):
    """One of several results."""

    def __init__(self, tuple_value: Any, index: int) -> None:
        self.tuple_value, self.index = as_expr(tuple_value), index

    def children(self) -> Sequence[Expr]:
        return (self.tuple_value,)

    def __repr__(self) -> str:
        return f"{_short(self.tuple_value)}.{self.index}"


class TupleWrapper(Expr):
    """The results of an operator that has several: indexed and iterated like a tuple."""

    def __init__(self, tuple_value: Expr, size: int) -> None:
        self.tuple_value, self.size = tuple_value, size

    def astuple(self) -> Expr:
        return self.tuple_value

    def __repr__(self) -> str:
        return repr(self.tuple_value)

    def children(self) -> Sequence[Expr]:
        return (self.tuple_value,)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Expr:
        if not -self.size <= index < self.size:
            raise IndexError(f"index {index} is out of range of {self.size} results")
        return TupleGetItem(self.tuple_value, index % self.size)

    def __iter__(self) -> Iterator[Expr]:
        return (self[index] for index in range(self.size))


class Function(Expr):
    """A function of its parameters, as Relay's modules hold it."""

    def __init__(
        self,
        params: Sequence[Var],
        body: Any,
        ret_type: Any = None,
        type_params: Sequence[Any] | None = None,
        attrs: Any = None,
        span: Any = None,
    ) -> None:
        self.params, self.body, self.ret_type = list(params), as_expr(body), ret_type
        self.type_params, self.attrs, self.span = list(type_params or ()), attrs, span

    def with_attr(self, *attrs: Any, **values: Any) -> Function:
        """The function itself: attributes told Relay's compilers what ours decides by itself."""
        return self

    def __repr__(self) -> str:
        return f"fn ({', '.join(map(repr, self.params))}) {{ {_short(self.body)} }}"


def _short(expr: Expr) -> str:
    return repr(expr) if isinstance(expr, (Var, Constant)) else "…"


def as_expr(value: Any) -> Expr:
    """The expression of a value: sequences become tuples, numbers and arrays constants."""
    if isinstance(value, TupleWrapper):
        return value.tuple_value
    if isinstance(value, Expr):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(item, Expr) for item in value):
        return Tuple(value)
    return const(value)


def var(
    name_hint: str, type_annotation: Any = None, shape: Any = None, dtype: str = "float32", span: Any = None
) -> Var:
    """relay.var: a variable with a shape and a dtype. Raises ValueError if both annotation and shape are given."""
    if type_annotation is not None and shape is not None:
        raise ValueError("give var a type annotation or a shape, not both")
    if shape is not None:
        type_annotation = TensorType(shape, dtype)
    elif isinstance(type_annotation, str):
        type_annotation = TensorType((), type_annotation)
    return Var(name_hint, type_annotation)


def const(value: Any, dtype: str | None = None, span: Any = None) -> Constant:
    """relay.const. Without `dtype`, 64 bits of a NumPy array, a list or a number become 32; an NDArray is kept."""
    if isinstance(value, NDArray) and dtype is None:
        return Constant(value)
    array = array_of(value)
    narrow = None if hasattr(value, "asnumpy") else {"int64": "int32", "float64": "float32"}.get(str(array.dtype))
    return Constant(np.array(array, dtype or narrow))


def post_order(*roots: Expr) -> Iterator[Expr]:
    """Every expression below the roots once, operands first. A function that is called counts as one; see `Call.op`."""
    done: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        expr, expanded = stack.pop()
        if id(expr) in done:
            continue
        if expanded:
            done.add(id(expr))
            yield expr
        else:
            stack.append((expr, True))
            stack.extend((child, False) for child in reversed(expr.children()) if id(child) not in done)


def free_vars(expr: Any) -> list[Var]:
    """relay.analysis.free_vars: the variables that an expression reads, in the order in which it does."""
    expr = as_expr(expr)
    if isinstance(expr, Function):
        return [item for item in free_vars(expr.body) if all(item is not param for param in expr.params)]
    return [item for item in post_order(expr) if isinstance(item, Var)]
