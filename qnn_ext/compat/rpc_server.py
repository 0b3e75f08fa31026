"""`python -m qnn_ext.compat.rpc_server` on a board: TVM's RPC server, `tvm.exec.rpc_server` with all its options, which
also runs the models that `relay.build` and `qnn_ext.build` made. It needs `pip install 'qnn-ext[tune]'` there."""

from __future__ import annotations

import runpy
from functools import partial

from tvm import rpc

from ..running.served import offer
from ..targets import amx

if __name__ == "__main__":
    if amx.supported():
        amx.request()  # for kernels that are timed here, which come without a target
    rpc.Server = partial(rpc.Server, server_init_callback=offer)
    runpy.run_module("tvm.exec.rpc_server", run_name="__main__")
