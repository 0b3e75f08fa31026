"""The error for a name that a façade does not have: it says what there is instead."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn

from ..errors import QnnError

PAGE = "MIGRATION.md lists what the façade has, and today's call for each old one"


class NotHonouredError(QnnError, NotImplementedError):
    """A call or an option of another runtime that has no meaning here. The message names today's way."""


def absent(
    module: str,
    instead: Mapping[str, str] | None = None,
    fallback: Callable[[str], Any] | None = None,
    everything: str = "",
) -> Callable[[str], Any]:
    """A module's `__getattr__` that explains missing names.

    module:   the old name of the module, "relay.transform"
    instead:  name -> what to do today, for names that will not come
    fallback: looks a name up elsewhere; raises AttributeError if it is not there either
    everything: what to do today instead of any name that `instead` does not have
    """

    def missing(name: str) -> Any:
        if fallback is not None and not name.startswith("__"):
            try:
                return fallback(name)
            except AttributeError:
                pass
        hint = (instead or {}).get(name) or everything
        reason = f": {hint}" if hint else ""
        message = f"{module}.{name} is not part of qnn_ext's façade{reason}; {PAGE}"
        raise (ImportError if _is_import(sys._getframe(1)) else AttributeError)(message)

    return missing


def _is_import(frame: FrameType) -> bool:
    """Whether a frame is at `from module import name`, which replaces an AttributeError by a message of its own."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def refuse(call: str, today: str) -> NoReturn:
    """Raise NotHonouredError for a call that cannot be honoured."""
    raise NotHonouredError(f"{call} cannot be honoured: {today}; {PAGE}")
