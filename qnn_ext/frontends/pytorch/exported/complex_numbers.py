"""Operators on complex tensors, written with operators on real and imaginary parts, which PyTorch traces and the
importer converts. Transforms, and what takes parts of complex numbers, have converters: `converters/fourier.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.base import constant, shape_of
from .values import ComplexValue, array_of, dtype_of


def is_complex(node: fx.Node) -> bool:
    """Whether an operator takes or returns complex numbers."""
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    tensors = [value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
    return any(tensor.dtype.is_complex for tensor in tensors)


def is_written_with_parts(node: fx.Node) -> bool:
    """Whether there is a rule here for an operator on complex numbers."""
    return is_complex(node) and _name(node) in RULES


def complex_constant(tensor: torch.Tensor) -> ComplexValue:
    """A constant of complex numbers."""
    return ComplexValue(*(constant(array_of(part)) for part in (tensor.real, tensor.imag)))


def on_parts(importer: Any, node: fx.Node, operands: dict[fx.Node, Any]) -> Any:
    """The result of an operator: a tensor, a ComplexValue, or a list of them. operands: the values of nodes"""
    rule = RULES.get(_name(node))
    if rule is None:
        raise UnsupportedOperatorError(
            f"operator {node.target} is not supported for complex numbers; write it with their real and imaginary parts"
        )
    tensors = {arg: value for arg, value in operands.items() if isinstance(value, (relax.Expr, ComplexValue))}
    parts = [part for value in tensors.values() for part in _parts(value)]
    made: list[bool] = []  # whether each result is complex

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(given)
        values = {
            arg: Parts(next(rest), next(rest)) if isinstance(value, ComplexValue) else next(rest)
            for arg, value in tensors.items()
        }
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: values.get(arg, operands[arg]))
        result = rule(node.target, *args, **kwargs)
        results = list(result) if isinstance(result, (list, tuple)) and not isinstance(result, Parts) else [result]
        made[:] = [isinstance(one, Parts) for one in results]
        return [part for one in results for part in (one if isinstance(one, Parts) else (one,))]

    examples = [(torch.zeros(shape_of(part), dtype=getattr(torch, dtype_of(part))), ()) for part in parts]
    program = importer.operator_program(importer.assembly, run, examples, importer.label)
    found = iter(program.results(parts))
    results = [ComplexValue(next(found), next(found)) if one else next(found) for one in made]
    return results if isinstance(node.meta.get("val"), (list, tuple)) else results[0]


def _name(node: fx.Node) -> str:
    """ "mul" for aten.mul.Tensor; empty for what is no operator of PyTorch's."""
    target: Any = node.target
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


def _parts(value: Any) -> Iterator[relax.Expr]:
    if isinstance(value, ComplexValue):
        yield value.real
        yield value.imaginary_part()
    else:
        yield value


# ---- rules: (operator, *arguments, some of which are Parts) -> result ------------------------------------------------


class Parts(NamedTuple):
    """A complex tensor while PyTorch traces an operator."""

    real: Any
    imaginary: Any


def _split(value: Any) -> Parts | None:
    """The parts of a complex tensor or number; None for anything else."""
    if isinstance(value, complex):
        return Parts(value.real, value.imag)
    return value if isinstance(value, Parts) else None


def _replaced(arguments: Any, part: Callable[[Parts], Any]) -> Any:
    return pytree.tree_map(
        lambda value: part(value) if isinstance(value, Parts) else value,
        arguments,
        is_leaf=lambda value: isinstance(value, Parts),
    )


