"""tvm.nd."""

from ..absent import absent
from ..arrays import NDArray, array, empty
from ..devices import cpu, cuda, device, gpu

__all__ = ["NDArray", "array", "cpu", "cuda", "device", "empty", "gpu"]

__getattr__ = absent("tvm.nd", {"numpyasarray": "use tvm.nd.array", "from_dlpack": "engine.run takes DLPack tensors"})
