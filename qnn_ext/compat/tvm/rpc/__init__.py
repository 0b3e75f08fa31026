"""tvm.rpc."""

import tvm.rpc as _rpc

from ...absent import absent
from ...remote import LocalSession, RPCSession, Server, TrackerSession, connect, connect_tracker

__all__ = ["LocalSession", "RPCSession", "Server", "TrackerSession", "connect", "connect_tracker"]

__getattr__ = absent("tvm.rpc", None, lambda name: getattr(_rpc, name))
