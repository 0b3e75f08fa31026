"""Writes small .tflite models with the flatbuffer object API: tensors, quantization, operators, subgraphs.

A `Graph` collects one model and remembers the values its inputs may take; `Graph.build()` gives the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from .versions import operator_version

FILE_IDENTIFIER = b"TFL3"
ACTIVATIONS = {"none": 0, "relu": 1, "relu_n1_to_1": 2, "relu6": 3, "tanh": 4, "sign_bit": 5}
OPTION_ALIASES = {
    "AVERAGE_POOL_2D": "Pool2D",
    "MAX_POOL_2D": "Pool2D",
    "L2_POOL_2D": "Pool2D",
    "MEAN": "Reducer",
    "SUM": "Reducer",
    "REDUCE_MAX": "Reducer",
    "REDUCE_MIN": "Reducer",
    "REDUCE_PROD": "Reducer",
    "REDUCE_ANY": "Reducer",
    "REDUCE_ALL": "Reducer",
    "MAXIMUM": "MaximumMinimum",
    "MINIMUM": "MaximumMinimum",
    "L2_NORMALIZATION": "L2Norm",
    "CONV_3D_TRANSPOSE": "Conv3D",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNN",
}
OPTION_UNIONS = {"builtinOptions": schema.BuiltinOptions, "builtinOptions2": schema.BuiltinOptions2}
OPTION_NAMES = {
    name.lower(): (field, name)
    for field, union in OPTION_UNIONS.items()
    for name in vars(union)
    if name.endswith("Options")
}


@dataclass(frozen=True)
class Q:
    """Quantization of one tensor: scale and zero point, scalars or one per slice along `axis`."""

    scale: Any
    zero_point: Any = 0
    axis: int = 0

    def pack(self) -> schema.QuantizationParametersT:
        """The flatbuffer object."""
        packed = schema.QuantizationParametersT()
        packed.scale = [float(np.float32(s)) for s in np.atleast_1d(self.scale)]
        points = np.broadcast_to(np.atleast_1d(self.zero_point), (len(packed.scale),))
        packed.zeroPoint = [int(p) for p in points]
        packed.quantizedDimension = self.axis
        return packed


@dataclass(frozen=True)
class Feed:
    """Values of an input: uniform in [low, high]; floats on a grid of `step`; or exactly `values` in every trial."""

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    step: float = 1 / 256
    values: Any = None
    avoid: tuple[int, int] | None = None
    """(centre, radius): integers nearer to the centre than the radius move out to it."""


def zero_point(dtype: str, where: str) -> int:
    """The zero point of an activation: "low" and "high" are the dtype's ends, "mid" its centre, "odd" next to it."""
    if dtype == "int16":
        return 0
    offset = 0 if dtype == "int8" else 128
    return {"low": -128, "mid": 0, "odd": -5, "high": 127}[where] + offset


def activation(dtype: str, scale: float = 0.05, where: str = "odd") -> Q | None:
    """The usual quantization of an activation of this dtype; int16 gets a scale 256 times finer; None for floats."""
    if dtype not in ("int8", "uint8", "int16"):
        return None
    return Q(scale / 256 if dtype == "int16" else scale, zero_point(dtype, where))


def tensor_type(dtype: str) -> int:
    """The schema's code of a NumPy dtype name, or of "resource"."""
    return int(getattr(schema.TensorType, dtype.upper()))


