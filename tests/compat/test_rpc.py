"""Whole models over TVM's RPC, as the deploy tutorials end: a server here, a tracker, and this process itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qnn_ext.compat.tvm import autotvm, nd, relay, rpc
from qnn_ext.compat.tvm.contrib import graph_executor, utils
from qnn_ext.compat.tvm.rpc import tracker
from qnn_ext.errors import ArtifactError, InputError, TargetError
from qnn_ext.running.remote import RemoteEngine

pytest.importorskip("cloudpickle")
WEIGHT = np.arange(-20, 20, dtype=np.int8).reshape(5, 8)
DATA = np.arange(24, dtype=np.uint8).reshape(3, 8)
EXPECTED = DATA.astype(int) @ WEIGHT.T.astype(int)


@pytest.fixture(scope="module")
def server():
    process = rpc.Server("127.0.0.1", 9391, 9499, key="board", silent=True)
    yield process
    process.terminate()


@pytest.fixture(scope="module")
def library():
    """A file as the tutorials name them."""
    qparams = [relay.const(value) for value in (0, 0, 1.0, 1.0)]
    x = relay.var("x", shape=(3, 8), dtype="uint8")
    folder = utils.tempdir()
    path = folder.relpath("net.tar")
    relay.build(relay.qnn.op.dense(x, relay.const(WEIGHT), *qparams, units=5), "x86-64").export_library(path)
    yield path
    folder.remove()


def run(remote: rpc.RPCSession, path: str) -> graph_executor.GraphModule:
    """The end of deploy_model_on_rasp.py and tune_relay_arm.py."""
    remote.upload(path)
    loaded = remote.load_module("net.tar")
    device = remote.device("llvm -mcpu=x86-64", 0)
    module = graph_executor.GraphModule(loaded["default"](device))
    module.set_input("x", nd.array(DATA, device))
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), EXPECTED)
    assert len(module.benchmark(device, number=1, repeat=3).results) == 3
    return module


def test_local_session(library):
    run(rpc.LocalSession(), library)


def test_server(server, library, tmp_path):
    """Errors of the engine are those that it raises here; other files are the server's."""
    remote = rpc.connect("127.0.0.1", server.port, "board")
    engine = run(remote, library).engine
    assert (engine(DATA) == EXPECTED).all()
    with pytest.raises(InputError, match=r"must have shape \(3, 8\)"):
        engine.run({"x": DATA[:2]})
    content = tmp_path / "data.bin"
    content.write_bytes(b"abc")
    remote.upload(content)
    remote.upload(bytearray(b"PK"), "other.bin")
    assert bytes(remote.download("data.bin")) == b"abc" and bytes(remote.download("other.bin")) == b"PK"
    (tmp_path / "net.tar").write_bytes(Path(library).read_bytes()[:-9])
    remote.upload(str(tmp_path / "net.tar"), "broken.tar")  # no archive, so nothing of ours
    with pytest.raises(Exception, match="not look like a tar archive"):
        remote.load_module("broken.tar")


def test_errors_on_the_board(server, library):
    """What only the board finds out is raised here as what it is."""
    remote = rpc.connect("127.0.0.1", server.port, "board")
    engine = RemoteEngine(remote, library)
    remote.remove("net.tar")
    with pytest.raises(ArtifactError, match="no such file"):
        engine.run([DATA])


@pytest.mark.exhaustive("test_server, without the tracker")
def test_requests_through_a_tracker(library):
    pytest.importorskip("tornado")
    tracking = tracker.Tracker("127.0.0.1", 9591, 9699, silent=True)
    serving = rpc.Server("127.0.0.1", 9391, 9499, key="rpi4", tracker_addr=("127.0.0.1", tracking.port), silent=True)
    try:
        run(autotvm.measure.request_remote("rpi4", "127.0.0.1", tracking.port, timeout=100), library)
    finally:
        serving.terminate()
        tracking.terminate()


def test_servers_without_qnn_ext(library):
    """TVM's own server has no function for it: the error says what to start on the board."""

    class Bare:
        def upload(self, data, target):
            assert target == "net.tar"

        def get_function(self, name):
            raise AttributeError(f"Module has no function '{name}'")

    remote = rpc.RPCSession(Bare())
    remote.upload(library)
    with pytest.raises(TargetError, match=r"start it there with python -m qnn_ext\.compat\.rpc_server"):
        remote.load_module("net.tar")
