"""Spectra: filter banks whose results are read by a logarithm, as in audio networks.

A logarithm makes the smallest values as important as the largest, and integers have one step for both: with 8-bit
operands, rounding errors drown quiet sounds. Like normalizations, what a logarithm reads is computed in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tvm import relax

from ...op.arguments import data_of, factors_of
from ...op.base import constant_value, shape_of
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
    filters that find the spectrum. The power and what is between it and the matrix belong to it. So do filters that
    work on each channel by itself and are read by filters: those that halve the rate from octave to octave.
    """
    found: set[int] = set()
    powers: list[int] = []
    readers: dict[int, set[int]] = {}  # behind a product: the bindings that read each one
    pending: list[tuple[Any, int | None]] = []  # an operand, and behind a product its reader
    for index, name in enumerate(graph.names):
        if name == "log":
            found.add(index)
            pending += [(operand, None) for operand in operands(graph.values[index])]
    seen: set[tuple[int, bool]] = set()
    while pending:
        expr, reader = pending.pop()
        if not isinstance(expr, relax.Var) or expr not in graph.index:
            continue
        index, behind = graph.index[expr], reader is not None
        if reader is not None:
            readers.setdefault(index, set()).add(reader)
        if (index, behind) in seen:
            continue
        seen.add((index, behind))
        value, family = graph.values[index], graph.families[index]
        if family is Family.MOVE:
            pending.append((data_of(value), index if behind else None))
        elif family is Family.JOIN:
            found |= set() if behind else {index}
            pending += [(operand, index if behind else None) for operand in operands(value)]
        elif family is Family.PRODUCT and not behind:
            found |= {index, *_filters_before(graph, index)}
            pending.append((data_of(value), index))
        elif graph.names[index] in _BETWEEN:
            read = list(operands(value))
            is_power = _is_power(graph, index)
            powers += [index] if behind and is_power else []
            found |= set() if behind and not is_power else {index}
            pending += [(operand, index if behind and not is_power else None) for operand in read]
    return found | _reading(powers, readers)


def filters_of_spectra(graph: Graph) -> set[int]:
    """The products in `before_logarithms` whose results a power reads, before another product does: the filters that
    find the spectrum. Their results are linear, so that sums of 8 or 16 bits may do where those of powers do not."""
    spectra = before_logarithms(graph)
    read = [operand for index in spectra if _is_power(graph, index) for operand in operands(graph.values[index])]

    def behind(index: int) -> Iterable[Any]:
        value, family = graph.values[index], graph.families[index]
        if family is Family.MOVE:
            return [data_of(value)]
        between = family is Family.JOIN or (family is not Family.PRODUCT and graph.names[index] in _BETWEEN)
        return operands(value) if between else ()

    found = {index for index in graph.leading_to(read, behind) if graph.families[index] is Family.PRODUCT} & spectra
    return found.union(*(_filters_before(graph, index) for index in found))


def _filters_before(graph: Graph, product: int) -> set[int]:
    """The convolutions of each channel by itself whose results a product reads, one behind the other."""

    def behind(index: int) -> Iterable[Any]:
        goes_on = graph.families[index] is Family.MOVE or _is_filter(graph, index)
        return [data_of(graph.values[index])] if goes_on else ()

    return {index for index in graph.leading_to([data_of(graph.values[product])], behind) if _is_filter(graph, index)}


def _is_filter(graph: Graph, index: int) -> bool:
    """Whether a binding is a convolution of each channel by itself, with constant taps."""
    if graph.families[index] is not Family.PRODUCT or not graph.names[index].startswith("nn.conv"):
        return False
    weight = factors_of(graph.values[index])[1]
    channels = str(graph.values[index].attrs.kernel_layout).index("I")
    return constant_value(weight) is not None and shape_of(weight)[channels] == 1


def _is_power(graph: Graph, index: int) -> bool:
    """Whether a binding is a power, or the product of a tensor with itself."""
    read = list(operands(graph.values[index]))
    return graph.names[index] in _POWERS or (
        graph.names[index] in _BETWEEN and len(read) == 2 and read[0].same_as(read[1])
    )


def _reading(bindings: list[int], readers: Mapping[int, Collection[int]]) -> set[int]:
    """All that read these bindings, or what reads them."""
    found: set[int] = set()
    pending = list(bindings)
    while pending:
        new = set(readers.get(pending.pop(), ())) - found
        found |= new
        pending += new
    return found
