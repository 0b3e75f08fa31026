"""One interface to all the runtimes compared: outputs for inputs, and seconds per call.

Seconds are those of the inference call alone, with inputs in place: LiteRT's `invoke`, ONNX Runtime's run with bound
inputs, a TVM virtual machine's `main`. Every runtime is imported by the function that needs it, so that a process
running one of them loads none of the others.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .models import Model


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


def qnn_ext_runner(path: str | os.PathLike, threads: int, numerics: str = "float32") -> Runner:
    """A TFLite model through qnn_ext, compiled for this machine."""
    import qnn_ext

    return _engine_runner(qnn_ext.build(qnn_ext.from_tflite(path, numerics=numerics), "native", num_threads=threads))


def compiled_runner(path: str | os.PathLike, threads: int) -> Runner:
    """A `.qnn` file, as deployed."""
    import qnn_ext

    return _engine_runner(qnn_ext.load(path, num_threads=threads))


def _engine_runner(engine: Any) -> Runner:
    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        engine.reset_state()
        return list(engine.run(inputs).values())

    def profile(repeat: int) -> list[dict[str, Any]]:
        return [{**asdict(layer.kernel), "seconds": layer.seconds} for layer in engine.profile(repeat)]

    return Runner("qnn_ext", outputs, lambda number: engine.time(number=number, repeat=1).median, profile)


# ---- peers -------------------------------------------------------------------------------------------------------


def litert_runner(path: str | os.PathLike, threads: int, reference: bool = False) -> Runner:
    """A TFLite model through LiteRT: XNNPACK, its default, or the reference kernels."""
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
        return binding.copy_outputs_to_cpu()

    return Runner("ONNX Runtime", outputs, timed(lambda: session.run_with_iobinding(binding)))


def openvino_runner(path: str | os.PathLike, threads: int) -> Runner:
    """A TFLite or ONNX model through OpenVINO, compiled for latency at the shapes of its first inputs."""
    import openvino

    core = openvino.Core()
    model = core.read_model(os.fspath(path))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",  # its default rounds floats to bfloat16 where the CPU has AMX
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


@dataclass(frozen=True)
class Peer:
    """A runtime to compare with.

    key:     its name on the command line
    title:   its name in tables
    modules: what must be importable
    formats: the models it reads
    open:    path, threads -> Runner
    """

    key: str
    title: str
    modules: tuple[str, ...]
    formats: tuple[str, ...]
    open: Callable[[str, int], Runner]

    @property
    def missing(self) -> tuple[str, ...]:
        """The required modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)


PEERS = (
    Peer("litert", "LiteRT", ("ai_edge_litert",), ("tflite",), litert_runner),
    Peer("onnxruntime", "ONNX Runtime", ("onnxruntime",), ("onnx",), onnxruntime_runner),
    Peer("openvino", "OpenVINO", ("openvino",), ("tflite", "onnx"), openvino_runner),
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
