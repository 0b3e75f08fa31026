"""What takes turns on the GPU: our models and kernels, ONNX Runtime's providers, PyTorch, and the peak.

Each runs in its own worker (`benchmarks.worker`), under a key "cuda:KIND". Inputs are on the device; timing ends when
the GPU is done.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..runners import Runner, timed

PREFIX = "cuda:"
OURS, PEAK, GEMM, INT_MM = "qnn_ext", "peak", "gemm", "int_mm"
TORCH = {"torch-float32": "float32", "torch-float16": "float16"}
PROVIDERS = {"onnxruntime-cuda": "CUDAExecutionProvider", "onnxruntime-tensorrt": "TensorrtExecutionProvider"}


def available_peers() -> tuple[list[str], dict[str, str]]:
    """The keys of the peers that are installed, and why the others are missing."""
    found, reasons = [], {}
    offered: list[str] = []
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        offered = onnxruntime.get_available_providers()
    for key, provider in PROVIDERS.items():
        if provider in offered:
            found.append(key)
        else:
            reasons[key] = f"{provider} is not available (pip install onnxruntime-gpu)"
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found += [INT_MM, *TORCH]
        else:
            reasons["PyTorch"] = "it is installed without CUDA"
    else:
        reasons["PyTorch"] = "it is not installed"
    return found, reasons


def open_runner(kind: str, path: str) -> Runner:
    """The runner of a task: `path` is a .qnn or .onnx file, a product's "m,k,n", or "NETWORK,BATCH" for PyTorch."""
    if kind == PEAK:
        from qnn_ext.targets import gpus as gpu

        from .peak import peak_runner

        return peak_runner(gpu.architecture_of("cuda"))
    if kind == OURS:
        return _model_runner(path)
    if kind in PROVIDERS:
        return _onnxruntime_runner(path, PROVIDERS[kind])
    if kind in TORCH:
        return _torch_runner(path, TORCH[kind])
    m, k, n = map(int, path.split(","))
    return {GEMM: _gemm_runner, INT_MM: _int_mm_runner}[kind](m, k, n)


def _model_runner(path: str) -> Runner:
    import qnn_ext

    engine = qnn_ext.load(path)
    given: list[np.ndarray] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        given[:] = inputs
        engine.reset_state()
        return list(engine.run(inputs).values())

    return Runner("qnn_ext", outputs, lambda number: engine.time(number=number, repeat=1, inputs=given).median)


def _onnxruntime_runner(path: str, provider: str) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=[provider])
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"ONNX Runtime cannot use {provider} on this machine")
    binding = session.io_binding()
    held: list[Any] = []  # bound buffers must stay alive

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held[:] = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x), "cuda", 0) for x in inputs]
        for spec, value in zip(session.get_inputs(), held, strict=True):
            binding.bind_ortvalue_input(spec.name, value)
        for spec in session.get_outputs():
            binding.bind_output(spec.name, "cuda")
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def call() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return Runner(provider, outputs, timed(call))


def operands(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int8 A (m, k) and B (n, k), and a few rows of A · Bᵀ, (rows, n) int32."""
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (m, k), dtype=np.int8)
    b = rng.integers(-128, 128, (n, k), dtype=np.int8)
    return a, b, a[:8].astype(np.int32) @ b.T.astype(np.int32)


def _check(result: np.ndarray, expected: np.ndarray) -> list[np.ndarray]:
    if not np.array_equal(result[: len(expected)], expected):
        raise ValueError("the product is not A · Bᵀ")
    return []


def gemm_kernel(m: int, k: int, n: int, target: Any) -> tuple[Any, Any]:
    """Our kernel for a dense layer of these sizes without epilogue, as a TVM module, and the implementation's name."""
    from tvm import te
    from tvm.s_tir import Schedule

    from qnn_ext.topi_int8 import DenseWorkload, select

    workload = DenseWorkload(m, k, n, "int8", "int8")
    implementation = select(workload, target)
    assert implementation.pack_weight is not None
    packed = implementation.pack_weight(workload, np.zeros((n, k), np.int8))
    inputs = [te.placeholder((m, k), "int8", "x"), te.placeholder(packed.shape, "int8", "w")]
    sch = Schedule(te.create_prim_func([*inputs, implementation.compute(workload, *inputs, 0)]))
    implementation.schedule(sch, workload, target)
    return sch.mod, implementation


def _gemm_runner(m: int, k: int, n: int) -> Runner:
    import tvm

    from qnn_ext.compiling.codegen import generate_code
    from qnn_ext.targets.names import make_target
    from qnn_ext.topi_int8 import DenseWorkload

    target, device = make_target("cuda"), tvm.cuda()
    module, implementation = gemm_kernel(m, k, n, target)
    kernel = generate_code(module, target)
    a, b, expected = operands(m, k, n)
    packed = implementation.pack_weight(DenseWorkload(m, k, n, "int8", "int8"), b)
    buffers = [tvm.runtime.tensor(array, device) for array in (a, packed, np.zeros((m, n), np.int32))]

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        kernel["main"](*buffers)
        return _check(buffers[-1].numpy(), expected)

    def seconds(number: int) -> float:
        return float(kernel.mod.time_evaluator("main", device, number=number, repeat=1)(*buffers).mean)

    return Runner(implementation.name, outputs, seconds, work=2.0 * m * k * n)


def _int_mm_runner(m: int, k: int, n: int) -> Runner:
    import torch

    a, b, expected = operands(m, k, n)
    left, right = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda().t()  # column-major, as cuBLASLt wants it

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return _check(torch._int_mm(left, right).cpu().numpy(), expected)

    def seconds(number: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(number):
            torch._int_mm(left, right)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / number

    return Runner("torch._int_mm", outputs, seconds, work=2.0 * m * k * n)


def _torch_runner(path: str, dtype: str) -> Runner:
    """A network of `scripts.networks` in eager PyTorch (cuDNN, cuBLAS), channels last, replayed as a CUDA graph."""
    import torch

    from scripts.networks import NETWORKS

    name, batch = path.split(",")
    make, draw = NETWORKS[name]
    kind = getattr(torch, dtype)
    torch.backends.cudnn.benchmark = True
    generator = torch.Generator().manual_seed(0)
    model = make().eval().cuda().to(kind, memory_format=torch.channels_last)
    example = torch.cat([draw(generator) for _ in range(int(batch))]).cuda()
    if example.is_floating_point():
        example = example.to(kind, memory_format=torch.channels_last)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # cuDNN chooses its algorithms
                model(example)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            model(example)

    def seconds(number: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(number):
            graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / number

    return Runner(f"PyTorch {dtype}", lambda inputs: [], seconds)
