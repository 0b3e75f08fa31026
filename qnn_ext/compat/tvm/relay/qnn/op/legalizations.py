"""relay.qnn.op.legalizations."""

from .....absent import absent
from .....quantized import hardswish_func

__all__ = ["hardswish_func"]

_RULES = "qnn_ext.passes.legalize gives each target the dtypes that its instructions take"

__getattr__ = absent("relay.qnn.op.legalizations", {"qnn_conv2d_legalize": _RULES, "qnn_dense_legalize": _RULES})
