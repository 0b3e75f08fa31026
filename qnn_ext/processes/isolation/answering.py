"""How a call becomes an answer, in any kind of child: a mark, then the function's result or why there is none."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

RESULT, OUT_OF_MEMORY, ERROR = b"=", b"M", b"E"  # the first byte of an answer


def answer(call: str, request: bytearray) -> Sequence[Any]:
    """The result of "module:function" for the request, as parts of an answer."""
    try:
        module, _, function = call.partition(":")
        return [RESULT, *getattr(import_module(module), function)(request)]
    except MemoryError:
        return [OUT_OF_MEMORY]
    except BaseException:
        return [ERROR, traceback.format_exc().encode(errors="replace")]
