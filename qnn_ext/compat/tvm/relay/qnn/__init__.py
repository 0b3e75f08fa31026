"""relay.qnn: TVM 0.19 has the operators here, earlier ones in relay.qnn.op."""

from ....absent import absent
from ....quantized import *  # noqa: F403
from ....quantized import __all__ as _OPERATORS
from ....requantization import RequantizeConfig, current_requantize_config, requantize_config
from . import op, transform

__all__ = [
    *_OPERATORS,
    "RequantizeConfig",
    "current_requantize_config",
    "op",
    "requantize_config",
    "transform",
]

__getattr__ = absent("relay.qnn")
