"""relay.qnn.requantize_config: how requantization rounds where a call does not say."""

from __future__ import annotations

from typing import Any

from ..errors import QnnError
from ..scopes import Scopes

ROUNDINGS = ("UPWARD", "TONEAREST")
COMPUTE_DTYPES = ("int64", "float32", "float64")
UNSET = "None"  # Relay's word for it


class RequantizeConfig:
    """Rounding and arithmetic of the requantizations that are lowered inside `with config:`, as often as wanted.

    rounding:      "UPWARD" (midpoints upwards) or "TONEAREST" (away from zero)
    compute_dtype: "int64", "float32" or "float64"; "None": float32 for x86 with SSE 4.1, as in Relay, else int64
    """

    def __init__(self, rounding: str = "UPWARD", compute_dtype: str = UNSET) -> None:
        if rounding not in ROUNDINGS or compute_dtype not in (*COMPUTE_DTYPES, UNSET):
            raise QnnError(
                f"requantize_config: rounding must be one of {', '.join(ROUNDINGS)} and compute_dtype one of "
                f"{', '.join(COMPUTE_DTYPES)}, found {rounding!r} and {compute_dtype!r}"
            )
        self.rounding, self.compute_dtype = rounding, compute_dtype

    def __enter__(self) -> RequantizeConfig:
        _scopes.enter(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _scopes.leave()


_scopes = Scopes[RequantizeConfig]()


def requantize_config(**values: str) -> RequantizeConfig:
    """relay.qnn.requantize_config(rounding=…, compute_dtype=…)."""
    return RequantizeConfig(**values)


def current_requantize_config() -> RequantizeConfig:
    """The innermost configuration of this thread, or the default."""
    return _scopes.innermost or RequantizeConfig()


def resolve(rounding: str, compute_dtype: str, default: str) -> dict[str, str]:
    """A call's own rounding and arithmetic where it has them, else the configuration's, else `default` arithmetic."""
    config = current_requantize_config()
    given = compute_dtype if compute_dtype != UNSET else config.compute_dtype
    return {
        "rounding": rounding if rounding != UNSET else config.rounding,
        "compute_dtype": given if given != UNSET else default,
    }
