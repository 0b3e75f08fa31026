"""GPUs as targets: names, what is refused where there is no GPU, sources, `.qnn` files, running with tensors there."""

from __future__ import annotations

import sys
import zipfile
import zlib

import numpy as np
import pytest
import tvm_ffi

import qnn_ext
from qnn_ext import QnnError, TargetError, build, load
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.errors import InputError
from qnn_ext.module import State
from qnn_ext.running import gpu_runtime
from qnn_ext.running.gpu_executor import DeviceExecutor
from qnn_ext.targets import cuda_compiler
from qnn_ext.targets import gpus as gpu
from qnn_ext.targets.names import make_target

from . import device

DATA = qnn_ext.__path__[0] + "/data"
NO_GPU = (None, "this machine has no NVIDIA driver")


@pytest.fixture(scope="module")
def module():
    return qnn_ext.from_tflite(f"{DATA}/digits_cnn_int8.tflite")


@pytest.fixture(scope="module")
def engine(module):
    return build(module, "sm_80")


@pytest.fixture
def gpu_here(monkeypatch):
    """Have the driver tell of a GPU of some compute capability, or of none."""

    def tell(version: int | None) -> None:
        monkeypatch.setattr(gpu, "_driver", lambda: (version, "") if version else NO_GPU)

    return tell


@pytest.fixture
def compiler():
    if cuda_compiler._tool("nvcc") is None and not cuda_compiler._nvrtcs():
        pytest.skip("neither nvcc nor NVRTC is here to compile CUDA with")


# ---- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sm_75", "cuda-sm_75", {"kind": "cuda", "arch": "sm_75"}])
def test_names(name):
    target = make_target(name)
    assert (target.kind.name, target.attrs["arch"]) == ("cuda", "sm_75")
    assert int(target.attrs["max_threads_per_block"]) == 1024
    assert target.host.kind.name == "llvm"


@pytest.mark.parametrize("name", ["sm_50", "cuda-sm_35", {"kind": "cuda", "arch": "gfx90a"}])
def test_unknown_architectures(name):
    with pytest.raises(TargetError, match=r"not a GPU architecture with integer kernels.*'sm_80'"):
        make_target(name)


@pytest.mark.parametrize("name", ["cuda", {"kind": "cuda"}])
def test_the_gpu_at_hand(name, gpu_here):
    gpu_here(None)
    with pytest.raises(TargetError, match="no NVIDIA driver: give an architecture"):
        make_target(name)
    gpu_here(89)
    assert make_target(name).attrs["arch"] == "sm_89"


def test_only_gpus_run_graphs(module):
    with pytest.raises(TargetError, match="CUDA graphs run only on GPUs"):
        build(module, "native", cuda_graph=True)


def test_graph_captures_kernels(module):
    assert "cuda_graph" in build(module, "sm_80", cuda_graph=True)._built.executable.as_text()
    assert "run_or_capture" not in build(module, "sm_80")._built.executable.as_text()


# ---- where there is no GPU, or another one -----------------------------------------------------------------------


def test_runs_nowhere_without_a_gpu(engine, gpu_here):
    gpu_here(None)
    with pytest.raises(TargetError, match=r"NVIDIA GPU \(sm_80\), but this machine has no NVIDIA driver"):
        engine(np.zeros((1, 8, 8, 1), np.int8))


def test_older_gpus_are_refused(engine, gpu_here):
    gpu_here(75)
    with pytest.raises(TargetError, match="older architecture, sm_75"):
        engine.run({engine.inputs[0].name: np.zeros((1, 8, 8, 1), np.int8)}, stream=0)


def test_streams_are_for_gpus(module):
    native = build(module, num_threads=1)
    with pytest.raises(QnnError, match="only an engine built for a GPU"):
        native.run([np.zeros((1, 8, 8, 1), np.int8)], stream=0)


def test_file_for_a_gpu(engine, tmp_path, gpu_here):
    gpu_here(None)
    engine.save(tmp_path / "m.qnn")
    with pytest.raises(TargetError, match="no NVIDIA driver"):
        load(tmp_path / "m.qnn")


@pytest.mark.skipif(device.wanted(), reason="TVM asks the GPU that this test denies")
def test_file_for_both(module, tmp_path, gpu_here):
    gpu_here(None)
    both = build(module, ["native", "sm_80"], num_threads=1)
    assert [target["kind"] for target in both.variants] == ["cuda", "llvm"]  # the fastest first
    both.save(tmp_path / "m.qnn")
    loaded = load(tmp_path / "m.qnn")
    image = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
    assert loaded.target["kind"] == "llvm"
    np.testing.assert_array_equal(loaded(image), qnn_ext.Interpreter(module)(image))


# ---- sources -----------------------------------------------------------------------------------------------------


def test_sources(engine, compiler):
    assert engine.source("cuda").startswith(cuda_compiler.MARK)
    assert ".target sm_80" in engine.source("ptx")
    assert "define" in engine.source("ll")
    with pytest.raises(QnnError, match="source kind must be tir, ll, asm, cuda or ptx, found 'c'"):
        engine.source("c")


def test_cpus_have_no_cuda(module):
    with pytest.raises(QnnError, match="exists only for GPUs"):
        build(module, num_threads=1).source("ptx")


