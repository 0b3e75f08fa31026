"""relay.op.contrib.register."""

from . import __getattr__ as __getattr__

__all__: list[str] = []