class Subgraph:
    """One subgraph: tensors and operators in order of creation."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.packed = schema.SubGraphT()
        self.packed.name = name
        self.packed.tensors, self.packed.operators = [], []
        self.packed.inputs, self.packed.outputs = [], []
        self.dtypes: list[str] = []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        q: Q | None = None,
        data: np.ndarray | None = None,
        name: str | None = None,
        variable: bool = False,
    ) -> int:
        """Adds a tensor and returns its index; `data` makes it a constant, `variable` a state tensor."""
        packed = schema.TensorT()
        packed.shape = [int(d) for d in shape]
        packed.hasRank = True
        packed.type = tensor_type(dtype)
        packed.buffer = self.graph.buffer(data)
        packed.name = name or f"t{len(self.packed.tensors)}"
        packed.quantization = q.pack() if q else None
        packed.isVariable = variable
        self.packed.tensors.append(packed)
        self.dtypes.append(dtype)
        return len(self.packed.tensors) - 1

    def const(self, data: Any, dtype: str | None = None, q: Q | None = None, name: str | None = None) -> int:
        """Adds a constant tensor."""
        array = np.asarray(data, dtype=dtype)
        return self.tensor(array.shape, str(array.dtype), q, array, name)

    def op(
        self,
        operator: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        version: int | None = None,
        custom: bytes | None = None,
        intermediates: Sequence[int] = (),
        **options: Any,
    ) -> None:
        """Adds an operator. Options are named as in the schema, `act` stands for the fused activation's name.

        `operator` is a BuiltinOperator name; with `custom` (the option bytes) it is the name of a custom operator.
        """
        packed = schema.OperatorT()
        packed.inputs, packed.outputs = [int(i) for i in inputs], [int(o) for o in outputs]
        if intermediates:
            packed.intermediates = [int(i) for i in intermediates]
        if custom is None:
            for field, value in pack_options(operator, options).items():
                setattr(packed, field, value)
            version = version or self.required_version(operator, packed, options)
        else:
            packed.customOptions = list(custom)
        packed.opcodeIndex = self.graph.opcode(operator, version or 1, custom is not None)
        self.packed.operators.append(packed)

    def required_version(self, operator: str, packed: schema.OperatorT, options: dict[str, Any]) -> int:
        """The version a converter would write for this operator."""
        tensors = self.packed.tensors
        ins = [self.dtypes[i] if i >= 0 else "none" for i in packed.inputs]
        outs = [self.dtypes[o] for o in packed.outputs]
        ranks = [len(tensors[i].shape) for i in packed.inputs if i >= 0]
        shapes = [list(tensors[i].shape) for i in packed.inputs if i >= 0]
        present = [tensors[i] for i in packed.inputs if i >= 0]
        per_channel = [t.quantization is not None and len(t.quantization.scale) > 1 for t in present]
        quantized = [t.quantization is not None for t in present]
        scales = [float(t.quantization.scale[0]) if t.quantization else 0.0 for t in present]
        scales += [float(tensors[o].quantization.scale[0]) if tensors[o].quantization else 0.0 for o in packed.outputs]
        facts = {"ranks": ranks, "shapes": shapes, "per_channel": per_channel, "quantized": quantized, "scales": scales}
        return operator_version(operator, ins, outs, facts, options)


def pack_options(operator: str, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of an operator that hold a builtin operator's options; none for operators without options."""
    stem = OPTION_ALIASES.get(operator, operator.replace("_", ""))
    union, name = OPTION_NAMES.get(f"{stem.lower()}options", ("", ""))
    if not name:
        if options:
            raise ValueError(f"{operator} has no options, found {sorted(options)}")
        return {}
    packed = getattr(schema, name + "T")()
    for key, value in options.items():
        field = "fusedActivationFunction" if key == "act" else key
        if not hasattr(packed, field):
            raise ValueError(f"{operator} has no option {field}")
        if key == "act":
            value = ACTIVATIONS[value]
        elif key == "padding":
            value = {"SAME": 0, "VALID": 1}[value]
        setattr(packed, field, value)
    return {f"{union}Type": getattr(OPTION_UNIONS[union], name), union: packed}


