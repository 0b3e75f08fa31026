"""What the errors of a model are measured on whose outputs have sizes that depend on data: a box more or less moves all
that follow. They are the tensors that such outputs are chosen from: boxes and scores, and what is compared to make a
mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from ..module import QnnModule, TensorSpec
from ..op.base import definition_of, shape_of
from ..op.loop import results_of
from ..op.true_positions import TRUE_POSITIONS
from ..passes.rewrite import Rebuild, bindings_of, variables_of


def measurable(module: QnnModule) -> QnnModule:
    """The module with the tensors that outputs are chosen from in place of those whose size depends on data; the module
    itself if it has none, or nothing in float to choose from."""
    if not any(spec.bounded for spec in module.outputs):
        return module
    main = module.ir["main"]
    chosen_from = _chosen_from({binding.var: binding.value for binding in bindings_of(main)})
    if not chosen_from:
        return module
    results, count = results_of(main), len(module.outputs)
    kept = [index for index, spec in enumerate(module.outputs) if not spec.bounded]
    new = Rebuild(main)
    with new.main():
        for binding in new.bindings:
            new.keep(binding)
        fields = [*(results[index] for index in kept), *chosen_from, *results[count:]]
        new.result = relax.Tuple([new.substituted(field) for field in fields])
    specs = [TensorSpec(var.name, shape_of(var), str(var.ty.dtype)) for var in chosen_from]
    outputs = (*(module.outputs[index] for index in kept), *specs)
    return replace(module, ir=new.live_module(), outputs=outputs)


def _chosen_from(values: Mapping[Any, Any]) -> list[Any]:
    """The float variables that a selection, or what is computed from it, reads."""
    found: dict[Any, None] = {}
    selected: set[Any] = set()

    def add(var: Any) -> None:
        """A float variable, or those that an integer or a mask is computed from."""
        if str(getattr(var.ty, "dtype", "")).startswith("float"):
            found[var] = None
        elif var in values and var not in selected:
            for source in variables_of(values[var]):
                add(source)

    for var, value in values.items():
        if definition_of(value) is not TRUE_POSITIONS and not any(one in selected for one in variables_of(value)):
            continue
        for source in variables_of(value):
            if source not in selected:
                add(source)
        selected.add(var)
    return list(found)
