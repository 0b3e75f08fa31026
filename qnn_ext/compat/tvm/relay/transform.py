"""relay.transform."""

from ...absent import absent
from ...passes import REFUSED, UNNECESSARY, nothing, refused
from ...passes import PassContext as build_config

globals().update(
    {name: nothing(name) for name in UNNECESSARY}, **{name: refused(name, why) for name, why in REFUSED.items()}
)

__all__ = [*UNNECESSARY, *REFUSED, "build_config"]

__getattr__ = absent("relay.transform")
