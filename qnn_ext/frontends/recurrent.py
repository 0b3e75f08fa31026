"""Recurrent layers, written once for all frontends: the cells, and the loop over time.

What depends on the inputs alone, X·W + b of all steps, is one product before the loop. In the loop are the product with
the hidden state and the gates. The pre-activations of a cell's gates are columns of one tensor (batch, gates · hidden),
in the order of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from tvm import relax

from ..op import compound
from ..op.base import constant, shape_of
from .assembly import Assembly, Conversion
from .loops import loop

Function = Callable[[relax.Expr], relax.Expr]
States = list[relax.Expr]
Emitter = Conversion | Assembly


class Cell(Protocol):
    """One step in time."""

    def step(self, own: relax.Expr, states: States) -> States:
        """The next states from the step's own part of the gates and the states so far; the first state is the hidden
        one, which is the output."""
        ...


@dataclass(frozen=True)
class Gates:
    """The arithmetic of gates in one place.

    node:  emits
    order: a letter for each gate: "iofc"
    times: how a product is written that a sum follows
    """

    node: Emitter
    order: str
    times: Callable[[relax.Expr, relax.Expr], relax.Expr]

    def split(self, value: relax.Expr) -> dict[str, relax.Expr]:
        """The columns of each gate."""
        if len(self.order) == 1:
            return {self.order: value}
        size = shape_of(value)[1] // len(self.order)
        return {
            gate: self.node.emit(relax.op.strided_slice(value, [1], [index * size], [(index + 1) * size]))
            for index, gate in enumerate(self.order)
        }

    def plus(self, a: relax.Expr, b: relax.Expr) -> relax.Expr:
        """a + b"""
        return self.node.emit(relax.op.add(a, b))

    def minus(self, a: relax.Expr, b: relax.Expr) -> relax.Expr:
        """a − b"""
        return self.node.emit(relax.op.subtract(a, b))

    def biased(self, value: relax.Expr, gate: str, bias: Mapping[str, relax.Expr]) -> relax.Expr:
        """value + the bias of a gate, if it has one"""
        return self.plus(value, bias[gate]) if gate in bias else value

    def one_minus(self, value: relax.Expr) -> relax.Expr:
        """1 − value"""
        return self.minus(constant(np.ones((), str(value.ty.dtype))), value)


@dataclass(frozen=True)
class Lstm:
    """A long short-term memory, with the states h and c:

    i = σ(x_i + h·R_i + p_i·c), f = σ(x_f + h·R_f + p_f·c), g = γ(x_c + h·R_c)
    c' = f·c + i·g, o = σ(x_o + h·R_o + p_o·c'), h' = o·η(c')

    gates:     in an order of i, o, f, c
    recurrent: h -> h·R, with a bias if it has one
    sigma, gamma, eta: the activations
    clip:      applied to the arguments of σ and γ
    peepholes: the vectors p_i, p_o, p_f, those that there are
    bias:      of gates to whose sums it is added last, not with X·W or h·R: the vectors of those that have one
    coupled:   f = 1 − i
    project:   applied to h' if the hidden state is narrower than c
    """

    gates: Gates
    recurrent: Function
    sigma: Function
    gamma: Function
    eta: Function
    clip: Function | None = None
    peepholes: Mapping[str, relax.Expr] = field(default_factory=dict)
    bias: Mapping[str, relax.Expr] = field(default_factory=dict)
    coupled: bool = False
    project: Function | None = None

    def step(self, own: relax.Expr, states: States) -> States:
        """[h', c'] from x and [h, c]."""
        hidden, memory = states
        times, plus = self.gates.times, self.gates.plus
        before = self.gates.split(plus(own, self.recurrent(hidden)))
        entry = self.sigma(self._argument(before, "i", memory))
        kept = self.gates.one_minus(entry) if self.coupled else self.sigma(self._argument(before, "f", memory))
        new = self.gamma(self._argument(before, "c", memory))
        memory = plus(times(kept, memory), times(entry, new))
        result = self.gates.node.emit(
            relax.op.multiply(self.sigma(self._argument(before, "o", memory)), self.eta(memory))
        )
        return [result if self.project is None else self.project(result), memory]

    def _argument(self, before: Mapping[str, relax.Expr], gate: str, memory: relax.Expr) -> relax.Expr:
        value = before[gate]
        if gate in self.peepholes:
            value = self.gates.plus(value, self.gates.times(memory, self.peepholes[gate]))
        value = self.gates.biased(value, gate, self.bias)
        return value if self.clip is None else self.clip(value)


@dataclass(frozen=True)
class Gru:
    """A gated recurrent unit, with the state h:

    z = σ(x_z + h·R_z), r = σ(x_r + h·R_r), n = γ(x_h + r·(h·R_h + b_h)), or with `candidate` γ(x_h + (r·h)·R_h + b_h)
    h' = (1 − z)·n + z·h, or with `difference` (h − n)·z + n

    gates:      in an order of z, r, h
    recurrent:  h -> h·R with its bias, of all gates; with `candidate` of those before the last, which is h
    candidate:  r·h -> (r·h)·R_h
    reset:      the activation of r, if it is computed in another way than that of z
    bias:       as that of an LSTM
    """

    gates: Gates
    recurrent: Function
    sigma: Function
    gamma: Function
    clip: Function | None = None
    candidate: Function | None = None
    difference: bool = False
    reset: Function | None = None
    bias: Mapping[str, relax.Expr] = field(default_factory=dict)

    def step(self, own: relax.Expr, states: States) -> States:
        """[h'] from x and [h]."""
        (hidden,) = states
        times, plus = self.gates.times, self.gates.plus
        inputs = self.gates.split(own)
        product = self.recurrent(hidden)
        if self.candidate is None:
            recurrent = self.gates.split(product)
        else:
            recurrent = Gates(self.gates.node, self.gates.order[:-1], times).split(product)
        update = self.sigma(self._clipped(self.gates.biased(plus(inputs["z"], recurrent["z"]), "z", self.bias)))
        sigma = self.sigma if self.reset is None else self.reset
        reset = sigma(self._clipped(self.gates.biased(plus(inputs["r"], recurrent["r"]), "r", self.bias)))
        if self.candidate is None:
            past = times(reset, recurrent["h"])
        else:
            past = self.candidate(self.gates.node.emit(relax.op.multiply(reset, hidden)))
        before = self.gates.biased(plus(inputs["h"], past), "h", self.bias)
        new = self.gamma(self._clipped(before))
        if self.difference:
            return [plus(times(self.gates.minus(hidden, new), update), new)]
        return [plus(times(self.gates.one_minus(update), new), times(update, hidden))]

    def _clipped(self, value: relax.Expr) -> relax.Expr:
        return value if self.clip is None else self.clip(value)


@dataclass(frozen=True)
class Rnn:
    """h' = σ(x + h·R), with the state h."""

    gates: Gates
    recurrent: Function
    sigma: Function
    clip: Function | None = None

    def step(self, own: relax.Expr, states: States) -> States:
        """[h'] from x and [h]."""
        value = self.gates.plus(own, self.recurrent(states[0]))
        return [self.sigma(value if self.clip is None else self.clip(value))]


# ---- over time ---------------------------------------------------------------------------------------------------


def over_time(
    node: Emitter,
    cell: Cell,
    inputs: relax.Expr,
    states: Sequence[relax.Expr],
    *,
    backwards: bool = False,
    lengths: relax.Expr | None = None,
    together: bool = False,
    alone: bool = False,
    keep: bool = True,
) -> tuple[relax.Expr | None, States]:
    """A cell over a whole sequence: (its hidden states (steps, batch, hidden), its last states).

    inputs:    X·W + b of all steps, (steps, batch, gates · hidden)
    states:    the initial ones
    backwards: from the last step to the first
    lengths:   (batch,), from 0 to steps: beyond its end a sequence's states stay as they are, and its outputs are zero.
               Going backwards, it begins with its own last step
    together:  as in ONNX Runtime, where it matters because the hidden states of a round have a scale in common: going
               backwards, all sequences begin in the same round, otherwise a short one waits for the longer ones; and
               the hidden state that the next round gets is zero beyond a sequence's end
    alone:     as in PyTorch's packed sequences, where it matters for the same reason: the cell gets zero for the hidden
               states of sequences that have ended or wait
    keep:      whether the hidden states of all steps are wanted; None is returned otherwise
    """
    steps, emit = shape_of(inputs)[0], node.emit
    zero = constant(np.zeros((), str(inputs.ty.dtype)))
    sequences, states, turned = [inputs], list(states), False
    if lengths is not None:
        sequences.append(emit(valid_steps(emit, lengths, steps)))
        turned = together and backwards
        states += states[:1] if together else []  # the last hidden state, beside the one that becomes zero
    if turned and lengths is not None:
        sequences[0], backwards = _reversed(emit, inputs, lengths), False

    def body(states: States, slices: States) -> tuple[States, States]:
        own, *mask = slices
        if not mask:
            new = cell.step(own, states)
            return new, new[:1] if keep else []
        before = states[:-1] if together else states
        shown = [emit(relax.op.where(mask[0], before[0], zero)), *before[1:]] if alone else before
        new = cell.step(own, shown)
        kept = [emit(relax.op.where(mask[0], now, before)) for now, before in zip(new, states, strict=False)]
        output = emit(relax.op.where(mask[0], new[0], zero))
        if together:
            kept = [output, *kept[1:], emit(relax.op.where(mask[0], new[0], states[-1]))]
        return kept, [output] if keep else []

    flags = [backwards] * len(sequences)
    finals, outputs = loop(node, body, states, sequences, steps, backwards_in=flags, backwards_out=[backwards] * keep)
    if together and lengths is not None:
        finals = [finals[-1], *finals[1:-1]]
    if turned and lengths is not None:
        outputs = [_reversed(emit, output, lengths) for output in outputs]
    return (outputs[0] if keep else None), finals


def _steps(lengths: relax.Expr, steps: int) -> relax.Expr:
    """0, 1, … of shape (steps, 1, 1), in the dtype of the lengths."""
    return constant(np.arange(steps).astype(str(lengths.ty.dtype)).reshape(steps, 1, 1))


def valid_steps(emit: Function, lengths: relax.Expr, steps: int) -> relax.Expr:
    """Whether step t belongs to sequence n, (steps, batch, 1)."""
    return relax.op.less(_steps(lengths, steps), compound.reshape(lengths, (1, shape_of(lengths)[0], 1), emit))


def _reversed(emit: Function, value: relax.Expr, lengths: relax.Expr) -> relax.Expr:
    """Each sequence of (steps, batch, size) in reverse up to its own end, as it is beyond."""
    steps, batch, _ = shape_of(value)
    last = emit(relax.op.subtract(compound.reshape(lengths, (1, batch, 1), emit), constant(np.int32(1))))
    mirrored = emit(relax.op.subtract(last, _steps(lengths, steps)))
    places = emit(relax.op.where(emit(valid_steps(emit, lengths, steps)), mirrored, _steps(lengths, steps)))
    return emit(relax.op.gather_elements(value, emit(relax.op.broadcast_to(places, shape_of(value))), 0))


def part_of(emit: Function, value: relax.Expr, index: int) -> relax.Expr:
    """value[index] along the first axis."""
    shape = shape_of(value)
    if shape[0] != 1:
        value = emit(relax.op.strided_slice(value, [0], [index], [index + 1]))
    return compound.reshape(value, shape[1:], emit)


def stacked(emit: Function, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
    """The parts along a new axis; of one alone, only its shape changes."""
    if len(parts) > 1:
        return emit(relax.op.stack(list(parts), axis=axis))
    shape = list(shape_of(parts[0]))
    return compound.reshape(parts[0], [*shape[:axis], 1, *shape[axis:]], emit)
