"""Tutorial 12: a model as one module of GPU kernels, built anywhere, run where the GPU is.

    python tutorials/12_gpu.py

Building needs neither a GPU nor a driver. Steps that need NVIDIA's tools or a GPU are skipped if there are none.
"""

import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
module = qnn_ext.from_onnx(DATA / "digits_cnn_qdq.onnx")

# 1. A GPU is named by its architecture; "cuda" means the one of this machine. The kernels multiply 8-bit integers with
#    dp4a (from sm_61 on) or on tensor cores (from sm_75 on), and requantize in registers.

engine = qnn_ext.build(module, target="sm_80")
for kernel in engine.kernels[:6]:
    print(f"{kernel.implementation:28} {kernel.operators}")

# 2. Their source is CUDA, and shows which instructions they use. `engine.source("ptx")` compiles it with nvcc or NVRTC,
#    with every float operation as in IEEE 754: requantization gives the interpreter's bits.

source = engine.source("cuda")
wanted = re.findall(r"__dp4a|mma\.sync[\w.]*|ldmatrix[\w.]*|__float2int_rn", source)
print("in the source:", dict(Counter(wanted).most_common()))
try:
    code = engine.source("ptx")
    print("PTX:", len(code.splitlines()), "lines; approximations:", len(re.findall(r"\.approx|\.ftz", code)))
except qnn_ext.TargetError as error:
    print("PTX:", error)

# 3. One file for a GPU and for CPUs: `load` takes the first that the machine can run. It includes the kernels' binary.

inputs = {spec.name: np.random.default_rng(0).normal(0, 1, spec.shape).astype(spec.dtype) for spec in module.inputs}
expected = qnn_ext.Interpreter(module).run(inputs)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.qnn"
    qnn_ext.build(module, target=["sm_80", "native"]).save(path)
    loaded = qnn_ext.load(path)
    print("this machine runs", loaded)
    for name, value in loaded.run(inputs).items():
        np.testing.assert_array_equal(value, expected[name])

# 4. On a GPU, tensors may stay in its memory. With a stream, `run` returns before the kernels have run.

try:
    here = qnn_ext.build(module, target="cuda")
except qnn_ext.TargetError as error:
    print("no run on a GPU:", error)
else:
    for name, value in here.run(inputs).items():
        np.testing.assert_array_equal(value, expected[name])
    print("one call:", here.time())
    print("as one CUDA graph:", qnn_ext.build(module, target="cuda", cuda_graph=True).time())
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and torch.cuda.is_available():
        stream = torch.cuda.Stream()
        on_device = {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}
        torch.cuda.synchronize()
        results = here.run(on_device, stream=stream)  # tensors of the GPU, through DLPack without a copy
        stream.synchronize()
        for name, value in results.items():
            np.testing.assert_array_equal(torch.from_dlpack(value).cpu().numpy(), expected[name])
