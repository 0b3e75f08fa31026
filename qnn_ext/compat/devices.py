"""tvm.cpu, tvm.cuda and tvm.device; targets count as devices, as they did."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import device as tvm_device

from .targets import Target


def cpu(dev_id: int = 0) -> Any:
    """A CPU of this machine."""
    return tvm.cpu(dev_id)


def cuda(dev_id: int = 0) -> Any:
    """A GPU of this machine."""
    return tvm.cuda(dev_id)


gpu = cuda


def device(dev_type: Any, dev_id: int = 0) -> Any:
    """What a target runs on: device("llvm"), device("cuda -arch=sm_75", 1). Raises TargetError for unknown ones."""
    kind = "cpu" if dev_type in ("cpu", "") else Target(dev_type).kind.name
    return cpu(dev_id) if kind in ("cpu", "llvm") else tvm_device(kind, dev_id)
