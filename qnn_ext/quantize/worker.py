"""A process that calibrates on a share of the data, started by `collect`.

Receives (path of the model, threads, Reader), then (position, batch) until None; answers with the Reader and what it
has collected, or with the exception that ended it.
"""

from __future__ import annotations

from ..errors import QnnError
from ..processes.channel import Channel, to_parent
from ..running.engine import load
from .collect import Reader


def main() -> None:
    """Serve one calibration."""
    with to_parent() as parent:
        try:
            reply: object = _collect(parent)
        except (QnnError, MemoryError) as error:
            reply = error
        parent.send(reply)


def _collect(parent: Channel) -> Reader:
    path, threads, reader = parent.receive()
    engine = load(path, num_threads=threads)
    for _ in reader.read(engine, iter(parent.receive, None)):
        pass
    return reader
