"""Arrays between pages that the process may not touch: a kernel that reads or writes outside them dies of a signal."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_ALIGNMENT = 64  # bytes: the alignment that compiled kernels expect of a tensor's start


@contextmanager
def guarded(arrays: Sequence[np.ndarray], at_end: bool) -> Iterator[list[np.ndarray]]:
    """Copies of the arrays, each directly before a guard page, or at the start of a page with a guard page before it.

    Arrays that end with a page may lack the alignment that kernels expect, so kernels with aligned vectors are run on
    arrays of multiples of 64 bytes.
    """
    memories = [_Guarded(array, at_end) for array in arrays]
    try:
        yield [memory.array for memory in memories]
    finally:
        for memory in memories:
            memory.close()


class _Guarded:
    def __init__(self, array: np.ndarray, at_end: bool) -> None:
        page = mmap.PAGESIZE
        inner = -(-max(array.nbytes, 1) // page) * page
        self._memory = mmap.mmap(-1, inner + 2 * page)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._guards = self._start, self._start + page + inner
        self._protect(mmap.PROT_READ & 0)
        first = page + (inner - array.nbytes if at_end else 0)
        whole = np.frombuffer(self._memory, np.uint8)
        self.array = whole[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def _protect(self, rights: int) -> None:
        for guard in self._guards:
            if _libc.mprotect(ctypes.c_void_p(guard), mmap.PAGESIZE, rights):
                raise OSError(ctypes.get_errno(), "mprotect")

    def close(self) -> None:
        """Make the pages ordinary again; the memory is freed with the last reference to the array."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
