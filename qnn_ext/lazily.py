"""NumPy, imported at its first use: what describes a compiled file needs none, and it takes a tenth of a second.

`from .lazily import np` stands for `import numpy as np` where a module must not import NumPy by itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _NumPy:
        """NumPy's attributes, each kept once it was used."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _NumPy()
