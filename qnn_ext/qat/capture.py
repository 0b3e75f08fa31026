"""A user's module as a graph that follows .train() and .eval(): torch.fx, traced in both modes and merged."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.fx.passes.shape_prop import ShapeProp

from ..errors import QuantizationError

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent


def capture(module: nn.Module, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """A copy of the module as a graph, every node with the dtype and shape it has on these inputs.

    Raises QuantizationError where Python's control flow depends on values, and where forward does something else in
    training than in evaluation (beyond layers and arguments that say so).
    """
    if not isinstance(module, nn.Module):
        raise QuantizationError(f"prepare takes an nn.Module, found {type(module).__name__}")
    root = copy.deepcopy(module)
    graph = _merged(_traced(root.train(), len(inputs)), _traced(root.eval(), len(inputs)))
    graph_module = fx.GraphModule(root, graph, type(module).__name__)
    try:
        with torch.no_grad():
            ShapeProp(graph_module.eval()).propagate(*inputs)
    except Exception as error:
        raise QuantizationError(f"the module does not run on the example inputs: {_innermost(error)}") from error
    return graph_module.train(module.training)


class _Tracer(fx.Tracer):
    """Makes placeholders of the arguments there are examples of; the others keep their defaults."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def create_args_for_root(self, root_fn: Callable, is_module: bool, concrete_args: Any = None) -> Any:
        """The function to trace and its arguments."""
        parameters = list(inspect.signature(root_fn).parameters.values())[1:]
        many = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if many is not None:
            names += [f"{many}_{index}" for index in range(self._count - len(names))]
        if len(names) < self._count:
            raise QuantizationError(f"forward takes {len(names)} inputs, found {self._count} example inputs")
        missing = [
            p.name for p in parameters[self._count :] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        if missing:
            raise QuantizationError(f"example inputs are missing for {', '.join(missing)}")
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names[: self._count])]


def _traced(root: nn.Module, count: int) -> fx.Graph:
    try:
        return _Tracer(count).trace(root)
    except QuantizationError:
        raise
    except Exception as error:
        raise QuantizationError(
            f"{type(root).__name__} cannot be traced by torch.fx: {_innermost(error)}. Move what depends on values out "
            "of forward, or into a function wrapped by torch.fx.wrap, which then stays in float"
        ) from error


def _innermost(error: BaseException) -> str:
    """An error with the line of the user's code that it comes from."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {_TORCH, _HERE} & set(Path(frame.filename).parents) and not frame.filename.startswith("<")
    ]
    first = " ".join(str(error).split("\n")[0].split())
    return f"{frames[-1].filename}:{frames[-1].lineno}, in `{frames[-1].line}`: {first}" if frames else first


def _merged(trained: fx.Graph, evaluated: fx.Graph) -> fx.Graph:
    """One graph of two: where an argument is True in training and False in evaluation, it reads `self.training`."""
    first, second = list(trained.nodes), list(evaluated.nodes)
    for a, b in zip(first, second, strict=False):
        if (a.op, a.target) != (b.op, b.target):
            raise _differ(a)
    if len(first) != len(second):
        raise _differ(first[min(len(first), len(second)) - 1])
    counterpart = dict(zip(second, first, strict=True))
    mode = None
    for a, b in zip(first, second, strict=True):
        mine, others = _leaves(a), [counterpart.get(leaf, leaf) for leaf in _leaves(b)]
        if len(mine) != len(others):
            raise _differ(a)
        pairs = list(zip(mine, others, strict=True))
        differ = [x is not y and (type(x) is not type(y) or x != y) for x, y in pairs]
        if not any(differ):
            continue
        if any(pair != (True, False) for pair, different in zip(pairs, differ, strict=True) if different):
            raise _differ(a)
        if mode is None:
            with trained.inserting_before(first[0]):
                mode = trained.create_node("get_attr", "training")
        merged = iter([mode if different else x for (x, _), different in zip(pairs, differ, strict=True)])
        a.args, a.kwargs = map_aggregate((a.args, a.kwargs), partial(_next, merged))
    return trained


def tensors_of(inputs: Any) -> tuple[torch.Tensor, ...]:
    """Inputs in their order, of which one tensor alone is the only one."""
    return (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


def _next(values: Iterator[Any], _: Any) -> Any:
    return next(values)


def _leaves(node: fx.Node) -> list[Any]:
    """The arguments of a node, out of their tuples, lists and dictionaries."""
    found: list[Any] = []
    map_aggregate((node.args, node.kwargs), found.append)
    return found


def _differ(node: fx.Node) -> QuantizationError:
    return QuantizationError(
        f"forward does something else in training than in evaluation, from '{node.name}' ({node.target}) on: one graph "
        "cannot stand for both. Pass a module that computes the same in both modes, such as the network without its "
        "auxiliary outputs"
    )
