"""The backend "qnn_ext" of `torch.compile`: a module keeps its Python, and qnn_ext runs its graphs.

    model = torch.compile(model, backend="qnn_ext")
    with torch.inference_mode():
        logits = model(image)

PyTorch finds it by its entry point; `torch.compile(model, backend=backend)` takes the function below itself.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, OutputKind

from ..building import build
from ..errors import InputError, QnnError, UnsupportedOperatorError
from ..frontends.building import reason
from ..frontends.pytorch import from_pytorch
from ..frontends.pytorch.exported.values import array_of
from ..running.engine import Engine
from .sessions import Recent

__all__ = ["FallbackWarning", "backend"]

_OPTIONS = {"fallback", *inspect.signature(build).parameters} - {"module", "params"}


class FallbackWarning(UserWarning):
    """A graph that qnn_ext cannot import runs in PyTorch."""


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile one of Dynamo's graphs, for inference on tensors of the CPU.

    The results are those of `build(from_pytorch(torch.export.export(model, inputs)))`. Parameters and buffers are
    constants. An engine is built at the first call with new shapes, however Dynamo treats them, and again after weights
    have changed other than by writing to their `.data`. Outputs never share memory with inputs.

    options: `fallback`: whether a graph that cannot be imported runs in PyTorch, with a FallbackWarning; by default
             False. All others are arguments of `qnn_ext.build`, such as `num_threads`

    The first call raises UnsupportedOperatorError, which names the operator, and what else importing and building
    raise; InputError for tensors that are elsewhere than on the CPU; QnnError where gradients are wanted, for an
    unknown option and for a `mode`, which is Inductor's.
    """
    # Errors are raised by calls of the graph: those of a backend reach the user wrapped in Dynamo's own
    return _Graph(graph, example_inputs, mode, dict(options or {}))


class _Graph:
    """One graph, with an engine for each of the shapes and weights that it was called with."""

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], mode: str | None, options: dict[str, Any]
    ) -> None:
        self._graph, self._mode = graph, mode
        self._fallback, self._options = options.pop("fallback", False), options
        self._weights = [place for place, value in enumerate(example_inputs) if _is_weight(value)]
        self._trains = _requires_grad(graph)
        self._compiled: Recent[_Compiled | None] = Recent()

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        compiled = self._compiled.of(self._key(values), lambda: self._compile(values))
        if compiled is None:
            return self._graph(*values)
        return compiled(values)

    def _key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """What the compiled graph depends on: weights by identity, other tensors by shape and dtype, numbers."""
        key = [(value.shape, value.dtype) if isinstance(value, torch.Tensor) else value for value in values]
        for place in self._weights:
            key[place] = _identity(values[place])
        return tuple(key)

    def _compile(self, values: Sequence[Any]) -> _Compiled | None:
        """The graph compiled for such values; None where PyTorch runs it."""
        self._check(values)
        tensors = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
        inputs = [place for place in tensors if place not in self._weights]
        try:
            program = self._export(values, inputs)
            module = from_pytorch(program)
            if module.states:
                raise UnsupportedOperatorError(
                    f"the graph changes '{module.states[0].name}' in place, which PyTorch would not see: export the "
                    "module with torch.export and give it to from_pytorch, whose engine keeps it as a state"
                )
        except QnnError as error:
            if not self._fallback:
                raise
            warnings.warn(f"a graph runs in PyTorch, not in qnn_ext: {error}", FallbackWarning, stacklevel=2)
            return None
        weights = [values[place] for place in self._weights]
        return _Compiled(build(module, **self._options), weights, inputs, _outputs(program))

    def _export(self, values: Sequence[Any], inputs: Sequence[int]) -> torch.export.ExportedProgram:
        try:
            with torch.inference_mode(False), torch.no_grad():
                examples = tuple(torch.empty_like(values[place]) for place in inputs)
                return torch.export.export(_Bound(self._graph, values, self._weights, inputs), examples)
        except Exception as error:  # whatever PyTorch raises
            raise UnsupportedOperatorError(f"torch.export refuses the graph: {reason(error)}") from error

    def _check(self, values: Sequence[Any]) -> None:
        if self._trains:
            raise QnnError(
                "the backend qnn_ext computes no gradients: call the model within torch.no_grad() or "
                "torch.inference_mode()"
            )
        if self._mode is not None:
            raise QnnError(f"mode={self._mode!r} is for Inductor; the backend qnn_ext takes options={{...}} instead")
        if unknown := sorted(set(self._options) - _OPTIONS):
            raise QnnError(f"the backend qnn_ext has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}")
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                raise InputError(
                    f"the backend qnn_ext takes tensors on the CPU, found one on {value.device}: move it by .cpu()"
                )


class _Bound(torch.nn.Module):
    """A graph as a function of its inputs: weights are buffers, and numbers are fixed."""

    def __init__(
        self, graph: fx.GraphModule, values: Sequence[Any], weights: Sequence[int], inputs: Sequence[int]
    ) -> None:
        super().__init__()
        self._values, self._inputs = values, inputs
        self._run = graph.forward  # not a submodule, which would come with a training mode
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self._weights = {names[place]: place for place in weights}
        for name, place in self._weights.items():
            self.register_buffer(name, values[place].detach())

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(self._values)
        for name, place in self._weights.items():
            values[place] = getattr(self, name)
        for place, value in zip(self._inputs, inputs, strict=True):
            values[place] = value
        return self._run(*values)


@dataclass(frozen=True)
class _Computed:
    """An output that the engine computes; dtype: PyTorch's, which the engine may not have."""

    dtype: torch.dtype


@dataclass(frozen=True)
class _Compiled:
    """A graph compiled for some weights, shapes and numbers.

    weights: kept, as others must not take their identity
    inputs:  which of the graph's values the engine takes
    outputs: of the graph; where the engine has the value, its dtype as `_Computed`
    """

    engine: Engine
    weights: Sequence[torch.Tensor]
    inputs: Sequence[int]
    outputs: Sequence[Any]

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        computed = iter(self.engine.run([array_of(values[place]) for place in self.inputs]).values())
        return tuple(
            torch.from_numpy(next(computed)).to(value.dtype) if isinstance(value, _Computed) else value
            for value in self.outputs
        )


def _outputs(program: torch.export.ExportedProgram) -> list[Any]:
    """What the program returns: `_Computed` for tensors, other values themselves."""
    kinds = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    declared = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [arg.value if isinstance(arg, ConstantArgument) else _Computed(declared[arg.name].dtype) for arg in kinds]


def _is_weight(value: Any) -> bool:
    """Whether Dynamo took the value from a module: parameters and buffers."""
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _identity(weight: torch.Tensor) -> tuple[int, ...]:
    """Differs after every change that PyTorch counts; `.data` only where it was replaced."""
    return id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _requires_grad(graph: fx.GraphModule) -> bool:
    """Whether a result is to be differentiated; gradients may be switched off within the graph, too."""
    (output,) = graph.graph.find_nodes(op="output")
    values = [node.meta.get("example_value") for node in output.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
