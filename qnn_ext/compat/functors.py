"""relay.ExprFunctor, ExprVisitor and ExprMutator; what is built on them: bind, legalizations of a script's own, and
structural equality. They see expressions: an imported model is one call of `qnn_ext.model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..module import QnnModule
from .arrays import array_of
from .expressions import (
    Call,
    Constant,
    Expr,
    Function,
    FuncType,
    Op,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TupleWrapper,
    Var,
    as_expr,
)
from .modules import IRModule

_METHODS = {
    Function: "visit_function",
    Call: "visit_call",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Constant: "visit_constant",
    Var: "visit_var",
    Op: "visit_op",
}


class ExprFunctor:
    """Calls the method for an expression's kind, `visit_call` and its siblings, once for each expression."""

    def __init__(self) -> None:
        self.memo_map: dict[Any, Any] = {}

    def visit(self, expr: Any) -> Any:
        """The method's result."""
        expr = expr.tuple_value if isinstance(expr, TupleWrapper) else expr
        if id(expr) not in self.memo_map:
            kind = next((kind for kind in type(expr).__mro__ if kind in _METHODS), None)
            if kind is None:
                raise TypeError(f"{type(self).__name__} cannot visit a {type(expr).__name__}")
            self.memo_map[id(expr)] = (getattr(self, _METHODS[kind])(expr), expr)  # kept, so that its id is its own
        return self.memo_map[id(expr)][0]


class ExprVisitor(ExprFunctor):
    """Visits what an expression is computed from."""

    def visit_function(self, fn: Function) -> None:
        for param in fn.params:
            self.visit(param)
        self.visit(fn.body)

    def visit_call(self, call: Call) -> None:
        self.visit(call.op)
        for arg in call.args:
            self.visit(arg)

    def visit_tuple(self, tup: Tuple) -> None:
        for field in tup.fields:
            self.visit(field)

    def visit_tuple_getitem(self, op: TupleGetItem) -> None:
        self.visit(op.tuple_value)

    def visit_constant(self, const: Constant) -> None:
        pass

    def visit_var(self, var: Var) -> None:
        pass

    def visit_op(self, op: Op) -> None:
        pass


class ExprMutator(ExprFunctor):
    """Builds an expression again from its rewritten parts."""

    def visit_function(self, fn: Function) -> Any:
        params = [self.visit(param) for param in fn.params]
        return Function(params, self.visit(fn.body), fn.ret_type, fn.type_params, fn.attrs)

    def visit_call(self, call: Call) -> Any:
        return Call(self.visit(call.op), [self.visit(arg) for arg in call.args], call.attrs)

    def visit_tuple(self, tup: Tuple) -> Any:
        return Tuple([self.visit(field) for field in tup.fields])

    def visit_tuple_getitem(self, op: TupleGetItem) -> Any:
        return TupleGetItem(self.visit(op.tuple_value), op.index)

    def visit_constant(self, const: Constant) -> Any:
        return const

    def visit_var(self, var: Var) -> Any:
        return var

    def visit_op(self, op: Op) -> Any:
        return op


# ---- substitution ------------------------------------------------------------------------------------------------


class _Bind(ExprMutator):
    def __init__(self, values: Mapping[int, Expr]) -> None:
        super().__init__()
        self._values = values

    def visit_var(self, var: Var) -> Any:
        return self._values.get(id(var), var)


def bind(expr: Any, binds: Mapping[Var, Any]) -> Any:
    """relay.bind: variables replaced by expressions; of a function, these parameters are gone."""
    expr, values = as_expr(expr), {id(var): as_expr(value) for var, value in binds.items()}
    if not isinstance(expr, Function):
        return _Bind(values).visit(expr)
    params = [param for param in expr.params if id(param) not in values]
    return Function(params, _Bind(values).visit(expr.body), expr.ret_type, expr.type_params, expr.attrs)


def bind_params_by_name(func: Function, params: Mapping[str, Any]) -> Function:
    """relay.build_module.bind_params_by_name: parameters with these names become constants."""
    named = (param for param in func.params if param.name_hint in params)
    return bind(func, {param: Constant(array_of(params[param.name_hint])) for param in named})


# ---- legalization by a script's own rules ------------------------------------------------------------------------

Rule = Callable[[Any, Sequence[Expr], Sequence[Any]], Any]
RULES: dict[tuple[str, str], Rule] = {}
"""(operator, name of the attribute) -> a function of (attributes, arguments, types of these and of the result), which
returns another expression, or None to keep the call."""


