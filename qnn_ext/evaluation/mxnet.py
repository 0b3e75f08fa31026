"""MXNet in a process with a Python of its own: its last release, 1.9.1, needs Python 3.8 and NumPy 1.23."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import QnnError
from ..processes.children import Program

VARIABLE = "QNN_EXT_MXNET_PYTHON"
"""Names the interpreter."""
REMEDY = (
    f"name an interpreter that has it in {VARIABLE}, such as mxnet/bin/python after python3.8 -m venv mxnet && "
    "mxnet/bin/pip install mxnet==1.9.1 numpy==1.23.5"
)

_SERVER = Path(__file__).with_name("mxnet_server.py")


class MxnetError(QnnError):
    """Why MXNet does not run a model."""


class Mxnet:
    """The process, which starts when it is first asked, and again after a model has killed it."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._process: Program | None = None

    def ask(self, message: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The answer to a message, see `mxnet_server.py`.

        Raises MxnetError if MXNet rejects the model or dies of it, and if there is no MXNet.
        """
        process = self._process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        content = io.BytesIO()
        np.savez(content, **message)
        reply = b""
        try:
            process.stdin.write(len(content.getvalue()).to_bytes(8, "little") + content.getvalue())
            process.stdin.flush()
            reply = process.stdout.read(int.from_bytes(process.stdout.read(8), "little"))
        except BrokenPipeError:
            pass  # reported below
        if not reply:
            code = process.wait()
            self.end()
            raise MxnetError(f"the process with MXNet ended with {code}; if it has none, {REMEDY}")
        with np.load(io.BytesIO(reply), allow_pickle=False) as answer:
            if "error" in answer:
                raise MxnetError(str(answer["error"]))
            return {name: answer[name] for name in answer.files}

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def __del__(self) -> None:
        self.end()

    def _started(self) -> Program:
        interpreter = os.environ.get(VARIABLE)
        if not interpreter:
            raise MxnetError(f"MXNet 1.9.1, its last release, does not run with this Python: {REMEDY}")
        environment = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "MXNET_SUBGRAPH_BACKEND": "NONE",
            "OMP_NUM_THREADS": str(self._threads),
        }
        return Program(
            [interpreter, "-I", os.fspath(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
