"""The error for a name of Relay's time that the façade does not have: it says what there is instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..errors import QnnError

PAGE = "MIGRATION.md lists what the façade has, and today's call for each old one"


class NotHonouredError(QnnError, NotImplementedError):
    """A call of Relay's time that has no meaning any more. The message names today's way."""


def absent(
    module: str, instead: Mapping[str, str] | None = None, fallback: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """A module's `__getattr__` that explains missing names.

    module:   the old name of the module, "relay.transform"
    instead:  name -> what to do today, for names that will not come
    fallback: looks a name up elsewhere; raises AttributeError if it is not there either
    """

    def missing(name: str) -> Any:
        if fallback is not None and not name.startswith("__"):
            try:
                return fallback(name)
            except AttributeError:
                pass
        hint = (instead or {}).get(name)
        reason = f": {hint}" if hint else ""
        raise AttributeError(f"{module}.{name} is not part of qnn_ext's façade{reason}; {PAGE}")

    return missing


def refuse(call: str, today: str) -> NoReturn:
    """Raise NotHonouredError for a call that cannot be honoured."""
    raise NotHonouredError(f"{call} cannot be honoured: {today}; {PAGE}")
