"""A compiled model as engines and `.qnn` files see it: a `Model`, the same on all targets, and a `Variant` for each.

Both have a JSON form, which `description.check` vouches for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..lazily import np
from ..module import Check, FloatNote, QnnModule, State, TensorSpec, sizes_spec
from ..qparams import QParams
from ..targets import gpus, host
from ..targets.architectures import architecture_name
from ..targets.families import backend_described, backend_of_architecture
from ..targets.frames import CodeSize
from .kernels import Kernel


@dataclass(frozen=True)
class Model:
    """The properties of a compiled model that are the same on every target.

    source:   the name of what it was imported from
    inputs, outputs, states: in model order
    notes:    what runs in float although the model quantizes it
    checks:   conditions on run-time values, in the order of their numbers in the status
    versions: versions of the packages that compiled it
    """

    source: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[State, ...]
    notes: tuple[FloatNote, ...]
    checks: tuple[Check, ...]
    versions: Mapping[str, str]

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """What the code returns before the states: the outputs, and their sizes if some are only known at run time."""
        return (*self.outputs, *sizes_spec(self.outputs))

    @classmethod
    def of(cls, module: QnnModule, checks: Sequence[Check], versions: Mapping[str, str]) -> Model:
        """The properties of a module that is compiled."""
        source, inputs, outputs, states = module.source, module.inputs, module.outputs, module.states
        return cls(source, tuple(inputs), tuple(outputs), tuple(states), tuple(module.notes), tuple(checks), versions)

    def to_json(self) -> dict[str, Any]:
        """Everything but the values of the states, which a file stores separately."""
        return {
            "source": self.source,
            "inputs": [_spec_to_json(spec) for spec in self.inputs],
            "outputs": [_spec_to_json(spec) for spec in self.outputs],
            "states": [_state_to_json(state) for state in self.states],
            "notes": [asdict(note) for note in self.notes],
            "checks": [asdict(check) for check in self.checks],
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], states: Sequence[np.ndarray]) -> Model:
        """The inverse of `to_json`, with the values of the states."""
        return cls(
            data["source"],
            tuple(map(_spec_from_json, data["inputs"])),
            tuple(map(_spec_from_json, data["outputs"])),
            tuple(State(state["name"], value) for state, value in zip(data["states"], states, strict=True)),
            tuple(FloatNote(**note) for note in data["notes"]),
            tuple(Check(**check) for check in data["checks"]),
            dict(data["versions"]),
        )


@dataclass(frozen=True)
class Layout:
    """Where the one function of a model finds its tensors: in a workspace, or among the weights.

    workspace, weights: bytes of each
    tasks:   the most parallel tasks that the function is made for, 1 if it has nothing to share out
    steps:   how many kernels it calls
    stamps:  offset of the time stamps, one before each kernel and one at the end
    inputs:  offset of each input, then of each state
    outputs: (0, offset in the workspace) or (1, offset in the weights) of each output, then of each new state
    """

    workspace: int
    weights: int
    tasks: int
    steps: int
    stamps: int
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes while it runs.

    weights:      all constants as the kernels read them: packed, and widened if the target's instructions need that
    feature_maps: the most that inputs, activations and scratch buffers take at the same time

    For TVM's virtual machine neither is known in advance: constants that kernels share count for each of them, and
    feature maps are the most that a single kernel reads and writes.
    """

    weights: int
    feature_maps: int


