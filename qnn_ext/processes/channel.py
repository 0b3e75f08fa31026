"""Objects sent between a process and its child over the child's pipes: a pickle, then the arrays in it, uncopied.

The end of the other process looks the same on both sides, whether it came between two objects or within one.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from typing import IO, Any

from .children import Child

_SIZE = struct.Struct("<Q")


class Closed(Exception):
    """The process at the other end has ended."""


@dataclass(frozen=True)
class Channel:
    """Both directions between two processes that trust each other."""

    incoming: RawIOBase
    outgoing: IO[bytes]

    def send(self, value: Any) -> None:
        """Send a picklable object. Raises Closed."""
        arrays: list[pickle.PickleBuffer] = []
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
        parts = [memoryview(content), *(array.raw() for array in arrays)]
        try:
            for size in (len(parts), *(part.nbytes for part in parts)):
                self.outgoing.write(_SIZE.pack(size))
            for part in parts:
                self.outgoing.write(part)
            self.outgoing.flush()
        except OSError:
            raise Closed from None

    def receive(self, timeout: float = math.inf) -> Any:
        """The next object. Raises Closed, and TimeoutError if it is not complete after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        sizes = [self._size(deadline) for _ in range(self._size(deadline))]
        content, *arrays = [self._read(size, deadline) for size in sizes]
        return pickle.loads(content, buffers=arrays)

    def _size(self, deadline: float) -> int:
        return int(_SIZE.unpack(self._read(_SIZE.size, deadline))[0])

    def _read(self, size: int, deadline: float) -> bytearray:
        content = bytearray(size)
        missing = memoryview(content)
        while missing:
            if deadline < math.inf:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self.incoming], [], [], left)[0]:
                    raise TimeoutError
            count = self.incoming.readinto(missing)
            if not count:
                raise Closed
            missing = missing[count:]
        return content


def to_child(child: Child) -> Channel:
    """The channel to a child that uses `to_parent`."""
    assert child.stdin is not None and child.stdout is not None
    return Channel(_unbuffered(child.stdout), child.stdin)


@contextlib.contextmanager
def to_parent() -> Iterator[Channel]:
    """In a child: the channel to its parent on stdin and stdout; the block ends silently once the parent has ended.

    Whatever libraries print goes to stderr.
    """
    with contextlib.suppress(Closed, BrokenPipeError), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield Channel(_unbuffered(sys.stdin), replies)


def _unbuffered(file: IO[Any]) -> RawIOBase:
    return open(file.fileno(), "rb", buffering=0, closefd=False)
