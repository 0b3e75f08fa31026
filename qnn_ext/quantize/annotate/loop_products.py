"""The products in the bodies of loops that can be quantized, and the observers there. See `loops.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvm import IRModule, relax

from ...op.arguments import factors_of
from ...op.base import call_attributes, definition_of, shape_of
from ...op.loop import Loop, results_of
from ...op.observe import OBSERVE
from ...passes.bodies import with_changed_body
from ...passes.rewrite import Rebuild, bindings_of, op_name
from .families import is_constant


def loop_layers(function: relax.Function) -> list[str]:
    """The names of the products that can be quantized."""
    return [
        f"{binding.var.name}.{inner.var.name}"
        for binding in bindings_of(function)
        if (loop := quantizable_loop(binding.value)) is not None
        for inner in bindings_of(loop.body)
        if weight_position(inner.value) is not None
    ]


def quantizable_loop(value: Any) -> Loop | None:
    """The loop that a value calls, if products in it can be quantized."""
    loop = Loop.of(value)
    return loop if loop is not None and loop.condition is None and loop.trips else None


def weight_position(value: Any) -> int | None:
    """Which factor of a float matrix product is constant; None for other operators."""
    if definition_of(value) is not None or op_name(value) != "matmul":
        return None
    constants = [index for index, factor in enumerate(factors_of(value)) if is_constant(factor)]
    plain = all(len(shape_of(factor)) == 2 and str(factor.ty.dtype) == "float32" for factor in factors_of(value))
    return constants[0] if len(constants) == 1 and plain else None


def observed_in_loops(mod: IRModule) -> Iterator[tuple[relax.Call, dict]]:
    """The observers in loops, each with its attributes."""
    for binding in bindings_of(mod["main"]):
        loop = Loop.of(binding.value)
        for inner in () if loop is None else bindings_of(loop.body):
            if definition_of(inner.value) is OBSERVE:
                yield inner.value, call_attributes(inner.value)


def instrumented_loop(loop: Loop) -> tuple[Loop, dict[str, int]]:
    """A loop without observers, with the tensors that they observe as further outputs; site -> its place among the
    loop's results."""
    found: dict[str, Any] = {}

    def change(body: IRModule) -> IRModule:
        new = Rebuild(body["main"])
        with new.main():
            for binding in new.bindings:
                value = new.substituted(binding.value)
                if definition_of(value) is not OBSERVE:
                    new.bind(binding.var, value)
                    continue
                new.environment[binding.var] = value.args[0]
                if not is_constant(value.args[0]):
                    found[call_attributes(value)["site"]] = value.args[0]
            results = [new.substituted(result) for result in results_of(body["main"])]
            new.result = relax.Tuple([*results, *found.values()])
        return new.module()

    changed = with_changed_body(loop, change)
    before = len(loop.states) + len(loop.backwards_out)
    outputs = (*loop.backwards_out, *(False for _ in found))
    return replace(changed, backwards_out=outputs), {site: before + index for index, site in enumerate(found)}
