"""Annotate: marks each tensor to be quantized with `R.qnn.observe`, an identity that carries the decision.

A tensor is quantized where a kernel writes it: after a product, its bias and the pointwise operators that follow; not
between these, and not again after operators that only move values. Quantized are the operands of integer products, and
those of pools, sums and joins if they are quantized anyway. A sum does not quantize a tensor that float functions read
too, such as a transformer's residual stream, unless nbit_activation asks for it. All readers of a quantized tensor read
it quantized. Weights get a scale per output channel; biases are not marked: they become int32 in the accumulator's
units.
"""

from .marks import annotate
from .sites import Site, sites

__all__ = ["Site", "annotate", "sites"]
