"""Pooling and _contrib_quantized_pooling: max and average, both conventions; adaptive average pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax

from .... import op as qnn
from ....limits import current
from ..node import Node
from ..registry import converter

MAX_POOL = {1: relax.op.nn.max_pool1d, 2: relax.op.nn.max_pool2d, 3: relax.op.nn.max_pool3d}
AVG_POOL = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@dataclass(frozen=True)
class Window:
    """pad: the padding that the model asks for, on both sides; overhang: what the "full" convention adds at the end to
    complete the last window that begins within the data."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    pad: tuple[int, ...]
    overhang: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """All beginnings, then all ends."""
        return (*self.pad, *(p + extra for p, extra in zip(self.pad, self.overhang, strict=True)))


def _read_window(node: Node) -> Window:
    node.check_rank(3, 4, 5)
    spatial = node.shape(0)[2:]
    rank = len(spatial)
    node.choice("layout", LAYOUTS[rank], LAYOUTS[rank])
    if node.flag("global_pool"):
        return Window(spatial, (1,) * rank, (0,) * rank, (0,) * rank)
    size, strides = node.window("kernel", rank, 1, 1), node.window("stride", rank, 1, 1)
    pad = node.window("pad", rank, 0, 0)
    full = node.choice("pooling_convention", "valid", "valid", "full") == "full"
    if any(p >= min(k, current().padding) or k > dim + 2 * p for p, k, dim in zip(pad, size, spatial, strict=True)):
        raise node.malformed(f"a window of {size} with padding {pad} does not fit into data of {spatial}")
    overhang = tuple(
        -(dim + 2 * p - k) % s if full else 0 for dim, k, s, p in zip(spatial, size, strides, pad, strict=True)
    )
    if any(extra >= k for extra, k in zip(overhang, size, strict=True)):
        raise node.unsupported(
            f"pooling_convention=full with windows of {size} and strides {strides} that lie outside the data"
        )
    return Window(size, strides, pad, overhang)


def _padded(node: Node, pad: tuple[int, ...]) -> relax.Expr:
    """The float data padded with zeros."""
    if not any(pad):
        return node.input(0)
    widths = [0, 0, 0, 0] + [p for one in pad for p in (one, one)]
    return node.emit(relax.op.nn.pad(node.input(0), widths, pad_mode="constant", pad_value=0.0))


@converter("Pooling", "Pooling_v1")
def convert_pooling(node: Node) -> relax.Expr:
    """Max or average in float32. An average with count_include_pad counts the cells of `pad`, but not the overhang of
    the "full" convention."""
    kind = node.choice("pool_type", "max", "max", "avg")
    window = _read_window(node)
    options: dict[str, Any] = {"pool_size": window.size, "strides": window.strides}
    rank = len(window.size)
    if kind == "max":
        return MAX_POOL[rank](node.input(0), padding=window.padding, **options)
    if not node.flag("count_include_pad", True):
        return AVG_POOL[rank](node.input(0), padding=window.padding, count_include_pad=False, **options)
    padding = (*(0,) * rank, *window.overhang)
    return AVG_POOL[rank](_padded(node, window.pad), padding=padding, count_include_pad=False, **options)


@converter("_contrib_quantized_pooling")
def convert_quantized_pooling(node: Node) -> list[relax.Expr]:
    """On integers; the range is unchanged. An average is rint(f32(sum) · f32(1/n)), as in oneDNN; n counts the cells
    within the data and, with count_include_pad, those of `pad`, as in float. To match MXNet bit for bit the overhang of
    the "full" convention counts too, which makes the last row and column too small."""
    kind = node.choice("pool_type", "max", "max", "avg")
    node.check_rank(4)
    if node.dtype(0) not in ("int8", "uint8"):
        raise node.malformed(f"quantized data must be int8 or uint8, found {node.dtype(0)}")
    window = _read_window(node)
    options: dict[str, Any] = {"pool_size": window.size, "strides": window.strides, "padding": window.padding}
    if kind == "max":
        result = relax.op.nn.max_pool2d(node.input(0), **options)
    else:
        inclusive = node.flag("count_include_pad", True)
        if inclusive and any(window.overhang) and node.assembly.intended:
            options |= {"padding": window.pad * 2, "ceil_mode": True}
        result = qnn.avg_pool2d(
            node.input(0),
            1.0,
            0,
            1.0,
            0,
            count_include_pad=inclusive,
            reciprocal=True,
            layout="NCHW",
            out_dtype=node.dtype(0),
            **options,
        )
    return [result, node.input(1), node.input(2)]


@converter("_contrib_AdaptiveAvgPooling2D")
def convert_adaptive_pooling(node: Node) -> relax.Expr:
    """An average over `output_size` regions, in float32."""
    node.check_rank(4)
    size = node.integers("output_size", (1, 1))
    if len(size) not in (1, 2) or min(size) < 1:
        raise node.malformed(f"output_size must be one or two integers of at least 1, found {size}")
    return relax.op.nn.adaptive_avg_pool2d(node.input(0), size if len(size) == 2 else size * 2)