class _Legalize(ExprMutator):
    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def visit_call(self, call: Call) -> Any:
        made = super().visit_call(call)
        rule = RULES.get((call.op.name, self._key)) if isinstance(call.op, Op) else None
        if rule is None:
            return made
        types = [*(arg.checked_type for arg in call.args), call.checked_type]
        replaced = rule(made.attrs, made.args, types)
        return made if replaced is None else as_expr(replaced)


def legalized(mod: IRModule, key: str) -> IRModule:
    """The module with every call rewritten by its operator's rule; without rules, the same module."""
    if mod.function is None or not any(name == key for _, name in RULES):
        return mod
    return IRModule(function=_Legalize(key).visit(mod.function))


# ---- equality ----------------------------------------------------------------------------------------------------


_OURS = (IRModule, Expr, Op, TensorType, TupleType, FuncType)
_assert_equal = tvm.ir.assert_structural_equal


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """tvm.ir.structural_equal: the same up to the names of parameters, and with `map_free_vars` of free variables."""
    if isinstance(lhs, IRModule) and isinstance(rhs, IRModule):
        if lhs.function is None or rhs.function is None:
            return lhs.function is rhs.function
        return structural_equal(lhs.function, rhs.function)
    if isinstance(lhs, (Expr, Op)) and isinstance(rhs, (Expr, Op)):
        return _Comparison(map_free_vars).equal(lhs, rhs)
    if isinstance(lhs, _OURS) or isinstance(rhs, _OURS):
        return type(lhs) is type(rhs) and lhs == rhs
    return bool(tvm_ffi.structural_equal(lhs, rhs, map_free_vars))


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """tvm.ir.assert_structural_equal. Raises ValueError."""
    if not isinstance(lhs, _OURS) and not isinstance(rhs, _OURS):
        _assert_equal(lhs, rhs, map_free_vars)
    elif not structural_equal(lhs, rhs, map_free_vars):
        raise ValueError(f"StructuralEqual check failed:\n{lhs!r}\nis not\n{rhs!r}")


class _Comparison:
    """Compares graphs: each pair of expressions once, and each variable stands for only one other."""

    def __init__(self, map_free_vars: bool) -> None:
        self._free = map_free_vars
        self._pairs: dict[int, Any] = {}
        self._taken: set[int] = set()

    def equal(self, lhs: Any, rhs: Any) -> bool:
        lhs, rhs = (one.tuple_value if isinstance(one, TupleWrapper) else one for one in (lhs, rhs))
        if id(lhs) in self._pairs:
            return self._pairs[id(lhs)] is rhs
        if isinstance(lhs, Var) and isinstance(rhs, Var):
            return lhs is rhs or (self._free and self._matched(lhs, rhs))
        same = type(lhs) is type(rhs) and self._same_parts(lhs, rhs)
        if same:
            self._pairs[id(lhs)] = rhs
        return same

    def _matched(self, lhs: Var, rhs: Var) -> bool:
        if id(rhs) in self._taken or lhs.type_annotation != rhs.type_annotation:
            return False
        self._taken.add(id(rhs))
        self._pairs[id(lhs)] = rhs
        return True

    def _same_parts(self, lhs: Any, rhs: Any) -> bool:
        if isinstance(lhs, Op):
            return lhs == rhs
        if isinstance(lhs, Constant):
            return lhs.data.dtype == rhs.data.dtype and np.array_equal(array_of(lhs.data), array_of(rhs.data))
        if isinstance(lhs, Function):
            pairs = zip(lhs.params, rhs.params, strict=False)
            same = len(lhs.params) == len(rhs.params) and all(self._matched(*pair) for pair in pairs)
            return same and self.equal(lhs.body, rhs.body)
        if isinstance(lhs, Call) and not (self.equal(lhs.op, rhs.op) and _same_attributes(lhs.attrs, rhs.attrs)):
            return False
        if isinstance(lhs, TupleGetItem) and lhs.index != rhs.index:
            return False
        parts = zip(lhs.children(), rhs.children(), strict=False)
        return len(lhs.children()) == len(rhs.children()) and all(self.equal(*pair) for pair in parts)


def _same_attributes(lhs: Any, rhs: Any) -> bool:
    one, two = vars(lhs), vars(rhs)
    return one.keys() == two.keys() and all(_same_value(one[name], two[name]) for name in one)


def _same_value(one: Any, two: Any) -> bool:
    if isinstance(one, QnnModule) and isinstance(two, QnnModule):
        return bool(tvm_ffi.structural_equal(one.ir, two.ir))
    one, two = (list(value) if isinstance(value, (tuple, list)) else value for value in (one, two))
    return bool(one == two)
