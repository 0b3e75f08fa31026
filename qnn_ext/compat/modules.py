"""tvm.IRModule as Relay's scripts use it: a function of expressions, or an imported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import QnnError
from ..module import QnnModule
from ..quantize.stages import bind_parameters
from .absent import refuse
from .arrays import array_of
from .expressions import Call, Expr, Function, GlobalVar, Op, TensorType, TupleWrapper, Var, as_expr, free_vars
from .inlining import inline
from .lowering import MODEL, OPERATORS, Context, lower


class IRModule:
    """A module with one function, `main`.

    function: the function; of an imported model, one whose body is a single call that stands for it
    """

    def __init__(self, functions: Mapping[Any, Function] | None = None, function: Function | None = None) -> None:
        if functions:
            if len(functions) > 1:
                refuse("an IRModule of several functions", "call a relay.Function directly, which inlines it")
            (function,) = functions.values()
        self.function = function

    @staticmethod
    def from_expr(expr: Any, functions: Any = None, type_defs: Any = None) -> IRModule:
        """A module whose `main` is a function, or computes an expression from the variables it reads."""
        expr = as_expr(expr)
        return IRModule(function=expr if isinstance(expr, Function) else Function(free_vars(expr), expr))

    @staticmethod
    def from_model(module: QnnModule) -> IRModule:
        """A module that is an imported model."""
        params = [Var(spec.name, TensorType(spec.shape, spec.dtype)) for spec in module.inputs]
        return IRModule(function=Function(params, Call(Op(MODEL), params, module=module)))

    def __getitem__(self, name: Any) -> Function:
        if str(getattr(name, "name_hint", name)) != "main" or self.function is None:
            raise ValueError(f"Cannot find global var {name!r} in the module; it has main")
        return self.function

    def __setitem__(self, name: Any, function: Any) -> None:
        if str(getattr(name, "name_hint", name)) != "main":
            refuse("an IRModule of several functions", "call a relay.Function directly, which inlines it")
        self.function = IRModule.from_expr(function).function

    def get_global_var(self, name: str) -> GlobalVar:
        return GlobalVar(name)

    def get_global_vars(self) -> list[GlobalVar]:
        return list(self.functions)

    @property
    def functions(self) -> dict[GlobalVar, Function]:
        return {} if self.function is None else {GlobalVar("main"): self.function}

    def model(self, params: Mapping[str, Any] | None = None, compute_dtype: str = "int64") -> QnnModule:
        """The module for qnn_ext's own API, with `params` as constants; names that are no inputs are ignored."""
        if self.function is None:
            raise QnnError("the module is empty: give it a main function")
        imported = lower(self.function, None, compute_dtype) if _is_model(self.function) else None
        if imported is None:
            return lower(self.function, params, compute_dtype)
        names = [spec.name for spec in imported.inputs]
        given = {name: array_of(value) for name, value in (params or {}).items() if name in names}
        return bind_parameters(imported, given) if given else imported

    def astext(self, show_meta_data: bool = False, annotate: Any = None) -> str:
        """The module as TVMScript, of today's operators."""
        return self.model().script()

    def script(self, show_meta: bool = False) -> str:
        return self.model().script(show_meta)

    def show(self) -> None:
        print(self.script())

    def __str__(self) -> str:
        return self.astext()


def _is_model(function: Function) -> bool:
    return isinstance(function.body, Call) and function.body.op == Op(MODEL)


def _results(c: Context, *inputs: Any, module: QnnModule) -> Any:
    results = inline(module, list(inputs), c.emit)
    return results if len(results) > 1 else results[0]


OPERATORS[MODEL] = _results


def module_of(mod: Any) -> IRModule:
    """The IRModule of whatever `relay.build` takes: a module, a function or an expression."""
    if isinstance(mod, IRModule):
        return mod
    if isinstance(mod, QnnModule):
        return IRModule.from_model(mod)
    if isinstance(mod, (Expr, TupleWrapper)):
        return IRModule.from_expr(mod)
    raise QnnError(
        f"a model must be an IRModule or a relay.Function of qnn_ext's façade, found {type(mod).__name__}; "
        "qnn_ext.build takes what qnn_ext.from_onnx and its siblings return"
    )


def named(module: QnnModule, names: list[str]) -> QnnModule:
    """An imported model under other input names."""
    return replace(
        module, inputs=tuple(replace(spec, name=name) for spec, name in zip(module.inputs, names, strict=True))
    )
