"""Sizes known only at run time: collected into one vector, a result of `main` after the model's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import IRModule, relax

from ..errors import QnnError
from ..module import TensorSpec
from ..op.base import call_attributes, definition_of
from ..op.loop import results_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..op.trim import TRIM
from .rewrite import Emit, Rebuild, bindings_of, rewrite, without_dead_code


def collect_sizes(mod: IRModule, outputs: Sequence[TensorSpec]) -> IRModule:
    """`mod` with whole tensors in place of trimmed ones. If outputs are trimmed, the sizes of these along their
    `bounded` axes, in order, are the result after the last output, int64 of shape (number of them,)."""
    main = mod["main"]
    values = {binding.var: binding.value for binding in bindings_of(main)}
    trims = {var: value for var, value in values.items() if definition_of(value) is TRIM}
    if not any(spec.bounded for spec in outputs):
        return drop_trims(mod) if trims else mod
    new, results = Rebuild(main), list(results_of(main))
    with new.main():
        for binding in new.bindings:
            if binding.var in trims:
                new.environment[binding.var] = new.substituted(binding.value.args[0])
            else:
                new.keep(binding)
        parts = [
            new.builder.emit(relax.op.reshape(new.substituted(size), (1,)))
            for spec, result in zip(outputs, results, strict=False)
            for size in _sizes(spec, result, values)
        ]
        sizes = new.builder.emit(relax.op.concat(parts, 0))
        fields = [new.substituted(result) for result in results]
        new.result = relax.Tuple([*fields[: len(outputs)], sizes, *fields[len(outputs) :]])
    return without_dead_code(new.module())


def _sizes(spec: TensorSpec, result: Any, values: Mapping[Any, Any]) -> list[relax.Expr]:
    """The size of an output along each of its bounded axes. Elementwise operators may follow what trims it, such as the
    dequantization of an output."""
    found: dict[int, relax.Expr] = {}
    while isinstance(values.get(result), relax.Call):
        call = values[result]
        if definition_of(call) is TRIM:
            found.setdefault(call_attributes(call)["axis"], call.args[1])
        elif traits_of(call).kind is not Kind.POINTWISE:
            break
        result = call.args[0]
    if set(found) != set(spec.bounded):
        raise QnnError(
            f"output {spec.name!r} has sizes known only at run time along {spec.bounded}, found {set(found)}"
        )
    return [found[axis] for axis in spec.bounded]


def drop_trims(mod: IRModule) -> IRModule:
    """`mod` with whole tensors in place of trimmed ones."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        return value.args[0] if definition_of(value) is TRIM else None

    return rewrite(mod, rule)
