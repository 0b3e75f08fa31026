"""What the tests of isolation run in children."""

import ctypes
import os
import resource
import sys
import time

from qnn_ext.processes.isolation import working_on

kept = []


def echo(request):
    return [bytes(request)]


def crash(request):
    working_on("reading address 0")
    ctypes.string_at(0)


def leave(request):
    os._exit(3)


def raises(request):
    raise ValueError("no such thing")


def sleep(request):
    working_on("sleeping")
    time.sleep(1000)


def fill(request):
    working_on("filling")
    while True:
        kept.append(bytearray(1 << 24))


def flood(request):
    return [bytes(1 << 24)]


def remember(request):
    kept.append(bytes(request))
    return [str(len(kept)).encode()]


def state(request):
    """Group, what stdin has, open descriptors above stderr, core limit, whether a file can be written."""
    try:
        with open(bytes(request), "wb") as file:
            file.write(b"x" * 100)
        writes = True
    except OSError:
        writes = False
    descriptors = len([name for name in os.listdir("/proc/self/fd") if int(name) > 2])
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    return [repr((os.getpgrp() == os.getpid(), sys.stdin.read(), descriptors, core, writes)).encode()]
