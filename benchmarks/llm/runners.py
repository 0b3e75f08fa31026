"""One interface to the runtimes: tokens in, logits out, and a cache that can be shortened.

Every runtime is imported by the function that needs it, so that a process running one of them loads none of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .networks import LOGITS, MASK, TOKENS, Network


class Language(Protocol):
    """A language model with a cache in a runtime."""

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits (vocabulary,) after these tokens, which the cache then holds too."""

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens in the cache."""


@dataclass(frozen=True)
class Runtime:
    """A runtime that is measured.

    modules: what it needs
    file:    the kind of file that it reads: "qnn", "onnx", "gguf", or "torchao." and a scheme
    bits:    of the weights that it knows
    """

    key: str
    title: str
    modules: tuple[str, ...]
    file: str
    open: Callable[[str, Network, int], Language]
    bits: tuple[int, ...] = (4, 8)


# ---- qnn_ext -----------------------------------------------------------------------------------------------------


class Ours:
    """A `.qnn` file, as `qnn-ext generate` runs it."""

    def __init__(self, path: str, network: Network, threads: int) -> None:
        from qnn_ext import load
        from qnn_ext.generation import LanguageModel

        self._model = LanguageModel(load(path, num_threads=threads))
        for engine in self._model.engines:
            engine.prepare()

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        return self._model.logits(tokens)

    def rewind(self, length: int) -> None:
        self._model.position = length


# ---- ONNX Runtime ------------------------------------------------------------------------------------------------


class OnnxRuntime:
    """An ONNX model, whose cache is bound as input and as output: it is updated in place."""

    def __init__(self, path: str, network: Network, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        empty = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self._cache = {name: empty(network.cache_shape, np.float32) for name in network.states}
        for name, value in self._cache.items():
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_ortvalue_output(network.states[name], value)
        self._logits = empty((1, 1, network.vocabulary), np.float32)
        self._binding.bind_ortvalue_output(LOGITS, self._logits)
        self._position = 0

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        self._position += len(tokens)
        arrays = np.asarray([tokens], np.int64), np.ones((1, self._position), np.int64)
        self._given = [(array, self._value(array)) for array in arrays]  # a value does not keep its array alive
        for name, (_, value) in zip((TOKENS, MASK), self._given, strict=True):
            self._binding.bind_ortvalue_input(name, value)
        self._session.run_with_iobinding(self._binding)
        return self._logits.numpy()[0, 0]

    def rewind(self, length: int) -> None:
        self._position = length


# ---- OpenVINO ----------------------------------------------------------------------------------------------------


class OpenVino:
    """An ONNX model, compiled for latency, whose cache is a variable of the model that grows with each call."""

    def __init__(self, path: str, network: Network, threads: int) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        core = openvino.Core()
        model = core.read_model(path)
        empty = {name: (1, network.groups, -1, network.size) for name in network.states}
        model.reshape({TOKENS: (1, -1), MASK: (1, -1), **empty})
        apply_make_stateful_transformation(model, network.states)
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",  # its default is bfloat16 where the CPU has AMX
        }
        self._tensor = openvino.Tensor
        self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        self._none = np.zeros((1, network.groups, 0, network.size), np.float32)
        self._position = 0
        self.rewind(0)

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        self._position += len(tokens)
        arrays = np.asarray([tokens], np.int64), np.ones((1, self._position), np.int64)
        for name, array in zip((TOKENS, MASK), arrays, strict=True):
            self._request.set_tensor(name, self._tensor(array))
        self._request.infer()
        return np.array(self._request.get_tensor(LOGITS).data).reshape(-1)

    def rewind(self, length: int) -> None:
        for state in self._request.query_state():
            kept = np.array(state.state.data[:, :, :length]) if length else self._none
            state.state = self._tensor(np.ascontiguousarray(kept))
        self._position = length


# ---- llama.cpp ---------------------------------------------------------------------------------------------------


class LlamaCpp:
    """A GGUF file, mapped, through llama-cpp-python. Its cache is float16, its default."""

    def __init__(self, path: str, network: Network, threads: int) -> None:
        from llama_cpp import Llama

        self._model = Llama(
            path,
            n_ctx=network.length,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        from llama_cpp import llama_get_logits_ith

        self._model.eval(tokens)
        logits = llama_get_logits_ith(self._model.ctx, -1)
        return np.ctypeslib.as_array(logits, (self._model.n_vocab(),)).copy()

    def rewind(self, length: int) -> None:
        self._model.n_tokens = length


# ---- torchao -----------------------------------------------------------------------------------------------------


def _eager(path: str, network: Network, threads: int) -> Language:
    from .torch_network import TorchAO

    return TorchAO(path, network, threads, compiled=False)


def _inductor(path: str, network: Network, threads: int) -> Language:
    from .torch_network import TorchAO

    return TorchAO(path, network, threads, compiled=True)


def _torchao(scheme: str, title: str, bits: int) -> tuple[Runtime, Runtime]:
    """Eager and compiled."""
    modules, file = ("torch", "torchao"), f"torchao.{scheme}"
    return (
        Runtime(f"torchao-{scheme}", f"torchao {title}", modules, file, _eager, (bits,)),
        Runtime(f"inductor-{scheme}", f"torchao {title}, compiled", modules, file, _inductor, (bits,)),
    )


RUNTIMES = (
    Runtime("qnn_ext", "qnn_ext", ("qnn_ext.generation",), "qnn", Ours),
    Runtime("onnxruntime", "ONNX Runtime", ("onnxruntime",), "onnx", OnnxRuntime),
    Runtime("openvino", "OpenVINO", ("openvino",), "onnx", OpenVino),
    Runtime("llama.cpp", "llama.cpp", ("llama_cpp", "gguf"), "gguf", LlamaCpp),
    *_torchao("int4", "int4 weight-only", 4),
    *_torchao("8da4w", "8da4w", 4),
    *_torchao("int8", "int8 weight-only", 8),
    *_torchao("8da8w", "int8 dynamic", 8),
)
