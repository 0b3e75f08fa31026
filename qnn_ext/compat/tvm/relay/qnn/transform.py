"""relay.qnn.transform."""

from ....absent import absent
from ....passes import Pass, resolve

__all__ = ["CanonicalizeOps", "Legalize"]


def CanonicalizeOps() -> Pass:
    """Fixes how requantizations round, by the current configuration; `build` does the rest."""
    return Pass("qnn.CanonicalizeOps", resolve)


def Legalize() -> Pass:
    """As `CanonicalizeOps`."""
    return Pass("qnn.Legalize", resolve)


__getattr__ = absent("relay.qnn.transform")
