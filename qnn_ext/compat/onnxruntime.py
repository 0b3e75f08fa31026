"""ONNX Runtime's `InferenceSession` over qnn_ext: a script changes its import, and its model is compiled.

    from qnn_ext.compat.onnxruntime import InferenceSession    instead of  from onnxruntime import InferenceSession
    import qnn_ext.compat.onnxruntime as ort                   instead of  import onnxruntime as ort

Results equal ONNX Runtime's as those of `from_onnx` do. Making a session compiles the model, or takes it from the cache
of builds. Where the model leaves more open than the batch, it is compiled at the first call with each new shape. What
cannot be honoured raises an error that says so, and what has no effect warns.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, ModelFormatError, ShapeError
from ..frontends.onnx import from_onnx
from ..frontends.onnx.reader import Value, read_model, require_onnx
from ..module import QnnModule
from ..running.engine import Engine
from .absent import absent, refuse
from .sessions import Engines, InvalidArgument, InvalidModel, Shapes, ignored

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "SessionOptions",
    "get_available_providers",
    "get_device",
]

__getattr__ = absent(
    "onnxruntime",
    {
        "OrtValue": "sessions take and return NumPy arrays",
        "RunOptions": "a run has no options",
        "set_default_logger_severity": "nothing is logged",
    },
)

_CPU = "CPUExecutionProvider"
_UNVERSIONED = 2**63 - 1  # ONNX Runtime's for a model without a version
_TYPES = {"float32": "float", "float64": "double"}


class GraphOptimizationLevel(enum.IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(slots=True)
class SessionOptions:
    """Options of a session.

    intra_op_num_threads: threads the kernels may use; 0: all cores
    others:               requests that a session meets anyway, or warns that it does not; `enable_profiling` and
                          `optimized_model_filepath` are refused. Other names raise AttributeError
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    enable_profiling: bool = False
    optimized_model_filepath: str = ""
    _sizes: dict[str, int] = field(default_factory=dict)
    _entries: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size of an open dimension of the inputs."""
        self._sizes[name] = int(size)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry, of which a session warns that it has no effect."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The entry that was added. Raises InvalidArgument if there is none."""
        if key not in self._entries:
            raise InvalidArgument(f"there is no session configuration {key!r}")
        return self._entries[key]

    def check(self) -> None:
        """Warn of all that has no effect. Raises InvalidArgument and NotHonouredError."""
        if self.intra_op_num_threads < 0:
            raise InvalidArgument(f"intra_op_num_threads must be 0 or more, found {self.intra_op_num_threads}")
        if self.enable_profiling:
            refuse("SessionOptions.enable_profiling", "`session.engine.profile()` times every kernel")
        if self.optimized_model_filepath:
            refuse("SessionOptions.optimized_model_filepath", "`session.engine.save(path)` writes what was compiled")
        unmet = {
            "inter_op_num_threads": (self.inter_op_num_threads > 1, "kernels run one after another"),
            "execution_mode": (int(self.execution_mode) != 0, "kernels run one after another"),
            "graph_optimization_level": (int(self.graph_optimization_level) < 99, "all passes run"),
            "enable_cpu_mem_arena": (not self.enable_cpu_mem_arena, "memory is planned when the model is compiled"),
            "enable_mem_pattern": (not self.enable_mem_pattern, "memory is planned when the model is compiled"),
            "enable_mem_reuse": (not self.enable_mem_reuse, "memory is planned when the model is compiled"),
            "log_severity_level": (self.log_severity_level in (0, 1), "nothing is logged"),
            "log_verbosity_level": (self.log_verbosity_level > 0, "nothing is logged"),
            "logid": (bool(self.logid), "nothing is logged"),
            **{f"session configuration {key!r}": (True, "it has no such settings") for key in self._entries},
        }
        for option, (asked, reason) in unmet.items():
            if asked:
                ignored(option, reason)


