"""The activation functions that recurrent operators name in attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax

from ....op.base import constant
from ...recurrent import Function
from ..node import Node
from .arithmetic import float_function

Emit = Callable[[relax.Expr], relax.Expr]


@dataclass(frozen=True)
class _Activation:
    """A function (emit, x, alpha, beta).

    defaults: of alpha and beta, for those that it uses; None where ONNX has no default
    """

    compute: Callable[..., relax.Expr]
    defaults: tuple[float | None, ...] = ()


def activation_functions(node: Node, usual: Sequence[str], others: Mapping[str, str] | None = None) -> list[Function]:
    """The functions that the attribute `activations` names, `usual` without it, with their alphas and betas.

    others: names in lower case -> functions of floats that take their place

    As in ONNX Runtime, names are compared without case, and each function that uses an alpha or a beta takes the next
    of `activation_alpha` or `activation_beta`. Raises ModelFormatError for unknown names and missing parameters.
    """
    names = [str(name) for name in node.attribute("activations", usual)]
    if len(names) != len(usual):
        raise node.malformed(f"activations must be {len(usual)} names, found {len(names)}")
    lists = [node.attribute(name, []) for name in ("activation_alpha", "activation_beta")]
    given = [iter(map(float, values if isinstance(values, list) else [])) for values in lists]
    functions: list[Function] = []
    for name in names:
        found = _ACTIVATIONS.get(name.lower())
        if found is None:
            known = ", ".join(sorted(_ACTIVATIONS))
            raise node.malformed(f"unknown activation {name!r}; ONNX has {known}, in any case")
        parameters = [next(values, default) for values, default in zip(given, found.defaults, strict=False)]
        if None in parameters:
            raise node.malformed(f"the activation {name} needs activation_alpha and activation_beta")
        alpha, beta = (*parameters, 0.0, 0.0)[:2]
        other = (others or {}).get(name.lower())
        if other is not None:
            found = _Activation(partial(_plain, float_function(other)))
        functions.append(partial(found.compute, node.emit, alpha=alpha, beta=beta))
    return functions


def activation(node: Node, name: str, parameters: Sequence[float]) -> Function:
    """The function of this name with its alpha and beta. Raises ModelFormatError for unknown names."""
    found = _ACTIVATIONS.get(name.lower())
    if found is None:
        raise node.malformed(f"unknown activation {name!r}; known are {', '.join(sorted(_ACTIVATIONS))}")
    alpha, beta = (float(value or 0) for value in (*parameters, *found.defaults[len(parameters) :], 0.0, 0.0)[:2])
    return partial(found.compute, node.emit, alpha=alpha, beta=beta)


# ---- formulas ----------------------------------------------------------------------------------------------------


def _number(like: relax.Expr, value: float) -> relax.Expr:
    return constant(np.asarray(value, str(like.ty.dtype)))


def _affine(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """alpha · x + beta"""
    return emit(relax.op.add(emit(relax.op.multiply(x, _number(x, alpha))), _number(x, beta)))


def _thresholded_relu(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """x where x > alpha, 0 elsewhere"""
    return emit(relax.op.where(emit(relax.op.greater(x, _number(x, alpha))), x, _number(x, 0)))


def _leaky_relu(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """x where x ≥ 0, alpha · x elsewhere"""
    return emit(relax.op.where(emit(relax.op.less(x, _number(x, 0))), emit(relax.op.multiply(x, _number(x, alpha))), x))


def _scaled_tanh(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """alpha · tanh(beta · x)"""
    inner = emit(relax.op.tanh(emit(relax.op.multiply(x, _number(x, beta)))))
    return emit(relax.op.multiply(inner, _number(x, alpha)))


def _hard_sigmoid(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """max(0, min(1, alpha · x + beta))"""
    return emit(relax.op.clip(_affine(emit, x, alpha, beta), 0, 1))


def _elu(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """x where x ≥ 0, alpha · (exp(x) − 1) elsewhere"""
    zero = _number(x, 0)
    below = emit(relax.op.subtract(emit(relax.op.exp(emit(relax.op.minimum(x, zero)))), _number(x, 1)))
    scaled = emit(relax.op.multiply(below, _number(x, alpha)))
    return emit(relax.op.where(emit(relax.op.less(x, zero)), scaled, x))


def _softsign(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """x / (1 + |x|), by the reciprocal"""
    inverse = emit(relax.op.divide(_number(x, 1), emit(relax.op.add(emit(relax.op.abs(x)), _number(x, 1)))))
    return emit(relax.op.multiply(x, inverse))


def _softplus(emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(−|x|)), of which no exponential overflows"""
    small = emit(relax.op.exp(emit(relax.op.negative(emit(relax.op.abs(x))))))
    rest = emit(relax.op.log(emit(relax.op.add(small, _number(x, 1)))))
    return emit(relax.op.add(emit(relax.op.maximum(x, _number(x, 0))), rest))


def _plain(operator: Function, emit: Emit, x: relax.Expr, alpha: float, beta: float) -> relax.Expr:
    return emit(operator(x))


_ACTIVATIONS = {
    "affine": _Activation(_affine, (None, None)),
    "elu": _Activation(_elu, (1.0,)),
    "hardsigmoid": _Activation(_hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": _Activation(_leaky_relu, (0.01,)),
    "relu": _Activation(partial(_plain, relax.op.nn.relu)),
    "scaledtanh": _Activation(_scaled_tanh, (None, None)),
    "sigmoid": _Activation(partial(_plain, float_function("logistic"))),
    "softplus": _Activation(_softplus),
    "softsign": _Activation(_softsign),
    "tanh": _Activation(partial(_plain, float_function("tanh"))),
    "thresholdedrelu": _Activation(_thresholded_relu, (1.0,)),
}
