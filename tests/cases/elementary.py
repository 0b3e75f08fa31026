"""Elementary float functions for which we have our own formula."""

from __future__ import annotations

from tvm import relax

nn = relax.op.nn
ELEMENTARY = {
    **{name: getattr(relax.op, name) for name in ("exp", "erf", "tanh", "sigmoid")},
    **{name: getattr(nn, name) for name in ("silu", "gelu", "gelu_tanh")},
}