@dataclass(frozen=True)
class Variant:
    """A model compiled for one target.

    target:       the TVM target as a dict
    features:     instruction sets that the code may use
    architecture: of the CPU that runs it, or that launches its kernels
    kernels:      in execution order
    program:      where its one function finds its tensors; None for a model that runs on TVM's virtual machine
    fallback:     why it runs there; empty if that is as intended
    code:         what the code takes; None before it is linked, and where that is not known
    """

    target: dict[str, Any]
    features: list[str]
    architecture: str
    kernels: Sequence[Kernel]
    program: Layout | None
    fallback: str = ""
    code: CodeSize | None = None

    @property
    def memory(self) -> Memory:
        """What the model takes on this target."""
        if self.program is not None:
            return Memory(self.program.weights, self.program.workspace)
        weights = sum(kernel.weight_bytes for kernel in self.kernels)
        return Memory(weights, max((kernel.data_bytes for kernel in self.kernels), default=0))

    def runs_here(self) -> bool:
        """Whether this machine can run it."""
        return host.can_run(self.features, self.architecture) and gpus.can_run(self.target)

    def check_runnable(self) -> None:
        """Raise TargetError, which says what is missing, if this machine cannot run it."""
        host.check_runnable(self.features, self.architecture)
        gpus.check_runnable(self.target)

    def to_json(self) -> dict[str, Any]:
        """Everything but the kernels, which a file stores separately. Empty values are left out where files from before
        they were recorded have none."""
        data = asdict(replace(self, kernels=[]))
        del data["kernels"]
        return _without_empty(data, ("fallback", "code"))

    def kernels_to_json(self) -> list[dict[str, Any]]:
        """The kernels."""
        return [_without_empty(asdict(kernel), LATER) for kernel in self.kernels]

    @classmethod
    def from_json(cls, data: Mapping[str, Any], kernels: Sequence[Kernel]) -> Variant:
        """The inverse of `to_json`, with the kernels."""
        program = data["program"]
        if program is not None:
            program = Layout(**{**program, "inputs": tuple(program["inputs"]), "outputs": _pairs(program["outputs"])})
        code = data.get("code")
        if code is not None:
            code = CodeSize(**{**code, "chain": tuple(code["chain"])})
        return cls(**{**data, "kernels": kernels, "program": program, "code": code})


LATER = ("reason", "sources", "reads", "results", "live_bytes")
"""Fields of kernels that older files lack."""


def _without_empty(data: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Without those of these values that are empty."""
    return {name: value for name, value in data.items() if value or name not in names}


def target_name(target: Mapping[str, Any]) -> str:
    """A target's short name: LLVM's name of the CPU, "aarch64" or "armv7" for a whole architecture, or "sm_80"."""
    if backend_described(target).grid:
        return str(target.get("arch", target["kind"]))
    cpu = str(target.get("mcpu", "generic"))
    architecture = architecture_name(str(target.get("mtriple", "")).split("-")[0])
    return (backend_of_architecture(architecture).baseline or cpu) if cpu.startswith("generic") else cpu


def _pairs(values: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((region, offset) for region, offset in values)


# ---- tensors -----------------------------------------------------------------------------------------------------


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    """float32 scales survive exactly as Python floats."""
    qparams = spec.qparams
    packed = qparams and {
        "scale": np.asarray(qparams.scale, np.float64).tolist(),
        "scale_dtype": str(qparams.scale.dtype),
        "zero_point": qparams.zero_point.tolist(),
        "dtype": qparams.dtype,
        "axis": qparams.axis,
    }
    return {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "qparams": packed,
        "dynamic_batch": spec.dynamic_batch,
        **({"batch_axis": spec.batch_axis} if spec.batch_axis else {}),
        **({"bounded": list(spec.bounded)} if spec.bounded else {}),
    }


def _spec_from_json(data: Mapping[str, Any]) -> TensorSpec:
    packed = data["qparams"]
    qparams = packed and QParams(
        np.asarray(packed["scale"], packed["scale_dtype"]), packed["zero_point"], packed["dtype"], packed["axis"]
    )
    batch = data["dynamic_batch"], data.get("batch_axis", 0)
    return TensorSpec(
        data["name"], tuple(data["shape"]), data["dtype"], qparams, *batch, tuple(data.get("bounded", ()))
    )


def begins_with_zeros(state: State) -> bool:
    """Whether all bytes of its initial value are zero: these are not stored, as a key-value cache is large."""
    return not np.ascontiguousarray(state.initial).reshape(-1).view(np.uint8).any()


def _state_to_json(state: State) -> dict[str, Any]:
    zeros = {"zeros": True} if begins_with_zeros(state) else {}
    return {"name": state.name, "shape": list(state.initial.shape), "dtype": str(state.initial.dtype), **zeros}