@dataclass(frozen=True)
class NodeArg:
    """An input or output: name, ONNX Runtime's name of its type, and shape with names or None for open dimensions."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What the file says of itself."""

    custom_metadata_map: dict[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


def get_available_providers() -> list[str]:
    return [_CPU]


def get_device() -> str:
    return "CPU"


class InferenceSession:
    """Runs an ONNX model, with the calls of ONNX Runtime's session.

    path_or_bytes: the path of an .onnx file, or its bytes
    sess_options:  a `SessionOptions` of this module
    providers:     names, or pairs of a name and options. The CPU runs the model; others warn

    Raises InvalidModel (no file, or a damaged one), and what `from_onnx` and `build` raise.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(self._options, SessionOptions):
            raise InvalidArgument(f"sess_options must be a SessionOptions of {__name__}, found {type(sess_options)}")
        self._options.check()
        self.set_providers(providers, provider_options)
        self._source, sizes = path_or_bytes, self._options._sizes
        try:
            model = read_model(path_or_bytes)
        except ModelFormatError as error:
            raise InvalidModel(str(error)) from error

        def imported(shapes: Shapes) -> QnnModule:
            return from_onnx(path_or_bytes, shapes={**sizes, **shapes})

        self._engines = Engines(imported, self._options.intra_op_num_threads or None)
        self._engine: Engine | None = None
        self._inputs = {value.name: _fixed(value, sizes) for value in model.inputs}
        try:
            self._engine = self._engines.of({})
        except ShapeError:
            if all(isinstance(dim, int) for value in self._inputs.values() for dim in value.shape or ()):
                raise
        specs = self._engine.outputs if self._engine else ()
        compiled = {spec.name: spec.with_bounded(None) for spec in specs}
        self._outputs = {value.name: _fixed(value, sizes, compiled.get(value.name)) for value in model.outputs}

    @property
    def engine(self) -> Engine:
        """What runs: it can be saved as a `.qnn` file, timed and profiled. The latest one, if the model's shapes are
        open. Raises InvalidArgument before the first run of such a model."""
        if self._engine is None:
            raise InvalidArgument(f"the shapes of {[*self._inputs]} are open: the first run compiles the model")
        return self._engine

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(f"InferenceSession.{name}", "sessions take and return NumPy arrays, see `run`")

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(value) for value in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(value) for value in self._outputs.values()]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Always none: initializers are constants, which are compiled in."""
        return []

    def get_providers(self) -> list[str]:
        return [_CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {_CPU: {}}

    def get_session_options(self) -> SessionOptions:
        return self._options

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Accept the CPU's provider; warn of others and of options."""
        for provider in providers or ():
            name, options = (provider, {}) if isinstance(provider, str) else provider
            if name != _CPU:
                ignored(f"provider {name!r}", "the CPU runs the session; for a GPU, qnn_ext.build(module, 'cuda')")
            elif options:
                ignored(f"options of {name}", "it has none")
        if any(provider_options or ()):
            ignored("provider_options", "no provider has any")

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself."""
        onnx = require_onnx()
        content = self._source if isinstance(self._source, bytes) else Path(self._source).read_bytes()
        proto = onnx.ModelProto.FromString(content)
        return ModelMetadata(
            {entry.key: entry.value for entry in proto.metadata_props},
            proto.doc_string,
            proto.domain,
            proto.graph.doc_string,
            proto.graph.name,
            proto.producer_name,
            proto.model_version if proto.HasField("model_version") else _UNVERSIONED,
        )

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: None = None
    ) -> list[np.ndarray]:
        """The outputs of these names, None or none for all, for inputs by name.

        Raises InvalidArgument for names, shapes and dtypes that do not fit, and for values that the model cannot take.
        """
        engine, feed, wanted = self._prepared(output_names, input_feed, run_options)
        try:
            results = engine.run(feed)
        except InputError as error:
            raise InvalidArgument(str(error)) from error
        return [results[name] for name in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[np.ndarray], Any, str], Any],
        user_data: Any,
        run_options: None = None,
    ) -> None:
        """Compute `run` on another thread, which then calls `callback(outputs, user_data, error)`, with no outputs if
        there is an error and "" if there is none. Inputs that do not fit raise InvalidArgument here."""
        engine, feed, wanted = self._prepared(output_names, input_feed, run_options)

        def done(request: Any) -> None:
            error = request.exception()
            outputs = [] if error else [request.result()[name] for name in wanted]
            callback(outputs, user_data, str(error) if error else "")

        engine.submit(feed).add_done_callback(done)

    def _prepared(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any
    ) -> tuple[Engine, dict[str, np.ndarray], Sequence[str]]:
        """The engine for these inputs, the inputs as arrays, and the outputs that are wanted."""
        if run_options is not None:
            refuse("run_options", "a run has no options")
        if not isinstance(input_feed, Mapping):
            raise InvalidArgument(f"inputs must be given by name, as a dictionary, found {type(input_feed).__name__}")
        if {*input_feed} != {*self._inputs}:
            raise InvalidArgument(f"the model takes the inputs {[*self._inputs]}, found {[*input_feed]}")
        wanted = output_names or [*self._outputs]
        unknown = [name for name in wanted if name not in self._outputs]
        if unknown:
            raise InvalidArgument(f"the model has the outputs {[*self._outputs]}, found {unknown[0]!r}")
        feed = {name: _array(value, self._inputs[name]) for name, value in input_feed.items()}
        return self._engine_for(feed), feed, wanted

    def _engine_for(self, feed: Mapping[str, np.ndarray]) -> Engine:
        if self._engine is not None and _fits(self._engine, feed):
            return self._engine
        self._engine = self._engines.of({name: array.shape for name, array in feed.items()})
        return self._engine


def _fixed(value: Value, sizes: Mapping[str, int], compiled: tuple[Any, ...] | None = None) -> Value:
    """A declared value with open dimensions of these names fixed, or, where none is declared, its compiled shape."""
    shape = (
        compiled if value.shape is None else tuple(sizes.get(d, d) if isinstance(d, str) else d for d in value.shape)
    )
    return Value(value.name, value.dtype, shape)


def _node_arg(value: Value) -> NodeArg:
    return NodeArg(value.name, f"tensor({_TYPES.get(value.dtype, value.dtype)})", list(value.shape or ()))


def _fits(engine: Engine, feed: Mapping[str, np.ndarray]) -> bool:
    """Whether the arrays have the engine's shapes, apart from a batch of any size."""
    return all(spec.fits(feed[spec.name].shape) for spec in engine.inputs)


def _array(value: Any, declared: Value) -> np.ndarray:
    """An input as an array; lists take the input's dtype. Raises InvalidArgument unless it fits what is declared."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, declared.dtype)
    if array.dtype.name != declared.dtype:
        raise InvalidArgument(f"input {declared.name!r} must be {declared.dtype}, found {array.dtype.name}")
    shape = declared.shape
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(dim, int) and dim != size for dim, size in zip(shape, array.shape, strict=True))
    ):
        raise InvalidArgument(f"input {declared.name!r} must have shape {list(shape)}, found {list(array.shape)}")
    return array
