"""A process that calibrates a share of the data, started by `collect`.

Reads pickles from standard input: (path of the model, threads, Reader), then (position, batch) until None; answers with
the Reader that has collected, or with the exception that ended it.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import BinaryIO

from ..errors import QnnError
from ..runtime import load
from .collect import Reader


def main() -> None:
    """Serve one calibration."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print does not belong to the answers
        try:
            reply: object = _collect(sys.stdin.buffer)
        except EOFError:
            return  # the process that asked has ended
        except (QnnError, MemoryError) as error:
            reply = error
        pickle.dump(reply, answers, pickle.HIGHEST_PROTOCOL)


def _collect(requests: BinaryIO) -> Reader:
    path, threads, reader = pickle.load(requests)
    engine = load(path, num_threads=threads)
    for _ in reader.read(engine, iter(lambda: pickle.load(requests), None)):
        pass
    return reader
