"""relay.qnn.op."""

from .....absent import absent
from .....quantized import *  # noqa: F403
from .....quantized import __all__ as _OPERATORS
from .....requantization import RequantizeConfig, current_requantize_config, requantize_config
from . import canonicalizations, legalizations

__all__ = [
    *_OPERATORS,
    "RequantizeConfig",
    "canonicalizations",
    "current_requantize_config",
    "legalizations",
    "requantize_config",
]

_RULES = "rules are in qnn_ext.passes: ARCHITECTURE.md, Add an operator"

__getattr__ = absent(
    "relay.qnn.op", {"register_qnn_legalize": _RULES, "register_qnn_canonicalize": _RULES, "layout_conversions": _RULES}
)
