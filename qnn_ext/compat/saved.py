"""relay.save_param_dict and load_param_dict: parameter files, in TVM's own format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from .arrays import NDArray, array_of


def save_param_dict(params: Mapping[str, Any]) -> bytes:
    """Parameters as bytes; those of a built model are empty, since its library has the weights."""
    if not params:
        return b""
    tensors = {name: tvm.runtime.tensor(array_of(value)) for name, value in params.items()}
    return bytes(tvm.runtime.save_param_dict(tensors))


def load_param_dict(param_bytes: bytes) -> dict[str, NDArray]:
    """The parameters in bytes that `save_param_dict` wrote."""
    if not param_bytes:
        return {}
    loaded = tvm.runtime.load_param_dict(bytes(param_bytes))
    return {str(name): NDArray(value.numpy()) for name, value in loaded.items()}
