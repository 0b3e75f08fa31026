"""QnnModule: the Relax module a frontend produced, with the model's own names, QParams and state around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import IRModule

from .errors import InputError
from .qparams import QParams


@dataclass(frozen=True)
class TensorSpec:
    """One input or output as the model names it. `qparams` is None when the values are not quantized."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    qparams: QParams | None = None

    def __str__(self) -> str:
        kind = str(self.qparams) if self.qparams else self.dtype
        return f"{self.name}: {'×'.join(map(str, self.shape)) or 'scalar'} {kind}"


@dataclass(frozen=True)
class State:
    """A value a streaming model keeps between calls: an extra last input and output of `main`."""

    name: str
    initial: np.ndarray


@dataclass(frozen=True)
class FloatNote:
    """A node that runs in float although the model quantizes it, and why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class QnnModule:
    """A model in the QNN dialect.

    ir:      IRModule whose `main` takes inputs, then states, and returns a tuple of outputs, then new states
    inputs, outputs: in model order
    states:  values carried from call to call, empty for ordinary models
    notes:   what stays float, and why
    source:  where the model came from, for messages
    """

    ir: IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[State, ...] = ()
    notes: tuple[FloatNote, ...] = ()
    source: str = "model"

    def script(self, show_meta: bool = False) -> str:
        """The module as TVMScript; with `show_meta` it parses back by `tvm.script.from_source`."""
        return str(self.ir.script(show_meta=show_meta))


def check_inputs(
    values: Mapping[str, np.ndarray] | Sequence[np.ndarray], specs: Sequence[TensorSpec]
) -> list[np.ndarray]:
    """The input arrays in model order, contiguous. Raises InputError on a wrong name, count, shape or dtype."""
    names = [spec.name for spec in specs]
    if isinstance(values, Mapping):
        unknown = [name for name in values if name not in names]
        missing = [name for name in names if name not in values]
        if unknown or missing:
            problem = f"unknown input {unknown[0]!r}" if unknown else f"input {missing[0]!r} is missing"
            raise InputError(f"{problem}; this model takes {', '.join(map(repr, names))}")
        values = [values[name] for name in names]
    if len(values) != len(specs):
        raise InputError(f"this model takes {len(specs)} inputs ({', '.join(map(str, specs))}), found {len(values)}")
    return [_check_input(np.asarray(value), spec) for value, spec in zip(values, specs, strict=True)]


def _check_input(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if value.shape != spec.shape:
        raise InputError(f"input {spec.name!r} must have shape {spec.shape}, found {value.shape}")
    if value.dtype != spec.dtype:
        hint = f"; quantize it with {spec.qparams}" if spec.qparams and value.dtype.kind == "f" else ""
        raise InputError(f"input {spec.name!r} must be {spec.dtype}, found {value.dtype}{hint}")
    return np.asarray(value, order="C")
