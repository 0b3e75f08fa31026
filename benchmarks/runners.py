"""One interface to the runtimes compared: outputs for inputs, and seconds per call. Measuring takes turns.

Seconds are those of the inference call itself, inputs in place: LiteRT's `invoke`, a TVM virtual machine's `main`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

import qnn_ext


@dataclass(frozen=True)
class Runner:
    """name: for tables. outputs: inputs in model order -> outputs in model order. seconds: calls -> mean of one."""

    name: str
    outputs: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    seconds: Callable[[int], float]


def qnn_ext_runner(path: str | os.PathLike, threads: int, numerics: str = "float32") -> Runner:
    """The model through qnn_ext, compiled for this machine."""
    engine = qnn_ext.build(qnn_ext.from_tflite(path, numerics=numerics), "native", num_threads=threads)

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        engine.reset_state()
        return list(engine.run(inputs).values())

    return Runner("qnn_ext", outputs, lambda number: engine.time(number=number, repeat=1).median)


def litert_runner(path: str | os.PathLike, threads: int, reference: bool = False) -> Runner:
    """The model through LiteRT: XNNPACK, as it runs by default, or the reference kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(os.fspath(path), num_threads=threads, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        interpreter.reset_all_variables()
        for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]

    def seconds(number: int) -> float:
        started = time.perf_counter()
        for _ in range(number):
            interpreter.invoke()
        return (time.perf_counter() - started) / number

    return Runner("LiteRT reference" if reference else "LiteRT", outputs, seconds)


def tvm_runner(path: str | os.PathLike, threads: int) -> Runner:
    """The model through TVM's own TFLite frontend and default pipeline: dequantize → float operator → quantize."""
    import tflite
    import tvm
    from tvm import relax
    from tvm.relax.frontend.tflite import from_tflite

    with open(path, "rb") as file:
        mod = from_tflite(tflite.Model.GetRootAsModel(file.read(), 0))
    target = qnn_ext.target.make_target("native", threads)
    machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
    arguments: list[tvm.runtime.Tensor] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arguments[:] = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs]
        result = machine["main"](*arguments)
        return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]

    def seconds(number: int) -> float:
        return float(machine.time_evaluator("main", tvm.cpu(), number=number, repeat=1)(*arguments).mean)

    return Runner("TVM's frontend", outputs, seconds)


def measure(runners: Sequence[Runner], rounds: int = 20, seconds_per_round: float = 0.02) -> dict[str, float]:
    """Median seconds per call of each runner. They take turns, so that a busy moment of the machine hits all alike.

    Every runner must have computed outputs once before: that is what sets its inputs.
    """
    numbers = [max(1, min(2000, int(seconds_per_round / max(runner.seconds(3), 1e-6)))) for runner in runners]
    taken: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for _ in range(rounds):
        for runner, number in zip(runners, numbers, strict=True):
            taken[runner.name].append(runner.seconds(number))
    return {name: median(values) for name, values in taken.items()}
