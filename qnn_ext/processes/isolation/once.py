"""The child's side where processes cannot be forked: a process that answers one call on stdin and stdout."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from importlib import import_module

from .answering import answer
from .confine import confine

TIME_IS_UP = "Timeout ("  # how faulthandler's message begins


def main() -> None:
    """Read a line that describes the call and the request after it, and write the answer."""
    job = json.loads(sys.stdin.buffer.readline())
    request = bytearray(sys.stdin.buffer.read())
    with os.fdopen(os.dup(1), "wb") as replies, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        for module in job["preload"]:
            import_module(module)
        faulthandler.dump_traceback_later(job["seconds"], exit=True)  # needs no Python code to run: it ends any loop
        confine(job["memory"], job["seconds"] * job["threads"], job["threads"])
        for part in answer(job["call"], request):
            replies.write(part)
        faulthandler.cancel_dump_traceback_later()
    os._exit(0)