def test_without_tools(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_compiler, "_tool", lambda name: None)
    monkeypatch.setattr(cuda_compiler, "_nvrtcs", list)
    monkeypatch.setattr(cuda_compiler, "_nvrtc", lambda number: None)
    cuda_compiler._compiled.cache_clear()
    with pytest.raises(TargetError, match=r"needs nvcc .* or NVRTC .*pip install"):
        engine.source("ptx")
    with pytest.raises(TargetError, match="needs nvdisasm or cuobjdump"):
        engine.source("asm")
    with pytest.warns(UserWarning, match="GPU kernels as source only"):
        engine.save(tmp_path / "m.qnn")


def test_architecture_that_the_compilers_dropped(engine, monkeypatch):
    monkeypatch.setattr(cuda_compiler, "_nvrtc", lambda number: None)
    monkeypatch.setattr(cuda_compiler, "_nvcc_knows", lambda nvcc, version: False)
    monkeypatch.setattr(cuda_compiler, "_tool", lambda name: name)
    with pytest.raises(TargetError, match=r"cannot compile for sm_61; pip install nvidia-cuda-nvrtc-cu12"):
        cuda_compiler.ptx("", "sm_61")


def test_file_holds_binary(engine, tmp_path, compiler, monkeypatch):
    engine.save(tmp_path / "m.qnn")
    source = engine.source("cuda")
    (name,) = [n for n in zipfile.ZipFile(tmp_path / "m.qnn").namelist() if n.startswith("kernels0-")]
    assert name == f"kernels0-{cuda_compiler.digest(source)}.zlib"
    monkeypatch.setattr(cuda_compiler, "_binaries", {})
    from qnn_ext.running import artifact

    with artifact.opened(tmp_path / "m.qnn") as file:
        file.keep_kernels(0)
    kept = cuda_compiler.on_load(source, None, None)
    assert kept == zlib.decompress(zipfile.ZipFile(tmp_path / "m.qnn").read(name)) and len(kept) > 1000


def test_fused_products_stay_apart(compiler):
    """What nvcc does by itself to a·b + c, and what it does with our flags."""
    source = 'extern "C" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3] / x[4]; }'
    code = cuda_compiler.ptx(source, "sm_80")
    assert "mul.rn.f32" in code and "add.rn.f32" in code and "div.rn.f32" in code and "fma" not in code


def test_bad_source(compiler):
    with pytest.raises(TargetError, match=r"cannot compile for sm_80: .*error"):
        cuda_compiler.ptx('extern "C" __global__ void f(float* x) { x[0] = y; }', "sm_80")


def test_callbacks_are_borrowed():
    """Others who compile CUDA with TVM keep their compiler."""
    name = "tvm_callback_cuda_compile"
    before = tvm_ffi.get_global_func(name)
    tvm_ffi.register_global_func(name, lambda source: "theirs", override=True)
    try:
        with gpu_runtime.compiling():
            assert tvm_ffi.get_global_func(name)("of others") == "theirs"
        assert tvm_ffi.get_global_func(name)("anything") == "theirs"
    finally:
        tvm_ffi.register_global_func(name, before, override=True)


@pytest.mark.skipif(sys.platform == "win32", reason="names of libraries")
def test_runtime_says_what_is_missing():
    if "device_api.cuda" in tvm_ffi.registry.list_global_func_names():
        pytest.skip("a CUDA runtime is here")
    with pytest.raises(TargetError, match="CUDA runtime"):
        gpu_runtime.load()


# ---- running: the executor's own work, on the CPU as the device --------------------------------------------------


@pytest.fixture(scope="module")
def on_device():
    """An LSTM with states, kernel by kernel, with tensors on a device; its engine on the CPU."""
    module = qnn_ext.from_tflite(f"{DATA}/digits_lstm_int8.tflite")
    target = make_target("native", 1)
    mod = lower_module(module.ir, target)
    states = [State(state.name, np.asarray(state.initial)) for state in module.states]
    library = generate_code(mod, target).jit()
    executor = DeviceExecutor(library, module.inputs, module.outputs, states, [], kernels_of(mod), "cpu:0")
    return executor, module


def test_executor_equals_oracle(on_device, rng):
    executor, module = on_device
    oracle = qnn_ext.Interpreter(module)
    executor.reset_state()
    for _ in range(3):
        values = [rng.integers(-128, 128, spec.shape).astype(spec.dtype) for spec in module.inputs]
        executor.set_inputs(values)
        found = executor.run()
        for output, expected in zip(found, oracle.run(values).values(), strict=True):
            np.testing.assert_array_equal(output, expected)


def test_tensors_come_and_go(on_device, rng):
    executor, module = on_device
    values = [rng.integers(-128, 128, spec.shape).astype(spec.dtype) for spec in module.inputs]
    executor.reset_state()
    executor.set_inputs(values)
    expected = executor.run()
    executor.reset_state()
    tensors = [gpu_runtime.upload(value, tvm_ffi.device("cpu:0")) for value in values]
    for output, reference in zip(executor.launch(tensors, 0), expected, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(output), reference)


def test_unfit_tensors(on_device):
    executor, module = on_device
    wrong = [gpu_runtime.upload(np.zeros((2, 3), np.float32), tvm_ffi.device("cpu:0")) for _ in module.inputs]
    with pytest.raises(InputError, match=r"must be int8 of shape .* found float32 of shape \(2, 3\) on cpu:0"):
        executor.launch(wrong, 0)


def test_measures(on_device):
    executor, _ = on_device
    assert all(value > 0 for value in executor.seconds(1, 2))
    spans = executor.spans(2)
    assert (spans[..., 1] >= spans[..., 0]).all()
