"""Spectra: filter banks whose results are read by a logarithm, as in audio networks.

A logarithm makes the smallest values as important as the largest, and integers have one step for both: with 8-bit
operands, rounding errors drown quiet sounds. Like normalizations, what a logarithm reads is computed in float.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...op.arguments import data_of
from ...passes.rewrite import operands
from .clusters import Graph
from .families import Family

_POWERS = ("square", "power", "abs", "sqrt")
# pointwise operators behind which small values matter if they do in the result; a function such as exp changes ratios
KEEP_RATIOS = (*_POWERS, "multiply", "divide", "add", "subtract", "maximum", "clip", "nn.relu")
_BETWEEN = (*KEEP_RATIOS, "sum", "mean")


def before_logarithms(graph: Graph) -> set[int]:
    """The bindings of logarithms and of what they read: sums and pointwise operators, and the products these read.

    Functions other than powers and lower bounds end the search, since they change ratios: those of a softmax do. Behind
    a product it goes on to another one only through a power: from the matrix that sums a spectrum into bands to the
    filters that find the spectrum.
    """
    found: set[int] = set()
    pending: list[tuple[Any, bool]] = []  # an operand, and whether only a power leads to further products
    for index, name in enumerate(graph.names):
        if name == "log":
            found.add(index)
            pending += [(operand, False) for operand in operands(graph.values[index])]
    seen: set[tuple[Any, bool]] = set()
    while pending:
        expr, restricted = pending.pop()
        if not isinstance(expr, relax.Var) or expr not in graph.index or (expr, restricted) in seen:
            continue
        seen.add((expr, restricted))
        index = graph.index[expr]
        value, family = graph.values[index], graph.families[index]
        if family is Family.MOVE:
            pending.append((data_of(value), restricted))
        elif family is Family.PRODUCT and not restricted:
            found.add(index)
            pending.append((data_of(value), True))
        elif graph.names[index] in _BETWEEN:
            found |= set() if restricted else {index}
            read = list(operands(value))
            is_power = graph.names[index] in _POWERS or (len(read) == 2 and read[0].same_as(read[1]))
            pending += [(operand, restricted and not is_power) for operand in read]
    return found
