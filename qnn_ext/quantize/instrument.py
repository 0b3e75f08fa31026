"""The module that calibration runs: an annotated module whose outputs are the observed tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..module import QnnModule, TensorSpec
from ..op.base import call_attributes, definition_of, shape_of
from ..op.observe import OBSERVE
from ..passes.layout.forms import channels_last_order
from ..passes.layout.rules import wants_channels_last
from ..passes.rewrite import bindings_of, op_name, operands, plain_attrs, substitute

_OTHER_AXES = ("permute_dims", "reshape", "matmul", "squeeze", "expand_dims")


@dataclass(frozen=True)
class Instrumented:
    """A float module, and the sites that each of its outputs is the tensor of.

    Tensors of channels-first operators come with their channels last, as the kernels compute them: statistics do not
    mind, and no transpose is needed.
    """

    module: QnnModule
    sites: tuple[tuple[str, ...], ...]


def instrument(annotated: QnnModule, sites: Collection[str]) -> Instrumented:
    """`annotated` without observers; its outputs are the tensors of these sites, then the states."""
    main = annotated.ir["main"]
    builder = relax.BlockBuilder()
    environment: dict[Any, Any] = {}
    observed: dict[Any, list[str]] = {}
    channels_first: set[Any] = set()
    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = substitute(binding.value, environment)
                if definition_of(value) is OBSERVE:
                    environment[binding.var] = value.args[0]
                    name = call_attributes(value)["site"]
                    if name in sites:
                        observed.setdefault(value.args[0], []).append(name)
                    continue
                environment[binding.var] = builder.emit(value, name_hint=binding.var.name)
                if _is_channels_first(value, channels_first):
                    channels_first.add(environment[binding.var])
            outputs = [_with_channels_last(var, var in channels_first, builder) for var in observed]
            states = [substitute(state, environment) for state in _states(annotated)]
            result = builder.emit_output(relax.Tuple([*outputs, *states]))
        builder.emit_func_output(result)
    ir = relax.transform.DeadCodeElimination(["main"])(builder.get())
    specs = tuple(
        TensorSpec(names[0], shape_of(output), str(output.ty.dtype))
        for output, names in zip(outputs, observed.values(), strict=True)
    )
    return Instrumented(replace(annotated, ir=ir, outputs=specs), tuple(map(tuple, observed.values())))


def _is_channels_first(value: Any, known: Collection[Any]) -> bool:
    """Whether the kernels compute a tensor of this module's NCHW with its channels last, as far as one can foresee."""
    if wants_channels_last(value, any_order=True):
        return True
    if not isinstance(value, relax.Call) or op_name(value) in _OTHER_AXES:
        return False
    return any(operand in known for operand in operands(value) if isinstance(operand, relax.Var))


def _with_channels_last(var: Any, channels_first: bool, builder: relax.BlockBuilder) -> Any:
    order = channels_last_order(len(shape_of(var))) if channels_first and len(shape_of(var)) in (3, 4, 5) else None
    return var if order is None else builder.emit(relax.op.permute_dims(var, list(order)))


def _states(module: QnnModule) -> Sequence[Any]:
    """The new values of the states, which follow the outputs in the result of `main`."""
    if not module.states:
        return []
    main = module.ir["main"]
    result = main.body.body
    for binding in bindings_of(main):
        if binding.var.same_as(result):
            result = binding.value
    return list(result.fields)[len(module.outputs) :]