def _each(target: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator that moves numbers, or adds those of one tensor: on real and imaginary parts alike."""
    results = [
        target(*_replaced(args, part), **_replaced(kwargs, part))
        for part in (lambda value: value.real, lambda value: value.imaginary)
    ]
    return list(map(Parts, *results)) if isinstance(results[0], (list, tuple)) else Parts(*results)


def _joined(target: Any, *args: Any, **kwargs: Any) -> Parts:
    """An operator that is linear in all its tensors of floats together, of which some may be real."""

    def imaginary(value: Any) -> Any:
        found = _split(value)
        if found is not None:
            return found.imaginary
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return torch.zeros_like(value)
        return 0 if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    def real(value: Any) -> Any:
        found = _split(value)
        return value if found is None else found.real

    def mapped(part: Callable[[Any], Any]) -> Any:
        return target(*pytree.tree_map(part, args, is_leaf=lambda value: isinstance(value, Parts)), **kwargs)

    return Parts(mapped(real), mapped(imaginary))


def _concatenated(target: Any, tensors: Sequence[Any], dim: int = 0) -> Parts:
    real = [one.real if isinstance(one, Parts) else one for one in tensors]
    imaginary = [one.imaginary if isinstance(one, Parts) else torch.zeros_like(one) for one in tensors]
    return Parts(target(real, dim), target(imaginary, dim))


_MULTIPLY = torch.ops.aten.mul


def _product(target: Any, x: Any, y: Any) -> Parts:
    """An operator that is linear in each of two operands."""
    a, b = _split(x), _split(y)
    operator = torch.mul if target is _MULTIPLY.Scalar else target  # also for numbers
    if a is None or b is None:
        if a is not None:
            return Parts(operator(a.real, y), operator(a.imaginary, y))
        assert b is not None
        return Parts(operator(x, b.real), operator(x, b.imaginary))
    return Parts(
        operator(a.real, b.real) - operator(a.imaginary, b.imaginary),
        operator(a.real, b.imaginary) + operator(a.imaginary, b.real),
    )


def _quotient(target: Any, x: Any, y: Any) -> Parts:
    """x · conj(y) / |y|²"""
    divisor = _split(y)
    if divisor is None:
        assert isinstance(x, Parts)
        return Parts(x.real / y, x.imaginary / y)
    norm = divisor.real * divisor.real + divisor.imaginary * divisor.imaginary
    product = _product(_MULTIPLY.Scalar, x, Parts(divisor.real, -divisor.imaginary))
    return Parts(product.real / norm, product.imaginary / norm)


def _reciprocal(_target: Any, x: Parts) -> Parts:
    return _quotient(None, 1.0, x)


def _conjugate(_target: Any, x: Parts) -> Parts:
    return Parts(x.real, -x.imaginary)


def _same(_target: Any, x: Any, *_options: Any, **_more: Any) -> Any:
    return x


def _absolute(_target: Any, x: Parts) -> Any:
    return torch.sqrt(x.real * x.real + x.imaginary * x.imaginary)


def _angle(_target: Any, x: Parts) -> Any:
    return torch.atan2(x.imaginary, x.real)


def _sign(_target: Any, x: Parts) -> Parts:
    """x / |x|, 0 of 0."""
    length = _absolute(None, x)
    length = torch.where(length == 0, 1, length)
    return Parts(x.real / length, x.imaginary / length)


def _exponential(_target: Any, x: Parts) -> Parts:
    return _polar(None, torch.exp(x.real), x.imaginary)


def _polar(_target: Any, length: Any, angle: Any) -> Parts:
    return Parts(length * torch.cos(angle), length * torch.sin(angle))


def _power(target: Any, x: Any, exponent: Any) -> Parts:
    """Of a small natural exponent, by multiplications."""
    if not isinstance(x, Parts) or not isinstance(exponent, (int, float)) or exponent not in range(1, 9):
        raise UnsupportedOperatorError("complex numbers to a power that is no integer from 1 to 8 are not supported")
    result = x
    for _ in range(int(exponent) - 1):
        result = _product(_MULTIPLY.Tensor, result, x)
    return result


def _pair(_target: Any, real: Any, imaginary: Any) -> Parts:
    return Parts(real, imaginary)


_EACH = """alias as_strided chunk clone constant_pad_nd contiguous cumsum detach diagonal expand flatten flip gather
index index_select lift_fresh_copy mean movedim narrow neg pad permute repeat reshape roll select slice split
split_with_sizes squeeze sum t transpose tril triu unbind unfold unsqueeze _unsafe_view view"""

RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_EACH.split(), _each),
    **dict.fromkeys(("add", "sub", "rsub", "where"), _joined),
    **dict.fromkeys(("cat", "stack"), _concatenated),
    **dict.fromkeys(("mul", "matmul", "mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("_conj", "conj", "conj_physical", "_conj_physical"), _conjugate),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), _same),
    "abs": _absolute,
    "angle": _angle,
    "complex": _pair,
    "div": _quotient,
    "exp": _exponential,
    "polar": _polar,
    "pow": _power,
    "reciprocal": _reciprocal,
    "sgn": _sign,
}
"""Name of an operator -> its rule."""
