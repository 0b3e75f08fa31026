"""The module that calibration runs: an annotated module whose outputs are the observed tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..module import QnnModule, TensorSpec
from ..op.base import call_attributes, definition_of, shape_of
from ..op.loop import Loop, results_of
from ..op.observe import OBSERVE
from ..op.relax_table import traits_of
from ..op.traits import Product
from ..passes.layout.forms import channels_last_order
from ..passes.layout.propagation import wants_channels_last
from ..passes.rewrite import Rebuild, operands
from .annotate.loop_products import Fields, with_rounds


@dataclass(frozen=True)
class Instrumented:
    """A float module, and the sites whose tensor each of its outputs is.

    Tensors of channels-first operators are returned channels-last, as the kernels compute them: that makes no
    difference to statistics, and needs no transpose.

    channels_last: whether each output is
    """

    module: QnnModule
    sites: tuple[tuple[str, ...], ...]
    channels_last: tuple[bool, ...]


def instrument(annotated: QnnModule, sites: Collection[str], with_outputs: bool = False) -> Instrumented:
    """`annotated` without observers. Its outputs are, if wanted, its own, of no site, then the tensors of `sites`."""
    new = Rebuild(annotated.ir["main"])
    observed: dict[Any, list[str]] = {}
    channels_first: set[Any] = set()
    fields = Fields()
    with new.main():
        for binding in new.bindings:
            if fields.replace(binding, new.environment):
                continue
            value = new.substituted(binding.value)
            if definition_of(value) is OBSERVE:
                new.environment[binding.var] = value.args[0]
                name = call_attributes(value)["site"]
                if name in sites:
                    observed.setdefault(value.args[0], []).append(name)
                continue
            loop = Loop.of(value)
            if loop is not None:
                fields.of[binding.var], inside = with_rounds(loop, new.builder.emit)
                observed.update({tensor: [name] for name, tensor in inside.items() if name in sites})
                continue
            var = new.environment[binding.var] = new.builder.emit(value, name_hint=binding.var.name)
            if _is_channels_first(value, channels_first):
                channels_first.add(var)
        moved = [var in channels_first and len(shape_of(var)) in (3, 4, 5) for var in observed]
        pairs = zip(observed, moved, strict=True)
        tensors = [_with_channels_last(var, new.builder) if last else var for var, last in pairs]
        own = annotated.outputs if with_outputs else ()
        old = results_of(annotated.ir["main"]) if own or annotated.states else []
        results = [new.substituted(result) for result in old]
        new.result = relax.Tuple([*results[: len(own)], *tensors, *results[len(annotated.outputs) :]])
    specs = tuple(
        TensorSpec(f"site '{names[0]}'", shape_of(tensor), str(tensor.ty.dtype))  # an output may have the site's name
        for tensor, names in zip(tensors, observed.values(), strict=True)
    )
    sites_of = [*(() for _ in own), *map(tuple, observed.values())]
    module = replace(annotated, ir=new.live_module(), outputs=(*own, *specs))
    return Instrumented(module, tuple(sites_of), (*(False for _ in own), *moved))


def _is_channels_first(value: Any, known: Collection[Any]) -> bool:
    """Whether the kernels will compute a tensor that is NCHW in this module with its channels last, as far as is
    known."""
    if wants_channels_last(value, any_order=True):
        return True
    traits = traits_of(value)
    if traits.rearranges or traits.product is Product.MATRIX:
        return False
    return any(operand in known for operand in operands(value) if isinstance(operand, relax.Var))


def _with_channels_last(var: Any, builder: relax.BlockBuilder) -> Any:
    return builder.emit(relax.op.permute_dims(var, list(channels_last_order(len(shape_of(var))))))
