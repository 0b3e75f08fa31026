"""relay.transform."""

from ...absent import absent
from ...functors import legalized
from ...passes import REFUSED, UNNECESSARY, Pass, function_pass, nothing, refused
from ...passes import PassContext as build_config

globals().update(
    {name: nothing(name) for name in UNNECESSARY}, **{name: refused(name, why) for name, why in REFUSED.items()}
)

__all__ = [*UNNECESSARY, *REFUSED, "Legalize", "build_config", "function_pass"]


def Legalize(legalize_map_attr_name: str = "FTVMLegalize") -> Pass:
    """Applies the rules of the script's own, see TempOpAttr; `build` knows what its target wants."""
    return Pass("Legalize", lambda mod: legalized(mod, legalize_map_attr_name))


__getattr__ = absent("relay.transform")
