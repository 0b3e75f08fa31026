"""States kept by the engine: an input that a caller would feed with an output of the call before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..limits import charge
from ..module import QnnModule, State, TensorSpec
from ..op.loop import results_of
from ..passes.rewrite import bindings_of, function_of, plain_attrs, with_main


def with_states(module: QnnModule, states: Mapping[str, str] | None, silent: bool = False) -> QnnModule:
    """The module without these inputs and outputs: the engine keeps each output's value for the next call's input.

    states: input name -> name of the output that is its next value. A state begins as zeros, real 0 if it is quantized.
            With a * in both, several: the same text stands for it in both names
    silent: the module may be left without outputs, as one of several that share states

    Raises ShapeError for a name that the module does not have, for an output of another shape, dtype or QParams than
    its input, for a batch of any size, and when no input or no output is left.
    """
    if not states:
        return module
    inputs, outputs = ([spec.name for spec in specs] for specs in (module.inputs, module.outputs))
    states = _matched(states, inputs)
    fed = {inputs.index(_known(name, inputs, "inputs")): name for name in states}
    source = {index: outputs.index(_known(states[name], outputs, "outputs")) for index, name in fed.items()}
    for index, position in source.items():
        _check_pair(module.inputs[index], module.outputs[position])
        if module.outputs[position].bounded:
            raise ShapeError(f"output {module.outputs[position]} has a size known only at run time: it can be no state")
    kept_inputs = [index for index in range(len(inputs)) if index not in fed]
    kept_outputs = [position for position in range(len(outputs)) if position not in source.values()]
    if not kept_inputs or not (kept_outputs or silent):
        raise ShapeError(f"states takes every {'output' if kept_inputs else 'input'} of the model: one must stay")
    order = sorted(fed)
    main = module.ir["main"]
    results, before = results_of(main), len(outputs)
    function = function_of(
        "main",
        bindings_of(main),
        [main.params[index] for index in (*kept_inputs, *range(len(inputs), len(main.params)), *order)],
        relax.Tuple(
            [results[position] for position in (*kept_outputs, *range(before, len(results)))]
            + [results[source[index]] for index in order]
        ),
        {**plain_attrs(main), "num_input": len(kept_inputs)},
    )
    return replace(
        module,
        ir=with_main(module.ir, function),
        inputs=tuple(module.inputs[index] for index in kept_inputs),
        outputs=tuple(module.outputs[position] for position in kept_outputs),
        states=(*module.states, *(_initial(module.inputs[index]) for index in order)),
    )


def _matched(states: Mapping[str, str], inputs: Sequence[str]) -> dict[str, str]:
    """The states with every * replaced by what it stands for in the inputs' names."""
    result: dict[str, str] = {}
    for before, after in states.items():
        if before in inputs or before.count("*") != 1 or after.count("*") != 1:
            result[before] = after
            continue
        begin, end = before.split("*")
        found = [name for name in inputs if name.startswith(begin) and name.endswith(end) and len(name) >= len(before)]
        if not found:
            raise ShapeError(f"states names {before!r}, but no input is like that: {', '.join(map(repr, inputs))}")
        result |= {name: after.replace("*", name[len(begin) : len(name) - len(end)]) for name in found}
    return result


def _known(name: str, names: Sequence[str], what: str) -> str:
    if name not in names:
        raise ShapeError(f"states names {name!r}, but the {what} of the model are {', '.join(map(repr, names))}")
    return name


def _check_pair(before: TensorSpec, after: TensorSpec) -> None:
    """Raise ShapeError unless the output can take the input's place."""
    if before.dynamic_batch:
        raise ShapeError(
            f"a state such as '{before.name}' belongs to one batch, but the batch size is open; give the input shapes"
        )
    if (before.shape, before.dtype) != (after.shape, after.dtype) or before.qparams != after.qparams:
        raise ShapeError(f"the state {before} cannot become {after}: shape, dtype and scale must be the same")


def _initial(spec: TensorSpec) -> State:
    charge(spec.shape, f"state '{spec.name}'")
    zero = 0 if spec.qparams is None else spec.qparams.zero_point
    return State(spec.name, np.full(spec.shape, zero, spec.dtype))
