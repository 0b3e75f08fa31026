"""tvm.rpc: TVM's own servers, trackers and sessions. Sessions load our libraries, which then run on their machine."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm import rpc

from ..running.remote import RemoteEngine
from ..running.served import offer
from .devices import device
from .library import Library

_connect, _connect_tracker, _Server, _LocalSession = rpc.connect, rpc.connect_tracker, rpc.Server, rpc.LocalSession


class RPCSession:
    """A session of TVM's. What it has not itself, TVM's has: get_function, download, remove, cuda …"""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._folder = tempfile.TemporaryDirectory(prefix="qnn-ext-rpc-")
        self._libraries: dict[str, Path] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._session, name)

    def upload(self, data: Any, target: str | None = None) -> None:
        """Copy a file, or bytes under the name `target`, into the server's folder for this session."""
        if target is None and not isinstance(data, bytearray):
            target = os.path.basename(data)
        content = bytes(data) if isinstance(data, bytearray) else Path(data).read_bytes()
        if target is not None and content.startswith(b"PK"):
            kept = Path(self._folder.name) / str(len(self._libraries))
            kept.write_bytes(content)
            if zipfile.is_zipfile(kept):
                self._libraries[target] = kept  # sent when it is loaded
                return
        self._session.upload(data, target)

    def load_module(self, path: str) -> Any:
        """A file that was uploaded: a library of ours for `GraphModule`, or any other of TVM's.

        Raises TargetError where the server does not run ours.
        """
        kept = self._libraries.get(path)
        return self._session.load_module(path) if kept is None else Library(RemoteEngine(self._session, kept, path))

    def device(self, dev_type: Any, dev_id: int = 0) -> Any:
        """A device there, by its kind, by number, or by a target."""
        kind = dev_type if isinstance(dev_type, int) else device(dev_type, dev_id).dlpack_device_type()
        return self._session.device(kind, dev_id)

    def cpu(self, dev_id: int = 0) -> Any:
        return self._session.cpu(dev_id)

    context = device


class LocalSession(RPCSession):
    """A session with this process, for scripts without a board."""

    def __init__(self) -> None:
        offer()
        super().__init__(_LocalSession())


class TrackerSession:
    """A connection to a tracker; what it has not itself, TVM's has."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tracker, name)

    def request(self, key: str, *args: Any, **options: Any) -> RPCSession:
        """A session with a server that has this key."""
        return RPCSession(self._tracker.request(key, *args, **options))

    def request_and_run(self, key: str, func: Callable[[RPCSession], Any], *args: Any, **options: Any) -> Any:
        """`func` of such a session, on the next server if one is lost."""
        return self._tracker.request_and_run(key, lambda session: func(RPCSession(session)), *args, **options)


def connect(url: str, port: int, key: str = "", session_timeout: int = 0, **options: Any) -> RPCSession:
    """A session with a server."""
    return RPCSession(_connect(url, port, key, session_timeout, **options))


def connect_tracker(url: str, port: int) -> TrackerSession:
    """A connection to a tracker."""
    return TrackerSession(_connect_tracker(url, port))


def Server(*args: Any, **options: Any) -> Any:
    """A server in a process of its own, which runs libraries of ours too. Needs `pip install 'qnn-ext[tune]'`."""
    return _Server(*args, **{"server_init_callback": offer, **options})
