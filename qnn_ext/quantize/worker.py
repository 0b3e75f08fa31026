"""A process that calibrates on a share of the data, started by `collect`.

Reads pickles from standard input: (path of the model, threads, Reader), then (position, batch) until None; answers with
the Reader and what it has collected, or with the exception that ended it.
"""

from __future__ import annotations

import pickle
import sys
from typing import BinaryIO

from ..errors import QnnError
from ..processes.children import answers
from ..running.engine import load
from .collect import Reader


def main() -> None:
    """Serve one calibration."""
    with answers() as replies:
        try:
            reply: object = _collect(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # nothing more, or half a pickle
            return  # the process that started this one has ended
        except (QnnError, MemoryError) as error:
            reply = error
        pickle.dump(reply, replies, pickle.HIGHEST_PROTOCOL)


def _collect(requests: BinaryIO) -> Reader:
    path, threads, reader = pickle.load(requests)
    engine = load(path, num_threads=threads)
    for _ in reader.read(engine, iter(lambda: pickle.load(requests), None)):
        pass
    return reader
