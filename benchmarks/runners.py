"""All the runtimes compared: those of `qnn_ext.racing.runtimes`, PyTorch, and TVM's own frontend.

Every runtime is imported by the function that needs it, so that a process running one of them loads none of the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from qnn_ext.racing.runtimes import PEERS as SHARED
from qnn_ext.racing.runtimes import Peer, Runner, compiled_runner, engine_runner, litert_runner, timed

from .models import Model

__all__ = [
    "PEERS",
    "READS",
    "Peer",
    "Runner",
    "compiled_runner",
    "inductor_runner",
    "litert_runner",
    "measure",
    "qnn_ext_runner",
    "timed",
    "torchscript_runner",
    "tvm_runner",
]


# ---- qnn_ext -----------------------------------------------------------------------------------------------------


def qnn_ext_runner(path: str | os.PathLike, threads: int, numerics: str = "float32") -> Runner:
    """A TFLite model through qnn_ext, compiled for this machine."""
    import qnn_ext

    return engine_runner(qnn_ext.build(qnn_ext.from_tflite(path, numerics=numerics), "native", num_threads=threads))


# ---- peers -------------------------------------------------------------------------------------------------------


def inductor_runner(path: str | os.PathLike, threads: int) -> Runner:
    """An exported PT2E program through torch.compile with frozen weights: oneDNN's integer kernels."""
    import torch
    import torch._inductor.config
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401  registers fusions and operators

    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True
    with torch.no_grad():
        module = torch.compile(torch.export.load(os.fspath(path)).module())
    return _torch_runner("PyTorch inductor", module)


def torchscript_runner(path: str | os.PathLike, threads: int) -> Runner:
    """A TorchScript model of eager or FX quantization, with the engine that its file name gives."""
    import torch

    torch.set_num_threads(threads)
    torch.backends.quantized.engine = Model(Path(path)).engine or "x86"
    return _torch_runner("PyTorch", torch.jit.load(os.fspath(path)).eval())


def _torch_runner(name: str, module: Any) -> Runner:
    import torch

    held: list[Any] = []

    def call() -> Any:
        with torch.no_grad():
            return module(*held)

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held[:] = [torch.from_numpy(np.ascontiguousarray(value)) for value in inputs]
        call()  # a profiling executor optimizes at the second call
        result = call()
        return [value.numpy() for value in (result if isinstance(result, (tuple, list)) else (result,))]

    return Runner(name, outputs, timed(call))


def tvm_runner(path: str | os.PathLike, threads: int) -> Runner:
    """A TFLite model through TVM's own frontend and default pipeline: dequantize → float operator → quantize."""
    import tflite
    import tvm
    from tvm import relax
    from tvm.relax.frontend.tflite import from_tflite

    import qnn_ext

    with open(path, "rb") as file:
        mod = from_tflite(tflite.Model.GetRootAsModel(file.read(), 0))
    target = qnn_ext.targets.names.make_target("native", threads)
    machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
    arguments: list[tvm.runtime.Tensor] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments[:] = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs]
        result = machine["main"](*arguments)
        return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]

    def seconds(number: int) -> float:
        return float(machine.time_evaluator("main", tvm.cpu(), number=number, repeat=1)(*arguments).mean)

    return Runner("TVM's frontend", outputs, seconds)


# ---- which runtime runs what -------------------------------------------------------------------------------------


PEERS = (
    *SHARED,
    Peer("inductor", "PyTorch inductor", ("torch", "torchao"), ("pt2",), inductor_runner),
    Peer("torchscript", "PyTorch eager", ("torch",), ("torchscript",), torchscript_runner),
)


READS = {"memory": 1 << 28, "caches (4 MB)": 1 << 22}
"""Bytes of the buffers whose reads are timed: several last-level caches; more than the caches below it."""


def measure(runners: Sequence[Runner], rounds: int = 20, seconds_per_round: float = 0.02) -> dict[str, float]:
    """Median seconds per call of each runner, taking turns in this process: a quick look, for one thread.

    Every runner must have computed outputs once before: that sets its inputs. `python -m benchmarks` gives each its own
    process, which multi-threaded measurements need: see `turns`.
    """
    numbers = [max(1, min(2000, int(seconds_per_round / max(runner.seconds(3), 1e-6)))) for runner in runners]
    taken: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for _ in range(rounds):
        for runner, number in zip(runners, numbers, strict=True):
            taken[runner.name].append(runner.seconds(number))
    return {name: median(values) for name, values in taken.items()}
