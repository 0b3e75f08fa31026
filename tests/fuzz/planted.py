"""A format whose reader fails in every possible way, for testing the fuzzer: markers in a file say how."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from typing import Any

from qnn_ext import QnnError

from .formats import Format

MARKERS = (b"CRASH", b"HANG", b"SLEEP", b"BOMB", b"RAISE", b"MUTE")


def seeds() -> Iterator[tuple[str, bytes]]:
    """One harmless file."""
    yield "harmless.bin", b"harmless"


def read(data: bytes) -> Any:
    """Refuse the file unless it has one of the markers."""
    if b"CRASH" in data:
        ctypes.string_at(8)
    if b"HANG" in data:
        while True:
            pass
    if b"SLEEP" in data:
        time.sleep(3600)
    if b"BOMB" in data:
        bytearray(1 << 40)
    if b"RAISE" in data:
        raise KeyError("planted")
    if b"MUTE" in data:
        raise QnnError("")
    if b"DIFFER" in data:
        return _wrong_in_the_interpreter()
    raise QnnError("harmless")


def _wrong_in_the_interpreter() -> Any:
    """Makes the interpreter treat a maximum as a minimum, in this process."""
    import numpy as np

    import qnn_ext
    from qnn_ext.op import relax_numpy
    from tests.conformance.cases import load_cases

    relax_numpy.NUMPY_RULES["relax.maximum"] = relax_numpy._binary(np.minimum)
    return qnn_ext.from_tflite(load_cases("MAXIMUM", "int32")[0].model)


def plant(data: bytes, chance: random.Random) -> bytes:
    """Appends a marker."""
    return data + chance.choice(MARKERS)


def noise(data: bytes, chance: random.Random) -> bytes:
    """Prepends meaningless bytes."""
    return bytes([chance.randrange(256)]) + data


FORMAT = Format(read, (*(("noise", noise),) * 9, ("plant", plant)), ".bin")
HARMLESS = Format(read, (("noise", noise),), ".bin")
