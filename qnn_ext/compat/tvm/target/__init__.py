"""tvm.target."""

import tvm.target as _target

from ...absent import absent
from ...targets import Target, arm_cpu, cuda

__all__ = ["Target", "arm_cpu", "cuda"]

_INSTEAD = {
    "mali": "there are kernels for CPUs and for NVIDIA's GPUs",
    "rocm": "there are kernels for CPUs and for NVIDIA's GPUs",
    "intel_graphics": "there are kernels for CPUs and for NVIDIA's GPUs",
    "hexagon": "there are kernels for CPUs and for NVIDIA's GPUs",
    "create": "use tvm.target.Target",
}

__getattr__ = absent("tvm.target", _INSTEAD, lambda name: getattr(_target, name))
