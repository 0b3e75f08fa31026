"""Asks MXNet, which runs in a process with its own Python."""

from __future__ import annotations

import io
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from ..recipe import Case, FrameworkRefuses

SERVER = Path(__file__).with_name("serve.py")


class Server:
    """One process, restarted after it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, message: bytes) -> bytes:
        """The answer. Raises FrameworkRefuses when the message kills the process."""
        if self._process is None:
            command = [os.environ["QNN_EXT_MXNET_PYTHON"], str(SERVER)]
            environment = {**os.environ, "MXNET_SUBGRAPH_BACKEND": "NONE", "OMP_NUM_THREADS": "1"}
            environment.pop("PYTHONPATH", None)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(len(message).to_bytes(8, "little") + message)
            self._process.stdin.flush()
            size = self._process.stdout.read(8)
            if len(size) == 8:
                return self._process.stdout.read(int.from_bytes(size, "little"))
        except BrokenPipeError:
            pass  # reported below
        status = self._process.wait()
        self._process = None
        raise FrameworkRefuses(f"MXNet ended with {status}")


@cache
def server() -> Server:
    return Server()


def run_mxnet(case: Case) -> list[list[np.ndarray]]:
    """MXNet's outputs of every trial."""
    arrays = {f"{trial}/{name}": array for trial, values in enumerate(case.trials)
              for name, array in zip(case.facts["shapes"], values, strict=True)}  # fmt: skip
    message = io.BytesIO()
    np.savez(message, symbol=np.array(case.content), **case.facts["params"], **arrays)
    with np.load(io.BytesIO(server().ask(message.getvalue()))) as answer:
        if "error" in answer:
            raise FrameworkRefuses(str(answer["error"]))
        counts = [len([key for key in answer.files if key.startswith(f"{t}/")]) for t in range(len(case.trials))]
        return [[answer[f"{trial}/{index}"] for index in range(count)] for trial, count in enumerate(counts)]
