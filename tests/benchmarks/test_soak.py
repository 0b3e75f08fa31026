"""A process keeps no memory of engines, calls and threads that are gone, and exits cleanly whatever is still alive."""

import subprocess
import sys

import pytest

from benchmarks.soak import DATA, soak
from benchmarks.worker import computed_apart

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


@pytest.mark.one_in(4)
@linux_only
@pytest.mark.parametrize(
    ("scenario", "scale", "most"),
    [
        ("calls", 0.05, 200),
        ("threads", 0.03, 2_000),
        ("loads", 0.04, 10_000),
        ("loads of a virtual machine", 0.04, 10_000),
    ],
)
def test_nothing_grows(scenario, scale, most):
    """most: bytes that memory may grow by in a round; a loaded library alone takes five mappings and 50 kB."""
    grown = computed_apart(soak, scenario, scale, limit=300.0)
    assert grown.end.threads == grown.warm.threads and grown.end.descriptors == grown.warm.descriptors
    assert grown.end.files == grown.warm.files and grown.end.mappings < grown.warm.mappings + 20
    assert grown.bytes_per_round < most


SCRIPT = f"""
import atexit, random, tempfile, threading, time
import numpy as np
import qnn_ext

path = tempfile.mkdtemp() + "/m.qnn"
built = qnn_ext.build(qnn_ext.from_tflite({str(DATA / "digits_cnn_int8.tflite")!r}), num_threads=2)
built.save(path)
values = np.zeros((1, 8, 8, 1), np.int8)
expected = built(values)
engines = [qnn_ext.load(path, 1 + index % 2) for index in range(8)]

class Holder:
    def __init__(self, engine):
        self.engine = engine
    def __del__(self):
        assert (self.engine(values) == expected).all()

def work(engine):
    while True:
        engine(values)

for engine in engines[:2]:
    threading.Thread(target=work, args=[engine], daemon=True).start()
holders = [Holder(engine) for engine in engines[2:4]]
atexit.register(engines[4], values)
time.sleep(0.2)
random.shuffle(engines)
while engines:
    engines.pop()
"""


def test_deleted_in_any_order_and_as_python_ends():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
