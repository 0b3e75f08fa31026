"""tvm.nd: arrays as Relay's runtime passed them. They are NumPy arrays behind the old methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class NDArray:
    """An array in this machine's memory, with the methods of TVM's NDArray."""

    def __init__(self, array: Any, device: Any = None) -> None:
        self._array = np.asarray(array)
        self.device = device

    def numpy(self) -> np.ndarray:
        """A copy as a NumPy array."""
        return self._array.copy()

    asnumpy = numpy

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> str:
        return str(self._array.dtype)

    @property
    def ctx(self) -> Any:
        return self.device

    def copyfrom(self, source: Any) -> NDArray:
        """Overwrite the values. Raises ValueError if the shape differs."""
        array = array_of(source)
        if array.shape != self.shape:
            raise ValueError(f"array shape do not match the shape of NDArray: {array.shape} vs {self.shape}")
        self._array = array.astype(self._array.dtype)
        return self

    def copyto(self, target: Any, mem_scope: str | None = None) -> NDArray:
        """Copy into another array, or onto a device as a new one."""
        if isinstance(target, NDArray):
            return target.copyfrom(self)
        return NDArray(self.numpy(), target)

    def __getitem__(self, index: Any) -> Any:
        return NDArray(self._array[index], self.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array = self._array.copy()
        self._array[index] = array_of(value)

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._array.astype(dtype) if dtype is not None else self._array.copy() if copy else self._array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        return f"<qnn_ext.compat NDArray shape={self.shape}, {self.device}>\n{self._array!r}"


def array(values: Any, device: Any = None, ctx: Any = None, mem_scope: str | None = None) -> NDArray:
    """An NDArray with a copy of the values."""
    return NDArray(array_of(values).copy(), device if device is not None else ctx)


def empty(
    shape: Sequence[int], dtype: str = "float32", device: Any = None, ctx: Any = None, mem_scope: str | None = None
) -> NDArray:
    """An NDArray to be filled; it holds zeros."""
    return NDArray(np.zeros(shape, dtype), device if device is not None else ctx)


def array_of(value: Any) -> np.ndarray:
    """NumPy values of an NDArray, one of TVM's tensors, or anything NumPy takes."""
    if isinstance(value, NDArray):
        return value._array
    if isinstance(value, np.ndarray):
        return value
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
