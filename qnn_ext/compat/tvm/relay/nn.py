"""relay.nn."""

from ...absent import absent
from ...neural import *  # noqa: F403
from ...neural import __all__

__all__ = list(__all__)

__getattr__ = absent("relay.nn")
