"""Poolings over windows in float or on integers as they are: MaxPool and AveragePool."""

from __future__ import annotations

from tvm import relax

from ..node import Node
from ..registry import converter
from .geometry import window


@converter("MaxPool", "AveragePool")
def pool(node: Node) -> relax.Expr:
    """Maximum or average of each window, over 1, 2 or 3 dimensions."""
    shape = node.shape(0)
    rank = len(shape) - 2
    if rank not in (1, 2, 3):
        raise node.unsupported(f"data of shape {shape}; supported: 1, 2 and 3 spatial dimensions")
    geometry = window(node, shape[2:])
    same = str(node.attribute("auto_pad", "NOTSET")).startswith("SAME")  # the padding makes the windows fit
    ceil_mode = bool(node.attribute("ceil_mode", 0)) and not same
    for axis, size in enumerate(shape[2:]):
        reach = (geometry.kernel[axis] - 1) * geometry.dilation[axis] + 1
        rest = size + geometry.padding[axis] + geometry.padding[axis + rank] - reach
        if rest + (geometry.strides[axis] - 1 if ceil_mode else 0) < 0:
            raise node.malformed(f"the window is larger than the padded input {shape}")
    kind = "max" if node.op_type == "MaxPool" else "avg"
    return getattr(relax.op.nn, f"{kind}_pool{rank}d")(
        node.input(0),
        geometry.kernel,
        geometry.strides,
        geometry.padding,
        geometry.dilation,
        ceil_mode,
        bool(node.attribute("count_include_pad", 0)),
    )
