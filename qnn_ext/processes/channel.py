"""Objects sent between a process and its child over the child's pipes, each a pickle behind its length.

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
from typing import IO, Any

from .children import Child

_LENGTH = struct.Struct("<Q")
_PART = 1 << 20


class Closed(Exception):
    """The process at the other end has ended."""


@dataclass(frozen=True)
class Channel:
    """Both directions between two processes that trust each other."""

    incoming: IO[bytes]
    outgoing: IO[bytes]

    def send(self, value: Any) -> None:
        """Send a picklable object. Raises Closed."""
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            self.outgoing.write(_LENGTH.pack(len(content)))
            self.outgoing.write(content)
            self.outgoing.flush()
        except OSError:
            raise Closed from None

    def receive(self, timeout: float = math.inf) -> Any:
        """The next object. Raises Closed, and TimeoutError if it is not complete after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        return pickle.loads(self._read(size, deadline))

    def _read(self, size: int, deadline: float) -> bytearray:
        descriptor, content = self.incoming.fileno(), bytearray()
        while len(content) < size:
            if deadline < math.inf:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                    raise TimeoutError
            part = os.read(descriptor, min(size - len(content), _PART))
            if not part:
                raise Closed
            content += part
        return content


def to_child(child: Child) -> Channel:
    """The channel to a child that uses `to_parent`."""
    assert child.stdin is not None and child.stdout is not None
    return Channel(child.stdout, child.stdin)


@contextlib.contextmanager
def to_parent() -> Iterator[Channel]:
    """In a child: the channel to its parent on stdin and stdout; the block ends silently once the parent has ended.

    Whatever libraries print goes to stderr.
    """
    with contextlib.suppress(Closed, BrokenPipeError), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield Channel(sys.stdin.buffer, replies)
