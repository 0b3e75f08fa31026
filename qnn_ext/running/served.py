"""Engines that another machine drives: the function that TVM's RPC servers offer once `offer` has been called.

    python -m qnn_ext.compat.rpc_server --tracker 192.168.1.2:9190 --key rpi4

A client uploads a `.qnn` file and gets a function of a request and arrays, as bytes (`packed`), from LOAD.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from ..errors import QnnError
from ..tvm_runtime import get_function
from .engine import Engine, load

LOAD = "qnn_ext.rpc.load"
"""The function's name: path below the server's folder -> a function of (request, packed arrays) -> packed arrays."""

ERROR = "error"
"""The request's result if the engine raised a QnnError: its class's name and the message."""


def offer() -> None:
    """Register LOAD, for all RPC servers of this process and the processes that they fork."""
    tvm_ffi.register_global_func(LOAD, _load, override=True)


def packed(arrays: Sequence[np.ndarray], **named: Any) -> bytes:
    """Arrays in order, and some by name, as the bytes of an .npz file."""
    file = io.BytesIO()
    np.savez(file, *arrays, **named)
    return file.getvalue()


def unpacked(data: bytes) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """What was `packed`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        found = dict(file)
    arrays = [found.pop(f"arr_{index}") for index in range(sum(name.startswith("arr_") for name in found))]
    return arrays, found


def _load(name: str) -> Callable[[str, bytes], bytes]:
    path = get_function("tvm.rpc.server.workpath")(name)
    engines: list[Engine] = []

    def answer(request: str, data: bytes) -> bytes:
        try:
            if not engines:
                engines.append(load(path))
            return _REQUESTS[request](engines[0], data)
        except QnnError as error:  # TVM would make every error of another process an RPCError
            return packed([], **{ERROR: np.array([type(error).__name__, str(error)])})

    return answer


def _run(engine: Engine, data: bytes) -> bytes:
    return packed(list(engine.run(unpacked(data)[0]).values()))


def _time(engine: Engine, data: bytes) -> bytes:
    inputs, options = unpacked(data)
    timing = engine.time(int(options["number"]), int(options["repeat"]), inputs)
    return packed([np.array(timing.seconds)])


_REQUESTS = {"run": _run, "time": _time}
