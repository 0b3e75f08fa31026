"""A whole model on an emulated board, over TVM's RPC: the end of the deploy tutorials."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compat.tvm import IRModule, relay, rpc, target
from qnn_ext.compat.tvm.contrib import graph_executor

from . import board

SERVE = """
import runpy, sys
sys.executable = sys.argv.pop(1)  # the kernel cannot start a program of another architecture
runpy.run_module("qnn_ext.compat.rpc_server", run_name="__main__")
"""


@pytest.fixture
def port(tmp_path):
    """Of a server on the board; importing TVM takes it a minute."""
    board.require()
    cloudpickle = pytest.importorskip("cloudpickle")
    shutil.copytree(Path(cloudpickle.__file__).parent, tmp_path / "packages" / "cloudpickle")
    python = board.interpreter("cortex-a72", tmp_path / "python")
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen = free.getsockname()[1]
    paths = [board.SITE, board.REPOSITORY, tmp_path / "packages"]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    options = ["--host", "127.0.0.1", "--port", chosen, "--port-end", chosen + 1, "--key", "rpi4"]
    command = [python, "-c", SERVE, python, *options]
    process = subprocess.Popen(list(map(str, command)), env=environment, start_new_session=True)
    try:
        _await(chosen, process)
        yield chosen
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(port: int, process: subprocess.Popen) -> None:
    end = time.monotonic() + board.TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the server on the board did not start")


@pytest.mark.exhaustive("tests/compat/test_rpc.py, on this machine")
def test_deploy_model_on_rasp(port, tmp_path):
    module = qnn_ext.from_tflite(Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite")
    library = relay.build(IRModule.from_model(module), target.arm_cpu("rasp4b64"))
    library.export_library(tmp_path / "net.tar")
    remote = rpc.connect("127.0.0.1", port, "rpi4")
    remote.upload(str(tmp_path / "net.tar"))
    device = remote.cpu(0)
    found = graph_executor.GraphModule(remote.load_module("net.tar")["default"](device))
    image = np.random.default_rng(2).integers(-128, 128, module.inputs[0].shape).astype(np.int8)
    found.run(**{module.inputs[0].name: image})
    np.testing.assert_array_equal(found.get_output(0).numpy(), qnn_ext.Interpreter(module)(image))
    assert found.benchmark(device, number=1, repeat=2).mean > 0
