"""from_relax: a Relax function that a user wrote, of `R.qnn` operators and of Relax's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm import IRModule, relax, tirx

from ..entry_points import load_plugins
from ..errors import ShapeError
from ..limits import Limits, limited
from ..module import QnnModule, TensorSpec
from ..op.base import constant
from ..passes.inline import emitted
from .assembly import Assembly
from .batch import with_open_batch
from .bound import bound_value, check_bound


def from_relax(
    mod: IRModule | relax.Function, constants: Mapping[str, Any] | None = None, limits: Limits | None = None
) -> QnnModule:
    """A module of a function of tensors that returns a tensor or a tuple of them.

    mod:    the function, or a module with it as `main`; functions that `main` calls become part of it
    constants: parameter → value, of those that are weights; the others are the inputs, under their own names. Outputs
            are named output_0, output_1, …
    limits: the limits of the import, by default `qnn_ext.Limits()`

    A variable as the first dimension of every input, (n, 3, 224, 224), stands for batches of any size, if every
    operator treats samples independently. Raises ShapeError for other open dimensions and for values that do not fit,
    UnsupportedOperatorError for operators that mix samples, LimitError.
    """
    load_plugins()
    mod = mod if isinstance(mod, IRModule) else IRModule({"main": mod})
    given = dict(constants or {})
    main = mod["main"]
    check_bound(given, [param.name for param in main.params], "the function")
    inputs = [param for param in main.params if param.name not in given]
    with limited(limits):
        batch = _batch(inputs)
        if batch is None:
            return _imported(mod, given, None, 1)
        remedy = f"give the inputs a number in the place of {batch.name}"
        return with_open_batch(partial(_imported, mod, given, batch), remedy)


def _batch(inputs: list[relax.Var]) -> Any:
    """The variable that stands for the batch size; None if all shapes are known."""
    shapes = {param.name: _shape(param) for param in inputs}
    open_dims = {
        name: [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)] for name, shape in shapes.items()
    }
    if not any(open_dims.values()):
        return None
    firsts = [shape[0] for shape in shapes.values() if shape]
    same = all(isinstance(dim, tirx.Var) and dim.same_as(firsts[0]) for dim in firsts)
    if not same or any(axes != [0] for axes in open_dims.values()):
        found = ", ".join(f"{name} ({', '.join(map(str, shape))})" for name, shape in shapes.items())
        raise ShapeError(
            "only the first dimension may be open, under one name for all inputs, and weights go into constants; "
            f"found {found}"
        )
    return firsts[0]


def _shape(param: relax.Var) -> list[Any]:
    if not isinstance(param.ty, relax.TensorType) or param.ty.shape is None or not hasattr(param.ty.shape, "values"):
        raise ShapeError(f"parameter {param.name!r} must be a tensor of known rank and dtype, found {param.ty}")
    return [int(dim) if isinstance(dim, tirx.IntImm) else dim for dim in param.ty.shape.values]


def _imported(mod: IRModule, constants: Mapping[str, Any], batch: Any, size: int) -> QnnModule:
    """The module with this size in the place of the variable `batch`."""
    if batch is not None:
        mod = relax.transform.BindSymbolicVars({batch: size})(mod)
    assembly, specs, values = Assembly(), [], []
    for param in mod["main"].params:
        shape, dtype = tuple(_shape(param)), str(param.ty.dtype)
        if param.name in constants:
            values.append(constant(bound_value(param.name, constants[param.name], dtype, shape)))
        else:
            specs.append(TensorSpec(param.name, shape, dtype))
            values.append(assembly.input(param.name, shape, dtype))
    ir = assembly.module(lambda: emitted(mod, values, assembly.emit))
    outputs = [
        TensorSpec(f"output_{index}", tuple(int(dim) for dim in ty.shape), str(ty.dtype))
        for index, ty in enumerate(ir["main"].ret_ty.fields)
    ]
    return QnnModule(ir, tuple(specs), tuple(outputs), source="relax")
