"""LSTM, GRU and RNN of ONNX in float64, with a bound for what float32 may differ from it.

Every value carries a bound: a sum or product adds one rounding u = 2⁻²⁴, a product of matrices of depth n γ = (n + 1)·u
times Σ|terms|, and an activation multiplies what it is given by its Lipschitz constant and adds its own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

UNIT = 2.0**-24
ACTIVATION = 8 * UNIT  # what an approximation of exp or tanh may be off, of 1 + |value|


@dataclass(frozen=True)
class Real:
    """A value, and how far float32 may be from it."""

    value: np.ndarray
    bound: np.ndarray

    @staticmethod
    def exact(value: Any) -> Real:
        value = np.asarray(value, np.float64)
        return Real(value, np.zeros_like(value))

    def _rounded(self) -> Real:
        return Real(self.value, self.bound + UNIT * (np.abs(self.value) + self.bound))

    def __add__(self, other: Real) -> Real:
        return Real(self.value + other.value, self.bound + other.bound)._rounded()

    def __sub__(self, other: Real) -> Real:
        return self + Real(-other.value, other.bound)

    def __mul__(self, other: Real) -> Real:
        a, b = np.abs(self.value), np.abs(other.value)
        bound = a * other.bound + b * self.bound + self.bound * other.bound
        return Real(self.value * other.value, bound)._rounded()

    def __matmul__(self, matrix: np.ndarray) -> Real:
        wide = matrix.astype(np.float64)
        carried = (np.abs(self.value) + self.bound) @ np.abs(wide)
        return Real(self.value @ wide, self.bound @ np.abs(wide) + (len(wide) + 1) * UNIT * carried)

    def __getitem__(self, item: Any) -> Real:
        return Real(self.value[item], self.bound[item])

    def clipped(self, limit: float) -> Real:
        return Real(np.clip(self.value, -limit, limit), self.bound) if limit else self

    def where(self, mask: np.ndarray, other: Real) -> Real:
        return Real(np.where(mask, self.value, other.value), np.where(mask, self.bound, other.bound))


ONE = Real.exact(1.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# Name -> function of (x, alpha, beta), Lipschitz constant of alpha and beta, whether it takes an alpha and a beta
FUNCTIONS: dict[str, tuple[Any, Any, int]] = {
    "Relu": (lambda x, a, b: np.maximum(x, 0), lambda a, b: 1, 0),
    "Tanh": (lambda x, a, b: np.tanh(x), lambda a, b: 1, 0),
    "Sigmoid": (lambda x, a, b: _sigmoid(x), lambda a, b: 0.25, 0),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), lambda a, b: 1, 0),
    "Softplus": (lambda x, a, b: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0), lambda a, b: 1, 0),
    "LeakyRelu": (lambda x, a, b: np.where(x < 0, a * x, x), lambda a, b: max(1, abs(a)), 1),
    "Elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), lambda a, b: max(1, abs(a)), 1),
    "ThresholdedRelu": (lambda x, a, b: np.where(x > a, x, 0), lambda a, b: 1, 1),
    "Affine": (lambda x, a, b: a * x + b, lambda a, b: abs(a), 2),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), lambda a, b: abs(a * b), 2),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), lambda a, b: abs(a), 2),
}


@dataclass(frozen=True)
class Activation:
    """A function with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Real) -> Real:
        function, lipschitz, _ = FUNCTIONS[self.name]
        value = function(x.value, self.alpha, self.beta)
        bound = lipschitz(self.alpha, self.beta) * x.bound + ACTIVATION * (1 + np.abs(value))
        if self.name == "ThresholdedRelu":  # near the threshold it may be either
            bound = np.where(np.abs(x.value - self.alpha) <= x.bound, np.abs(x.value) + bound, bound)
        return Real(value, bound)


