"""Annotate: marks each tensor to be quantized with `R.qnn.observe`, an identity that carries the decision.

A tensor is quantized where a kernel writes it: after a product, its bias and the pointwise operators that follow; not
between these, and not again after operators that only move values. Quantized are the operands of integer products, and
those of pools, sums and joins if they are quantized anyway. A sum does not quantize a tensor that float functions read
too, such as a transformer's residual stream, unless nbit_activation asks for it. All readers of a quantized tensor read
it quantized. In loops only products are (`loops.py`). Weights get a scale per output channel; biases are not marked:
they become int32 in the accumulator's units.
"""

from __future__ import annotations

from dataclasses import replace

from ...module import QnnModule
from ..config import QConfig
from .loops import annotate_loops
from .marks import annotate_main, float_filters
from .sites import Site, sites

__all__ = ["Site", "annotate", "float_filters", "sites"]


def annotate(module: QnnModule, config: QConfig) -> QnnModule:
    """`module` (folded, float32) with an `R.qnn.observe` on each tensor to be quantized.

    Layers that the configuration keeps in float get none; those in float16 or bfloat16 round their operands. Raises
    QuantizationError for patterns and indices of the configuration that match no layer.
    """
    marked = annotate_main(module, config)
    return replace(marked, ir=annotate_loops(marked.ir, config))
