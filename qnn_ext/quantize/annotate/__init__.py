"""Annotate: marks each tensor that shall be quantized with `R.qnn.observe`, an identity that carries the decision.

A tensor is quantized where a kernel writes it: behind a product, its bias and the pointwise operators that follow; not
between these, and not again behind operators that move values. Which ones: the operands of integer products, and of
pools, sums and joins on tensors that are quantized anyway. A sum does not ask for what float functions read besides, a
transformer's residual stream, unless nbit_activation does. All readers of a quantized tensor read it quantized. Weights
get a scale per output channel; biases get no mark: they become int32 in the accumulator's units.
"""

from .rules import annotate
from .sites import Site, sites

__all__ = ["Site", "annotate", "sites"]
