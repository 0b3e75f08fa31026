"""One interface to the runtimes compared: outputs for inputs, and seconds per call.

Seconds are those of the inference call alone, with inputs in place: LiteRT's `invoke`, ONNX Runtime's run with bound
inputs, OpenVINO's `infer`. Every runtime is imported by the function that needs it, so that a process running one of
them loads none of the others.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Runner:
    """A model in a runtime, ready to run.

    name:    for tables
    outputs: inputs in model order -> outputs in model order; must be called once before the other two
    seconds: number of calls -> mean seconds of one
    profile: number of runs -> its kernels with their median seconds, where the runtime reports them
    work:    operations or bytes per call, where the runner measures the machine rather than a model
    """

    name: str
    outputs: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
    seconds: Callable[[int], float]
    profile: Callable[[int], list[dict[str, Any]]] | None = None
    work: float = 0.0


def timed(call: Callable[[], object]) -> Callable[[int], float]:
    """`seconds` for a runtime that is called from Python."""

    def seconds(number: int) -> float:
        started = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - started) / number

    return seconds


# ---- qnn_ext -----------------------------------------------------------------------------------------------------


def compiled_runner(path: str | os.PathLike, threads: int) -> Runner:
    """A `.qnn` file, as deployed."""
    from ..running.engine import load

    return engine_runner(load(path, num_threads=threads))


def engine_runner(engine: Any) -> Runner:
    """An engine, timed on the inputs that it last computed outputs of."""
    held: list[np.ndarray] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held[:] = inputs
        engine.reset_state()
        return list(engine.run(inputs).values())

    def profile(repeat: int) -> list[dict[str, Any]]:
        return [{**asdict(layer.kernel), "seconds": layer.seconds} for layer in engine.profile(repeat, held)]

    return Runner("qnn_ext", outputs, lambda number: engine.time(number, 1, held).median, profile)


# ---- peers -------------------------------------------------------------------------------------------------------


def litert_runner(path: str | os.PathLike, threads: int, reference: bool = False) -> Runner:
    """A TFLite model through LiteRT: XNNPACK, its default, or the reference kernels. Resized to its first inputs."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(os.fspath(path), num_threads=threads, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        places = interpreter.get_input_details()
        if any(tuple(place["shape"]) != value.shape for place, value in zip(places, inputs, strict=True)):
            for place, value in zip(places, inputs, strict=True):
                interpreter.resize_tensor_input(place["index"], value.shape)
            interpreter.allocate_tensors()
        interpreter.reset_all_variables()
        for place, value in zip(places, inputs, strict=True):
            interpreter.set_tensor(place["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]

    return Runner("LiteRT reference" if reference else "LiteRT", outputs, timed(interpreter.invoke))


def onnxruntime_runner(path: str | os.PathLike, threads: int) -> Runner:
    """An ONNX model through ONNX Runtime, all graph optimizations on."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held: list[Any] = []  # bound buffers must stay alive

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held[:] = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for value in inputs]
        for spec, value in zip(session.get_inputs(), held, strict=True):
            binding.bind_ortvalue_input(spec.name, value)
        for spec in session.get_outputs():
            binding.bind_output(spec.name)
        session.run_with_iobinding(binding)
        results: list[np.ndarray] = binding.copy_outputs_to_cpu()
        return results

    return Runner("ONNX Runtime", outputs, timed(lambda: session.run_with_iobinding(binding)))


OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def openvino_runner(path: str | os.PathLike, threads: int, precision: str = "float32") -> Runner:
    """A TFLite or ONNX model through OpenVINO, compiled for latency at the shapes of its first inputs."""
    import openvino

    core = openvino.Core()
    model = core.read_model(os.fspath(path))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[precision],  # its default: bfloat16, if the CPU has it
    }
    requests: list[Any] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not requests:
            model.reshape({port: value.shape for port, value in zip(model.inputs, inputs, strict=True)})
            requests.append(core.compile_model(model, "CPU", settings).create_infer_request())
        for index, value in enumerate(inputs):
            requests[0].set_input_tensor(index, openvino.Tensor(np.ascontiguousarray(value)))
        requests[0].infer(share_outputs=True)
        return [np.array(tensor.data) for tensor in requests[0].output_tensors]

    return Runner("OpenVINO", outputs, timed(lambda: requests[0].infer(share_outputs=True)))


@dataclass(frozen=True)
class Peer:
    """A runtime to compare with.

    key:        its name on the command line
    title:      its name in tables
    modules:    what must be importable
    formats:    the models it reads
    open:       path, threads -> Runner; if there are several precisions, the third argument
    package:    what to install
    precisions: of float products
    """

    key: str
    title: str
    modules: tuple[str, ...]
    formats: tuple[str, ...]
    open: Callable[..., Runner]
    package: str = ""
    precisions: tuple[str, ...] = ("float32",)

    @property
    def missing(self) -> tuple[str, ...]:
        """The required modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


PEERS = (
    Peer("litert", "LiteRT", ("ai_edge_litert",), ("tflite",), litert_runner, "ai-edge-litert"),
    Peer("onnxruntime", "ONNX Runtime", ("onnxruntime",), ("onnx",), onnxruntime_runner, "onnxruntime"),
    Peer(
        *("openvino", "OpenVINO", ("openvino",), ("tflite", "onnx"), openvino_runner, "openvino"),
        precisions=tuple(OPENVINO_PRECISIONS),
    ),
)