SIGMOID, TANH = Activation("Sigmoid"), Activation("Tanh")
USUAL = {"LSTM": (SIGMOID, TANH, TANH), "GRU": (SIGMOID, TANH), "RNN": (TANH,)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Layer:
    """A layer's operands as ONNX has them, steps first: x (T, N, I), w (D, gates·H, I), r (D, gates·H, H),
    b (D, 2·gates·H), lengths (N,), h and c (D, N, H), p (D, 3·H)."""

    kind: str
    x: np.ndarray
    w: np.ndarray
    r: np.ndarray
    b: np.ndarray | None = None
    lengths: np.ndarray | None = None
    h: np.ndarray | None = None
    c: np.ndarray | None = None
    p: np.ndarray | None = None
    direction: str = "forward"
    clip: float = 0.0
    coupled: bool = False
    linear_before_reset: bool = False
    activations: Sequence[Activation] = ()

    @property
    def inputs(self) -> dict[str, np.ndarray | None]:
        found = {"X": self.x, "W": self.w, "R": self.r, "B": self.b, "sequence_lens": self.lengths, "h": self.h}
        return {**found, "c": self.c, "P": self.p} if self.kind == "LSTM" else found

    def run(self) -> list[Real]:
        """Y (T, D, N, H), Y_h and, of an LSTM, Y_c (D, N, H)."""
        backwards = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[self.direction]
        sides = [_Side(self, index, bool(back)).run() for index, back in enumerate(backwards)]
        outputs, *finals = ([side[k] for side in sides] for k in range(len(sides[0])))
        return [_stack(outputs, 1), *(_stack(parts, 0) for parts in finals)]


def _stack(parts: Sequence[Real], axis: int) -> Real:
    return Real(np.stack([part.value for part in parts], axis), np.stack([part.bound for part in parts], axis))


@dataclass(frozen=True)
class _Side:
    layer: Layer
    index: int
    backwards: bool
    peepholes: Mapping[str, Real] = field(default_factory=dict)

    def run(self) -> list[Real]:
        layer, index, hidden = self.layer, self.index, self.layer.r.shape[2]
        steps, batch, _ = layer.x.shape
        lengths = np.full(batch, steps) if layer.lengths is None else layer.lengths
        states = []
        for given in (layer.h, layer.c)[: 2 if layer.kind == "LSTM" else 1]:
            state = np.zeros((batch, hidden)) if given is None else given[index]
            states.append(Real.exact(np.where(lengths[:, None] > 0, state, 0)))
        zero, outputs = Real.exact(np.zeros((batch, hidden))), [Real.exact(0)] * steps
        for step in reversed(range(steps)) if self.backwards else range(steps):
            valid = (step < lengths)[:, None]
            new = self._step(Real.exact(layer.x[step]), states)
            states = [now.where(valid, before) for now, before in zip(new, states, strict=True)]
            outputs[step] = new[0].where(valid, zero)
        return [_stack(outputs, 0), *states]

    def _step(self, x: Real, states: list[Real]) -> list[Real]:
        layer, index, hidden = self.layer, self.index, self.layer.r.shape[2]
        size, clip = GATES[layer.kind] * hidden, layer.clip
        functions = layer.activations or USUAL[layer.kind] * 2
        count = len(USUAL[layer.kind])
        functions = functions[index * count : (index + 1) * count]
        bias = np.zeros(2 * size) if layer.b is None else layer.b[index]
        h = states[0]

        def own(k: int) -> slice:
            return slice(k * hidden, (k + 1) * hidden)

        def entry(k: int, past: Real | None = None, with_bias: bool = True) -> Real:
            product = h @ layer.r[index][own(k)].T if past is None else past
            both = Real.exact(bias[:size][own(k)])
            both = both + Real.exact(bias[size:][own(k)]) if with_bias else both
            return x @ layer.w[index][own(k)].T + product + both

        if layer.kind == "RNN":
            return [functions[0](entry(0).clipped(clip))]
        if layer.kind == "GRU":
            update, reset = (functions[0](entry(k).clipped(clip)) for k in (0, 1))
            matrix = layer.r[index][own(2)].T
            if layer.linear_before_reset:
                past = reset * (h @ matrix + Real.exact(bias[size:][own(2)]))
                new = entry(2, past, with_bias=False)
            else:
                new = entry(2, (reset * h) @ matrix)
            new = functions[1](new.clipped(clip))
            return [(ONE - update) * new + update * h]
        c = states[1]

        def peeping(k: int, memory: Real) -> Real:
            value = entry(k)
            value = value if layer.p is None else value + memory * Real.exact(layer.p[index][own(k)])
            return functions[0](value.clipped(clip))

        opened = peeping(0, c)
        kept = ONE - opened if layer.coupled else peeping(2, c)
        memory = kept * c + opened * functions[1](entry(3).clipped(clip))
        return [peeping(1, memory) * functions[2](memory), memory]
