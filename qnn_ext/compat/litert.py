"""LiteRT's `Interpreter` over qnn_ext: a script changes its import, and its model is compiled.

    from qnn_ext.compat.litert import Interpreter    instead of  from ai_edge_litert.interpreter import Interpreter

Results equal LiteRT's as those of `from_tflite` do. `allocate_tensors` compiles the model, or takes it from the cache
of builds. What cannot be honoured raises an error that says so, and what has no effect warns.
"""

from __future__ import annotations

import copy
import enum
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import ModelFormatError
from ..frontends.tflite import from_tflite
from ..frontends.tflite.reader import Signature, Tensor, read_model
from ..frontends.tflite.signatures import check_signature, with_main
from ..running.engine import Engine
from .absent import absent, refuse
from .sessions import Engines, InvalidArgument, InvalidModel, NotReady, ignored

__all__ = ["Interpreter", "OpResolverType", "SignatureRunner"]

__getattr__ = absent(
    "litert",
    {
        "load_delegate": "the model is compiled for this CPU as a whole, and takes no delegates",
        "InterpreterWithCustomOps": "add custom operators as a plugin, see qnn_ext.plugins",
    },
)


class OpResolverType(enum.Enum):
    """Whose results to equal: AUTO and BUILTIN, LiteRT's as it is used, with XNNPACK; BUILTIN_REF, its reference
    kernels'."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


_NUMERICS = {"AUTO": "float32", "BUILTIN": "float32", "BUILTIN_REF": "tflite"}

_NO_EFFECT = {
    "experimental_disable_delegate_clustering": "there are no delegates",
    "experimental_default_delegate_latest_features": "there are no delegates",
    "experimental_disable_delegate_node_fusion": "there are no delegates",
    "experimental_force_delegate_node_profiling": "`interpreter.engine.profile()` times all kernels",
    "experimental_compress_quantization_zero_points": "all zero points are listed",
}


class Interpreter:
    """Runs a TFLite model, with the calls of LiteRT's interpreter.

    model_path, model_content: the path of a .tflite file, or its bytes
    num_threads:               threads the kernels may use; default: 1, as LiteRT's
    experimental_op_resolver_type: whose rounding to follow, an `OpResolverType` of this module or of LiteRT
    others:                    as in LiteRT; none of them changes results. Each one that is set warns or is refused

    Raises InvalidModel (no file, or a damaged one), InvalidArgument, NotHonouredError.
    """

    def __init__(
        self,
        model_path: str | os.PathLike | None = None,
        model_content: bytes | None = None,
        experimental_delegates: Sequence[Any] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: Any = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        **options: bool,
    ) -> None:
        if bool(model_path) == bool(model_content):
            raise InvalidArgument("give either model_path or model_content")
        if num_threads is not None and (not isinstance(num_threads, int) or num_threads < 1):
            raise InvalidArgument(f"num_threads must be an integer of at least 1, found {num_threads!r}")
        if experimental_delegates:
            refuse("Interpreter(experimental_delegates=…)", "the model is compiled for this CPU as a whole")
        if experimental_preserve_all_tensors:
            refuse("Interpreter(experimental_preserve_all_tensors=True)", "fused kernels keep no intermediate tensors")
        for name, value in options.items():
            if name not in _NO_EFFECT:
                raise TypeError(f"Interpreter has no argument {name!r}")
            if value:
                ignored(name, _NO_EFFECT[name])
        kind = getattr(experimental_op_resolver_type, "name", str(experimental_op_resolver_type))
        if kind not in _NUMERICS:
            refuse(
                f"experimental_op_resolver_type {kind}", "take AUTO for XNNPACK's rounding, BUILTIN_REF for TFLite's"
            )
        source = model_path or model_content
        assert source is not None
        try:
            self._model = read_model(source)
        except ModelFormatError as error:
            raise InvalidModel(str(error)) from error
        self._source, self._numerics, self._num_threads = source, _NUMERICS[kind], num_threads or 1
        self._variables = _Variables()
        self._interpreters = {0: self}  # of subgraphs, this one's and others'
        self._take(0)

    def _take(self, subgraph: int) -> None:
        """Make this the interpreter of a subgraph. If there are several signatures, it is imported by its own, as they
        share variables."""
        keys = {entry.subgraph_index: key for key, entry in self._signatures().items()}
        key = keys.get(subgraph) if len(keys) > 1 else None
        self._graph = self._model.subgraphs[subgraph]
        imported = with_main(self._model, key).subgraphs[subgraph]
        self._names = {index: imported.tensors[index].name for index in self._graph.inputs}
        self._engines = Engines(
            lambda shapes: from_tflite(self._source, self._numerics, shapes, signature=key), self._num_threads
        )
        self._resized: dict[int, tuple[int, ...]] = {}
        self._output_shapes: dict[int, tuple[int, ...]] = {}
        self._buffers: dict[int, np.ndarray] = {}
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """What runs: it can be saved as a `.qnn` file, timed and profiled. Raises NotReady before allocate_tensors."""
        if self._engine is None:
            raise NotReady("the model is not compiled yet: call allocate_tensors() first")
        return self._engine

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def allocate_tensors(self) -> None:
        """Compile the model for the shapes of its inputs, and clear its variables. Raises what `from_tflite` and
        `build` raise."""
        if self._engine is not None:
            return
        given = {self._names[index]: shape for index, shape in self._resized.items()}
        engine = self._engines.of(given)
        engine.reset_state()
        self._variables.allocated(self._graph.index)
        self._buffers = {}
        for indices, specs in ((self._graph.inputs, engine.inputs), (self._graph.outputs, engine.outputs)):
            for index, spec in zip(indices, specs, strict=True):
                self._buffers.setdefault(index, np.zeros(spec.shape, spec.dtype))
        self._output_shapes = {i: spec.shape for i, spec in zip(self._graph.outputs, engine.outputs, strict=True)}
        self._engine = engine

    def resize_tensor_input(self, input_index: int, tensor_size: Sequence[int], strict: bool = False) -> None:
        """Give an input another shape; the next `allocate_tensors` compiles for it. Raises InvalidArgument.

        strict: only dimensions that the model leaves open may change
        """
        tensor = self._input(input_index)
        shape = tuple(int(size) for size in tensor_size)
        if len(shape) != len(tensor.shape) or min(shape, default=1) < 1:
            raise InvalidArgument(f"{tensor.label()} has shape {tensor.shape} and cannot be given shape {shape}")
        if shape == self._shape(tensor):
            return
        signature = self._signature(tensor)
        if strict and any(dim not in (-1, size) for size, dim in zip(shape, signature, strict=True)):
            raise InvalidArgument(
                f"{tensor.label()} may only change its open dimensions with strict=True: {signature}, found {shape}"
            )
        self._resized[int(input_index)] = shape
        self._engine = None

    # ---- details ---------------------------------------------------------------------------------------------------

    def get_input_details(self) -> list[dict[str, Any]]:
        """Name, index, shape, dtype and quantization of each input, as LiteRT's dictionaries have them."""
        return [self._details(index) for index in self._graph.inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """The same of each output."""
        return [self._details(index) for index in self._graph.outputs]

    def num_subgraphs(self) -> int:
        return len(self._model.subgraphs)

    def get_tensor_details(self) -> NoReturn:
        """Not available: raises NotHonouredError."""
        refuse("Interpreter.get_tensor_details()", "get_input_details and get_output_details list what exists here")

    def _details(self, index: int) -> dict[str, Any]:
        tensor = self._graph.tensors[index]
        qparams = tensor.qparams
        scales = np.empty(0, np.float32) if qparams is None else np.atleast_1d(qparams.scale).astype(np.float32)
        zeros = np.empty(0, np.int32) if qparams is None else np.atleast_1d(qparams.zero_point).astype(np.int32)
        shape = self._shape(tensor)
        return {
            "name": tensor.name,
            "index": index,
            "shape": np.array(shape, np.int32),
            "shape_signature": np.array(self._signature(tensor), np.int32),
            "dtype": np.dtype(tensor.dtype).type,
            "quantization": (float(scales[0]), int(zeros[0])) if len(scales) == 1 else (0.0, 0),
            "quantization_parameters": {
                "scales": scales,
                "zero_points": zeros,
                "quantized_dimension": tensor.channel_dimension,
                "block_size": 0,
            },
            "sparsity_parameters": {},
        }

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        index = tensor.index
        return self._resized.get(index) or self._output_shapes.get(index, tensor.shape)

    def _signature(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape with -1 for open dimensions. Without any, files have no signature, and it is the current shape."""
        return tensor.shape_signature if -1 in tensor.shape_signature else self._shape(tensor)

    def _input(self, index: int) -> Tensor:
        if index not in self._names:
            raise InvalidArgument(f"tensor {index} is no input of the model; its inputs are {[*self._names]}")
        return self._graph.tensors[index]

    # ---- values ----------------------------------------------------------------------------------------------------

    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Copy a value into an input. Raises InvalidArgument for another shape or dtype than the input's."""
        tensor = self._input(tensor_index)
        buffer, array = self._buffer(tensor_index), np.asarray(value)
        if array.dtype != buffer.dtype:
            hint = f"; quantize it with {tensor.qparams}" if tensor.qparams and array.dtype.kind == "f" else ""
            raise InvalidArgument(f"{tensor.label()} must be {buffer.dtype}, found {array.dtype}{hint}")
        if array.shape != buffer.shape:
            raise InvalidArgument(
                f"{tensor.label()} must have shape {buffer.shape}, found {array.shape}; "
                "resize_tensor_input and allocate_tensors change it"
            )
        np.copyto(buffer, array)

    def get_tensor(self, tensor_index: int) -> np.ndarray:
        """A copy of an input or an output."""
        return self._buffer(tensor_index).copy()

    def tensor(self, tensor_index: int) -> Callable[[], np.ndarray]:
        """A function that returns an input or an output itself: what is written there is what `invoke` reads."""
        self._buffer(tensor_index)
        return lambda: self._buffer(tensor_index)

    def invoke(self) -> None:
        """Run the model. Raises NotReady before allocate_tensors, InputError for values that it cannot take."""
        self._variables.bring(self._graph.index, self.engine)
        results = self.engine.run([self._buffers[index] for index in self._graph.inputs])
        for index, result in zip(self._graph.outputs, results.values(), strict=True):
            if result.shape == self._buffers[index].shape:
                np.copyto(self._buffers[index], result)
            else:  # a size known only now
                self._buffers[index] = result
                self._output_shapes[index] = result.shape

    def reset_all_variables(self) -> None:
        """Give the states of a streaming or recurrent model their initial values."""
        self.engine.reset_state()
        for one in self._interpreters.values():
            if one is not self and one._engine is not None:
                one._engine.reset_state()
        self._variables.last = None

    def _buffer(self, index: int) -> np.ndarray:
        if self._engine is None:
            raise NotReady("tensors are not allocated: call allocate_tensors() first")
        if index not in self._buffers:
            raise InvalidArgument(
                f"tensor {index} is neither an input nor an output; those are {sorted(self._buffers)}: fused "
                "kernels keep no others"
            )
        return self._buffers[index]

    # ---- signatures ------------------------------------------------------------------------------------------------

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """The names of the inputs and outputs of each signature."""
        return {
            key: {"inputs": sorted(entry.inputs), "outputs": sorted(entry.outputs)}
            for key, entry in sorted(self._signatures().items())
        }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A function of the signature's inputs; without a key, of the only one. Raises InvalidArgument."""
        entries = self._signatures()
        if signature_key is None and len(entries) == 1:
            (signature_key,) = entries
        if signature_key not in entries:
            raise InvalidArgument(f"signature_key must be one of {sorted(entries)}, found {signature_key!r}")
        entry = entries[signature_key]
        check_signature(entry, self._model.subgraphs[entry.subgraph_index])
        return SignatureRunner(self._of(entry.subgraph_index), entry)

    def _of(self, subgraph: int) -> Interpreter:
        """The interpreter of a subgraph, over the same variables."""
        if subgraph not in self._interpreters:
            other = copy.copy(self)
            other._take(subgraph)
            self._interpreters[subgraph] = other
        return self._interpreters[subgraph]

    def _signatures(self) -> dict[str, Signature]:
        return {entry.signature_key: entry for entry in self._model.signatures}


class _Variables:
    """The variables that the subgraphs of a model share: states of the engine that ran last."""

    def __init__(self) -> None:
        self.last: tuple[int, Engine] | None = None  # of which subgraph, which engine

    def allocated(self, subgraph: int) -> None:
        """Of this subgraph, another engine runs from now on. It begins with the initial values."""
        if self.last is not None and self.last[0] == subgraph:
            self.last = None

    def bring(self, subgraph: int, engine: Engine) -> None:
        """Give an engine that is about to run the present values."""
        if self.last is not None and self.last[1] is not engine:
            before, now = _state_values(self.last[1]), _state_values(engine)
            engine.set_states([before.get(name, value) for name, value in now.items()])
        self.last = subgraph, engine


def _state_values(engine: Engine) -> dict[str, np.ndarray]:
    return {state.name: value for state, value in zip(engine.states, engine.state_values(), strict=True)}


class SignatureRunner:
    """A signature of a model as a function: arrays by the signature's input names → arrays by its output names. Inputs
    of new shapes resize the model."""

    def __init__(self, interpreter: Interpreter, signature: Signature) -> None:
        self._interpreter, self._signature = interpreter, signature

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        places = self._signature.inputs
        if inputs.keys() != places.keys():
            raise InvalidArgument(
                f"signature {self._signature.signature_key!r} takes {sorted(places)}, found {sorted(inputs)}"
            )
        for name, value in inputs.items():
            self._interpreter.resize_tensor_input(places[name], np.shape(value))
        self._interpreter.allocate_tensors()
        for name, value in inputs.items():
            self._interpreter.set_tensor(places[name], value)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(i) for name, i in sorted(self._signature.outputs.items())}

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        return {name: self._interpreter._details(i) for name, i in sorted(self._signature.inputs.items())}

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        return {name: self._interpreter._details(i) for name, i in sorted(self._signature.outputs.items())}
