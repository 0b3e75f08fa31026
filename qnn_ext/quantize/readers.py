"""Products that read a tensor which others read too: each with an observer of its own, so that a simulation can leave
the tensor in float for some of them. `annotate` does the same for products that a configuration keeps in float."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from ..module import QnnModule
from ..op.arguments import factors_of
from ..op.base import call_attributes, definition_of
from ..op.observe import OBSERVE, observe
from ..op.relax_table import traits_of
from ..passes.rewrite import Rebuild, op_name, substitute, variables_of


@dataclass(frozen=True)
class OwnReaders:
    """A module, and for each of its further sites the site whose tensor it observes and the layer that reads it."""

    module: QnnModule
    sites: dict[str, tuple[str, str]]


def with_own_readers(annotated: QnnModule) -> OwnReaders:
    """`annotated` with a site for each product with a quantized weight that directly reads a site read by others."""
    new = Rebuild(annotated.ir["main"])
    counts = Counter(var for binding in new.bindings for var in set(variables_of(binding.value)))
    marks: dict[Any, dict[str, Any]] = {}  # variable of the old module → attributes of its observer
    data: dict[Any, Any] = {}  # the same → what is observed, in the new one
    found: dict[str, tuple[str, str]] = {}
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if definition_of(value) is OBSERVE:
                marks[binding.var], data[binding.var] = call_attributes(value), value.args[0]
            elif op_name(value) and traits_of(value).product is not None:
                read = [(factor, marks[factor]) for factor in factors_of(binding.value) if factor in marks]
                layer = next((mark["layer"] for _, mark in read if mark["role"] == "weight"), None)
                own = {}
                for factor, mark in read:
                    if layer is None or mark["role"] == "weight" or counts[factor] < 2:
                        continue
                    name = f"{mark['site']} for {layer}"
                    found[name] = mark["site"], layer
                    own[new.environment[factor]] = new.builder.emit(observe(data[factor], **{**mark, "site": name}))
                value = substitute(value, own)
            new.bind(binding.var, value)
    return OwnReaders(replace(annotated, ir=new.live_module()), found)