class Graph(Subgraph):
    """A model whose main subgraph this is; `subgraph()` adds further ones."""

    def __init__(self) -> None:
        self.buffers: list[bytes | None] = [None]
        self.opcodes: list[schema.OperatorCodeT] = []
        self.feeds: list[Feed] = []
        super().__init__(self, "main")
        self.subgraphs: list[Subgraph] = [self]

    def subgraph(self, name: str) -> Subgraph:
        """Adds an empty subgraph."""
        self.subgraphs.append(Subgraph(self, name))
        return self.subgraphs[-1]

    def buffer(self, data: np.ndarray | None) -> int:
        """Index of a buffer that holds `data`; every tensor without data shares buffer 0."""
        if data is None:
            return 0
        self.buffers.append(np.ascontiguousarray(data).tobytes())
        return len(self.buffers) - 1

    def opcode(self, operator: str, version: int, custom: bool) -> int:
        """Index of the operator code, added at its first use."""
        packed = schema.OperatorCodeT()
        packed.builtinCode = schema.BuiltinOperator.CUSTOM if custom else getattr(schema.BuiltinOperator, operator)
        packed.deprecatedBuiltinCode = min(packed.builtinCode, 127)
        packed.customCode = operator if custom else None
        packed.version = version
        for index, known in enumerate(self.opcodes):
            if vars(known) == vars(packed):
                return index
        self.opcodes.append(packed)
        return len(self.opcodes) - 1

    def input(
        self,
        shape: Sequence[int],
        dtype: str,
        q: Q | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        step: float = 1 / 256,
        values: Any = None,
        avoid: tuple[int, int] | None = None,
    ) -> int:
        """Adds a model input. Its values cover [low, high]: by default the whole dtype, [-4, 4] for floats."""
        if dtype.startswith("float"):
            default_low, default_high = -4.0, 4.0
        elif dtype == "bool":
            default_low, default_high = 0, 1
        elif dtype in ("int32", "int64") and q is None:
            default_low, default_high = -1000, 1000
        else:
            default_low, default_high = np.iinfo(dtype).min, np.iinfo(dtype).max
        low = default_low if low is None else low
        high = default_high if high is None else high
        self.feeds.append(Feed(tuple(shape), dtype, low, high, step, values, avoid))
        index = self.tensor(shape, dtype, q, name=f"input{len(self.packed.inputs)}")
        self.packed.inputs.append(index)
        return index

    def output(self, shape: Sequence[int], dtype: str, q: Q | None = None) -> int:
        """Adds a model output tensor."""
        index = self.tensor(shape, dtype, q, name=f"output{len(self.packed.outputs)}")
        self.packed.outputs.append(index)
        return index

    def build(self) -> bytes:
        """The finished .tflite file."""
        model = schema.ModelT()
        model.version = 3
        model.description = "qnn_ext conformance"
        model.operatorCodes = self.opcodes
        model.subgraphs = [s.packed for s in self.subgraphs]
        model.buffers = []
        for data in self.buffers:
            packed = schema.BufferT()
            packed.data = np.frombuffer(data, dtype=np.uint8) if data else None
            model.buffers.append(packed)
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
        return bytes(builder.Output())


@dataclass
class Spec:
    """A case to record: its name OPERATOR/dtype/variant, the model, and how to run it."""

    name: str
    graph: Graph
    trials: int = 4
    stateful: bool = False
    kernels: str = "reference"
    """Which kernels give the reference; "builtin" where the reference kernel is wrong."""
    unsound: str = ""
    """Why no golden is recorded although LiteRT runs the model: its kernel is wrong."""
    counted_by: int | None = None
    """The output that says how many rows (dimension 1) of the others are defined; the rest is recorded as zero."""
    uniform: bool = False
    """Whether every trial is uniform, for operators that need distinct values; see `make_trial`."""

    def with_trials(self, trials: int) -> Spec:
        """The same case with another number of trials."""
        return replace(self, trials=trials)


def rng_for(name: str) -> np.random.Generator:
    """A generator seeded by the case's name, so that adding a case leaves the others unchanged."""
    return np.random.default_rng(list(name.encode()))


def make_trial(feed: Feed, trial: int, rng: np.random.Generator) -> np.ndarray:
    """Input values: trial 0 all lowest, 1 all highest, 2 uniform, from 3 on uniform with a quarter at the extremes."""
    if feed.values is not None:
        return np.asarray(feed.values, dtype=feed.dtype).reshape(feed.shape)
    if feed.dtype.startswith("float"):
        steps = round((feed.high - feed.low) / feed.step)
        ints, low, high = rng.integers(0, steps, feed.shape, endpoint=True), 0, steps
    else:
        low, high = int(feed.low), int(feed.high)
        ints = rng.integers(low, high, feed.shape, endpoint=True)
    if trial < 2:
        ints = np.full(feed.shape, (low, high)[trial])
    elif trial > 2:
        choice = rng.integers(0, 8, feed.shape)
        ints = np.where(choice == 0, low, np.where(choice == 1, high, ints))
    if feed.avoid is not None:
        centre, radius = feed.avoid
        ints = np.where(abs(ints - centre) < radius, np.where(ints < centre, centre - radius, centre + radius), ints)
    if feed.dtype.startswith("float"):
        return (feed.low + ints * feed.step).astype(feed.dtype)
    return np.asarray(ints).astype(feed.dtype)
