"""relay.build_module."""

from ...absent import absent
from ...functors import bind_params_by_name
from ...library import build, create_executor

__all__ = ["bind_params_by_name", "build", "create_executor"]

__getattr__ = absent("relay.build_module", {"optimize": "build runs all passes", "BuildModule": "use relay.build"})
