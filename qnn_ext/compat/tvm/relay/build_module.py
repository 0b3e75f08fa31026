"""relay.build_module."""

from ...absent import absent
from ...library import build, create_executor

__all__ = ["build", "create_executor"]

__getattr__ = absent("relay.build_module", {"optimize": "build runs all passes", "BuildModule": "use relay.build"})
