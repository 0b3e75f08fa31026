"""Tutorial 10: tune on boards behind TVM's RPC tracker.

    python tutorials/10_tune_rpc.py

The board that will run a model is often not the machine that compiles it, and there may be many boards. TVM has the
tools for that: servers on the boards, and a tracker that assigns them. Here all are on this machine. Needs tornado.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import qnn_ext
from qnn_ext import TuningError, autotune

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_qdq.onnx"
KEY = "board"
BOARDS = 2

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]


@contextmanager
def started(*arguments, folder):
    """One of TVM's processes, ended with its children."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def connected():
    """A runner as soon as all boards have reported to the tracker."""
    deadline = time.monotonic() + 120
    while True:
        try:
            runner = autotune.RPCRunner(KEY, "127.0.0.1", PORT, timeout=60, repeat=4)
            if runner.servers() == BOARDS:
                return runner
            runner.close()
        except TuningError as error:
            if time.monotonic() > deadline:
                raise SystemExit(str(error)) from None
        time.sleep(0.5)


try:
    import tornado  # noqa: F401
except ImportError:
    raise SystemExit("TVM's tracker needs tornado: pip install tornado") from None

with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    log = folder / "tuning.jsonl"

    # 1. The tracker, on a machine that all can reach, and a server on each board. The key says what kind of board.

    tracker = f"127.0.0.1:{PORT}"
    ports = ["--port", str(PORT), "--port-end", str(PORT + 1)]
    stack.enter_context(started("tvm.exec.rpc_tracker", "--host", "127.0.0.1", *ports, folder=folder))
    for _ in range(BOARDS):
        server = ["--host", "127.0.0.1", "--tracker", tracker, "--key", KEY]
        stack.enter_context(started("tvm.exec.rpc_server", *server, folder=folder))
    runner = connected()
    print(f"{runner.servers()} boards at {tracker}")

    # 2. The target is that of the boards. Each candidate goes to whichever board is free, and is timed there in turns
    #    with the default, so that differences in speed between boards do not matter. If a board dies, nothing is lost:
    #    the candidate that it was measuring goes to another one.

    module = qnn_ext.from_onnx(MODEL)
    task = autotune.extract_from_program(module, "native", threads=1)[0]
    option = autotune.measure_option(runner=runner)
    tuner = autotune.RandomTuner(task)
    decision = tuner.tune(4, option, callbacks=[autotune.log_to_file(log)])
    option.close()
    assert decision is not None and not any(result.error for result in tuner.results.values())
    print(f"{task.name}: {len(tuner.results)} measured, decided for {decision.best.configuration}")

    # 3. The log is used like one that was measured here.

    with autotune.apply_history_best(log):
        print(qnn_ext.build(module, num_threads=1))

    # 4. The whole model on the command line would be:

    print(f"$ qnn-ext tune {MODEL.name} --threads 1 --rpc {tracker} --key {KEY}")
