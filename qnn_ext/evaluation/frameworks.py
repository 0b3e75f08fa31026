"""Models in the runtimes of their own frameworks, with the inputs and outputs that our import of them has.

A runtime is imported when a model is opened. It runs the file as it is: only files you trust.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import QnnError
from ..module import TensorSpec
from .mxnet import Mxnet, MxnetError

Call = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Inputs in model order, of the model's own dtypes -> outputs in model order."""


class Unavailable(QnnError):
    """Why a framework does not run a model."""


@dataclass(frozen=True)
class Framework:
    """A model file and the runtime that runs it.

    title: of the runtime; open: inputs, threads -> the model as a function. Raises Unavailable
    """

    title: str
    open: Callable[[Sequence[TensorSpec], int], Call]


def litert(path: str | os.PathLike, reference: bool = False, signature: str | None = None) -> Framework:
    """A TFLite model in LiteRT, with XNNPACK, or with its reference kernels: its main graph, or a signature's."""

    def open_model(inputs: Sequence[TensorSpec], threads: int) -> Call:
        try:
            from ai_edge_litert.interpreter import Interpreter, OpResolverType
        except ImportError as error:
            raise _missing("LiteRT", "ai-edge-litert") from error
        kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
        model = Interpreter(os.fspath(path), num_threads=threads, experimental_op_resolver_type=kind)
        if signature is not None:
            return _signature_call(model, path, signature)
        places = model.get_input_details()
        _check_inputs(len(places), inputs)
        for place, spec in zip(places, inputs, strict=True):
            if tuple(place["shape"]) != spec.shape:
                model.resize_tensor_input(place["index"], spec.shape)
        model.allocate_tensors()
        results = [detail["index"] for detail in model.get_output_details()]

        def call(values: Sequence[np.ndarray]) -> list[np.ndarray]:
            model.reset_all_variables()
            for place, value in zip(places, values, strict=True):
                model.set_tensor(place["index"], value)
            model.invoke()
            return [model.get_tensor(index) for index in results]

        return call

    return Framework("LiteRT reference kernels" if reference else "LiteRT", open_model)


def _signature_call(model: Any, path: str | os.PathLike, signature: str) -> Call:
    """A signature of LiteRT's model as a function of its inputs, in the order of the import."""
    from ..frontends.tflite.reader import read_model
    from ..frontends.tflite.signatures import with_main

    found = with_main(read_model(path), signature)
    graph = found.subgraphs[found.main]
    inputs, outputs = ([graph.tensors[index].name for index in ports] for ports in (graph.inputs, graph.outputs))
    runner = model.get_signature_runner(signature)

    def call(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        model.reset_all_variables()
        results = runner(**dict(zip(inputs, values, strict=True)))
        return [results[name] for name in outputs]

    return call


def onnx_runtime(path: str | os.PathLike) -> Framework:
    """An ONNX model in ONNX Runtime, all graph optimizations on. On CPUs without VNNI its 8-bit products saturate."""

    def open_model(inputs: Sequence[TensorSpec], threads: int) -> Call:
        try:
            import onnxruntime
        except ImportError as error:
            raise _missing("ONNX Runtime", "onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_inputs()]
        _check_inputs(len(names), inputs)
        return lambda values: list(session.run(None, dict(zip(names, values, strict=True))))

    return Framework("ONNX Runtime", open_model)


def pytorch(model: Any, engine: str | None = None, exported: bool = True) -> Framework:
    """A program of torch.export or a TorchScript module, or the path of either, in PyTorch's eager mode.

    engine: of quantized TorchScript: fbgemm, x86, onednn or qnnpack; default: PyTorch's own
    exported: whether a path is that of a `.pt2` program
    """

    def open_model(inputs: Sequence[TensorSpec], threads: int) -> Call:
        try:
            import torch
            import torch.ao.quantization.fx._decomposed  # registers the operators of PT2E
        except ImportError as error:
            raise _missing("PyTorch", "torch") from error
        loaded = model
        with _settings(torch, threads, engine):  # TorchScript packs its weights for the engine when it is loaded
            if isinstance(model, (str, os.PathLike)):
                loaded = torch.export.load(os.fspath(model)) if exported else torch.jit.load(os.fspath(model))
            run = loaded.module() if isinstance(loaded, torch.export.ExportedProgram) else loaded.eval()

        def call(values: Sequence[np.ndarray]) -> list[np.ndarray]:
            with _settings(torch, threads, engine), torch.no_grad():
                found = run(*(torch.from_numpy(np.array(value)) for value in values))
            results = torch.utils._pytree.tree_leaves(found)
            return [result.int_repr().numpy() if result.is_quantized else result.numpy() for result in results]

        return call

    return Framework("PyTorch", open_model)


@contextmanager
def _settings(torch: Any, threads: int, engine: str | None) -> Iterator[None]:
    """PyTorch with these threads and this engine, and afterwards as it was."""
    before = torch.get_num_threads(), torch.backends.quantized.engine
    try:
        torch.set_num_threads(threads)
        torch.backends.quantized.engine = engine or before[1]
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.quantized.engine = before[1]


def mxnet(symbol: str | os.PathLike, params: str | os.PathLike) -> Framework:
    """An MXNet model, a `-symbol.json` and a `.params` file, in MXNet 1.9.1. That runs in a process with another Python
    if the environment variable QNN_EXT_MXNET_PYTHON names one that has it.
    """

    def open_model(inputs: Sequence[TensorSpec], threads: int) -> Call:
        server = Mxnet(threads)
        model = {"symbol": np.array(Path(symbol).read_text()), "params": np.array(os.path.abspath(params))}

        def call(values: Sequence[np.ndarray]) -> list[np.ndarray]:
            given = {f"0/{spec.name}": value for spec, value in zip(inputs, values, strict=True)}
            try:
                results = server.ask({**model, **given})
            except MxnetError as error:
                raise Unavailable(str(error)) from error
            model.clear()  # the process knows it now
            return [results[f"0/{index}"] for index in range(len(results))]

        return call

    return Framework("MXNet", open_model)


def _check_inputs(count: int, inputs: Sequence[TensorSpec]) -> None:
    if count != len(inputs):
        raise Unavailable(
            f"its model takes {count} inputs, the imported one {len(inputs)}: constants or states were bound at import"
        )


def _missing(title: str, package: str) -> Unavailable:
    return Unavailable(f"{title} is not installed: pip install {package}")
