"""Modules with loops, as frontends write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import IRModule, relax

from qnn_ext.frontends.assembly import Assembly
from qnn_ext.module import QnnModule, TensorSpec

Walk = Callable[..., Sequence[relax.Expr]]


def assembled(inputs: Sequence[tuple[str, Sequence[int], str]], walk: Walk) -> IRModule:
    """`main` over the inputs (name, shape, dtype); walk(assembly, *inputs) emits it and returns the results."""
    assembly = Assembly(unfolded=("dequantize",))
    params = [assembly.input(*one) for one in inputs]
    return assembly.module(lambda: walk(assembly, *params))


def as_model(mod: IRModule) -> QnnModule:
    """A module whose inputs and outputs are named after their positions."""

    def spec(name: str, ty: relax.TensorType) -> TensorSpec:
        return TensorSpec(name, tuple(int(dim) for dim in ty.shape), str(ty.dtype))

    main = mod["main"]
    inputs = [spec(f"x{index}", param.ty) for index, param in enumerate(main.params)]
    outputs = [spec(f"y{index}", ty) for index, ty in enumerate(main.ret_ty.fields)]
    return QnnModule(mod, tuple(inputs), tuple(outputs))
