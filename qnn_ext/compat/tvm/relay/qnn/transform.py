"""relay.qnn.transform."""

from ....absent import absent
from ....functors import legalized
from ....passes import Pass, resolve

__all__ = ["CanonicalizeOps", "Legalize"]


def CanonicalizeOps() -> Pass:
    """Fixes how requantizations round, by the current configuration; `build` does the rest."""
    return Pass("qnn.CanonicalizeOps", lambda mod: resolve(legalized(mod, "FTVMQnnCanonicalize")))


def Legalize() -> Pass:
    """Applies the rules of the script's own, see TempOpAttr; `build` knows what its target wants."""
    return Pass("qnn.Legalize", lambda mod: legalized(mod, "FTVMQnnLegalize"))


__getattr__ = absent("relay.qnn.transform")
