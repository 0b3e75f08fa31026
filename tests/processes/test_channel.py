"""Objects between processes: they arrive whole, or the end of the other process is noticed."""

import io
import os
import subprocess
import time
from contextlib import contextmanager

import numpy as np
import pytest

from qnn_ext.processes.channel import Channel, Closed
from qnn_ext.processes.children import Child


def message(value):
    """What is sent for an object."""
    content = io.BytesIO()
    Channel(content, content).send(value)
    return content.getvalue()


MESSAGE = message({"name": "text", "array": np.arange(64)})
CUTS = (0, 3, 8, 30, len(MESSAGE) - 1)


@contextmanager
def loop():
    """A channel to itself; what is sent must fit into a pipe's buffer."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as incoming, os.fdopen(writing, "wb") as outgoing:
        yield Channel(incoming, outgoing)


def test_objects_arrive_one_after_the_other():
    array = np.arange(6000, dtype=np.int16).reshape(20, 30, 10)
    arrays = [array, array.T, array[::2, 1:], np.asfortranarray(array[0]), array[:0], np.float32(3)]
    with loop() as channel:
        for value in ("text", None, arrays):
            channel.send(value)
        assert channel.receive() == "text"
        assert channel.receive(1.0) is None
        for found, sent in zip(channel.receive(), arrays, strict=True):
            np.testing.assert_array_equal(found, sent)
            assert found.dtype == sent.dtype


@pytest.mark.parametrize("cut", CUTS)
def test_the_end_of_the_sender(cut):
    with loop() as channel:
        channel.outgoing.write(MESSAGE[:cut])
        channel.outgoing.close()
        with pytest.raises(Closed):
            channel.receive()


@pytest.mark.parametrize("cut", CUTS)
def test_a_sender_that_hangs(cut):
    with loop() as channel:
        channel.outgoing.write(MESSAGE[:cut])
        channel.outgoing.flush()
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            channel.receive(0.05)
        assert 0.05 <= time.monotonic() - start < 5.0


def test_the_end_of_the_receiver():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as outgoing, pytest.raises(Closed):
        Channel(outgoing, outgoing).send("nobody reads this")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("worker", ["qnn_ext.autotune.worker", "qnn_ext.quantize.worker"])
@pytest.mark.parametrize("cut", [0, 50])
def test_a_worker_ends_silently_with_its_parent(worker, cut):
    child = Child(worker, stderr=subprocess.PIPE)
    try:
        _, errors = child.communicate(MESSAGE[:cut], timeout=60)
        assert (child.returncode, errors) == (0, b"")
    finally:
        child.end()
