"""SignalWindow, SignalFftAutoScale, SignalRfft, SignalIrfft and SignalEnergy: TensorFlow Lite Micro's spectra of sound.

The integers are those of its library `signal`, whose transforms are KISS FFT's: a complex transform of half the length
in steps of four and two points, before each of which the numbers are divided, so that sums stay within the dtype.
Lengths are powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ..node import Node
from ..registry import converter
from .padding import pad_constant
from .shape import check_elements
from .terms import Term, joined


def signal_input(node: Node, index: int, dtype: str, rank: int | None = None) -> Term:
    """An input of such an operator. Raises ModelFormatError when it has another dtype, no elements or another number of
    dimensions, by default at least one."""
    shape = node.shape(index)
    fits = len(shape) == rank if rank is not None else bool(shape)
    if node.dtype(index) != dtype or not fits or 0 in shape:
        raise node.malformed(f"input {index} is {node.dtype(index)} of shape {shape}, not {dtype}")
    return Term(node, node.input(index))


def option(node: Node, name: str, low: int, high: int) -> int:
    """An option that is an integer within bounds. Raises ModelFormatError."""
    value = node.custom_number(node.custom_map(), name, int)
    if not low <= value <= high:
        raise node.malformed(f"its option {name} is {value}, not within {low} … {high}")
    return value


def bit_length(value: Term) -> Term:
    """The number of bits of integers in 0 … 2³² − 1, which have int64."""
    powers = value.number(1 << np.arange(32, dtype=np.int64))
    return (value.reshape(*value.shape, 1) >= powers).to("int64").sum(len(value.shape))


@converter("SignalWindow", max_version=1)
def convert_window(node: Node) -> relax.Expr:
    """saturate(x · weight >> shift), the weights over and over along x."""
    data, weights = signal_input(node, 0, "int16"), signal_input(node, 1, "int16", 1)
    shape = data.shape
    if shape[-1] % weights.shape[0]:
        raise node.malformed(f"a window of {weights.shape[0]} over data of shape {shape}")
    rows = data.reshape(int(np.prod(shape)) // weights.shape[0], weights.shape[0])
    product = rows.to("int32") * weights.to("int32")
    return (product >> option(node, "shift", 0, 31)).saturated("int16").reshape(*shape).expr


@converter("SignalFftAutoScale", max_version=1)
def convert_fft_auto_scale(node: Node) -> list[relax.Expr]:
    """x << bits, and bits: as many as the largest magnitude leaves of 15.

    Micro's search for the magnitude has 16 bits, where that of −32768 is −32768: it begins anew behind the last of
    them. From there, values that rise below zero, each above the one before it, count only where they stop.
    """
    data = signal_input(node, 0, "int16", 1).to("int64")
    count = data.shape[0]
    indices = data.number(np.arange(count))
    lowest = data.equals(-32768)
    last = lowest.where(indices, -1).largest(0)  # −1: there is none
    before = joined([data.part(0, 1), data.part(0, count - 1)])
    counts = (last < 0) | (indices > last) & ((data >= 0) | (data <= before))
    first = counts.where(indices, count).smallest(0)
    largest = (indices >= first).where(data.at_least(-data), 0).largest(0)
    # where none counts, the search ends below zero, which has all 32 bits; Micro says so of zero, too
    bits = (largest > 0).where(-bit_length(largest) + 15, 0).at_least(0)
    return [(data << bits).to("int16").expr, bits.to("int32").expr]


@converter("SignalEnergy", max_version=1)
def convert_energy(node: Node) -> relax.Expr:
    """re² + im² for bins start_index … end_index − 1, as uint32, and 0 for the others, which Micro does not write."""
    data = signal_input(node, 0, "int16", 1)
    bins = data.shape[0] // 2
    end = option(node, "end_index", 0, bins)
    start = option(node, "start_index", 0, end)
    parts = data.part(2 * start, 2 * end).to("int64").reshape(end - start, 2)
    energy = (parts * parts).sum(1).to("uint32").expr
    shape = node.output_tensor().shape
    if len(shape) != 1 or shape[0] < end:
        raise node.malformed(f"energies of {end} bins in a result of shape {shape}")
    return pad_constant(node, energy, [(start, shape[0] - end)], 0)


# ---- transforms --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Complex:
    real: Term
    imaginary: Term

    def __add__(self, other: _Complex) -> _Complex:
        return _Complex(self.real + other.real, self.imaginary + other.imaginary)

    def __sub__(self, other: _Complex) -> _Complex:
        return _Complex(self.real - other.real, self.imaginary - other.imaginary)

    def turned(self) -> _Complex:
        """−i times this."""
        return _Complex(self.imaginary, -self.real)

    def conjugate(self) -> _Complex:
        return _Complex(self.real, -self.imaginary)

    def part(self, start: int, stop: int, axis: int = -1) -> _Complex:
        return _Complex(self.real.part(start, stop, axis), self.imaginary.part(start, stop, axis))

    def taken(self, places: np.ndarray, axis: int) -> _Complex:
        return _Complex(self.real.taken(places, axis), self.imaginary.taken(places, axis))

    def reshape(self, *shape: int) -> _Complex:
        return _Complex(self.real.reshape(*shape), self.imaginary.reshape(*shape))


def _joined(parts: Sequence[_Complex], axis: int) -> _Complex:
    return _Complex(joined([part.real for part in parts], axis), joined([part.imaginary for part in parts], axis))


class _Arithmetic:
    """Floats, which need no divisions on the way."""

    dtype = wide = "float32"

    def stored(self, value: _Complex) -> _Complex:
        """What is left of sums, which are computed in `wide`."""
        return value

    def divided(self, value: _Complex, divisor: int) -> _Complex:
        """Smaller numbers, so that the sums of so many have room."""
        return value

    def halved(self, value: Term) -> Term:
        return value * 0.5

    def factors(self, phases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Real and imaginary parts of e^(i·phase)."""
        return np.cos(phases), np.sin(phases)

    def rounded(self, product: Term) -> Term:
        return product

    def times(self, value: _Complex, phases: np.ndarray) -> _Complex:
        """The product with e^(i·phase)."""
        real, imaginary = self.factors(phases)
        return _Complex(
            self.rounded(value.real * real - value.imaginary * imaginary),
            self.rounded(value.real * imaginary + value.imaginary * real),
        )


class _FixedPoint(_Arithmetic):
    """Numbers between −1 and 1: integers with a sign, all of whose other bits are after the binary point."""

    def __init__(self, dtype: str, wide: str) -> None:
        self.dtype, self.wide = dtype, wide
        self.one = int(np.iinfo(dtype).max)
        self.bits = self.one.bit_length()

    def stored(self, value: _Complex) -> _Complex:
        return _Complex(value.real.wrapped(self.dtype), value.imaginary.wrapped(self.dtype))

    def divided(self, value: _Complex, divisor: int) -> _Complex:
        part = self.one // divisor
        return _Complex(self.rounded(value.real * part), self.rounded(value.imaginary * part))

    def halved(self, value: Term) -> Term:
        return value >> 1

    def factors(self, phases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        real, imaginary = (np.floor(0.5 + self.one * part(phases)).astype(np.int64) for part in (np.cos, np.sin))
        return real, imaginary

    def rounded(self, product: Term) -> Term:
        return ((product + (1 << self.bits - 1)) >> self.bits).wrapped(self.dtype)


_ARITHMETIC = {
    "int16": _FixedPoint("int16", "int32"),
    "int32": _FixedPoint("int32", "int64"),
    "float32": _Arithmetic(),
}


def _transform(rules: _Arithmetic, data: _Complex, inverse: bool) -> _Complex:
    """The complex transform over the last of two dimensions, divided by its length."""
    rows, length = data.real.shape
    steps = _steps(length)
    data = data.taken(_order(steps), 1)
    sign = 1 if inverse else -1
    done = 1  # the length of the transforms that are ready
    for step in reversed(steps):
        blocks = data.reshape(rows, length // (done * step), step, done)
        lanes = [rules.divided(blocks.part(lane, lane + 1, 2), step) for lane in range(step)]
        turns = np.arange(done) * (length // (done * step))
        for factor in range(1, step):
            lanes[factor] = rules.times(lanes[factor], sign * 2 * np.pi * (factor * turns) / length)
        data = rules.stored(_joined(_butterfly(lanes, inverse), 2))
        done *= step
    return data.reshape(rows, length)


def _butterfly(lanes: Sequence[_Complex], inverse: bool) -> list[_Complex]:
    if len(lanes) == 2:
        return [lanes[0] + lanes[1], lanes[0] - lanes[1]]
    even, odd = lanes[0] + lanes[2], lanes[1] + lanes[3]
    difference, turned = lanes[0] - lanes[2], (lanes[1] - lanes[3]).turned()
    ends = [difference + turned, difference - turned]
    first, third = reversed(ends) if inverse else ends
    return [even + odd, first, even - odd, third]


def _steps(length: int) -> list[int]:
    """The factors of a power of two, fours before a two."""
    fours, two = divmod(length.bit_length() - 1, 2)
    return [4] * fours + [2] * two


def _order(steps: Sequence[int]) -> np.ndarray:
    """Where the first step of the transform, which is the last one of `steps`, finds its numbers."""
    if not steps:
        return np.zeros(1, np.int64)
    inner = _order(steps[1:])
    return np.concatenate([inner * steps[0] + lane for lane in range(steps[0])])


def _half_phases(length: int, inverse: bool) -> np.ndarray:
    """Of the factors that make a transform of `length` complex numbers one of twice as many real ones."""
    phases = -np.pi * (np.arange(1, length // 2 + 1) / length + 0.5)
    return -phases if inverse else phases


def _transform_rules(node: Node) -> tuple[_Arithmetic, int]:
    length = option(node, "fft_length", 4, 1 << 20)
    if length & (length - 1):
        raise node.unsupported(f"a transform of length {length}, which is no power of two")
    rules = _ARITHMETIC.get(node.dtype())
    if rules is None:
        raise node.unsupported(f"a transform of {node.dtype()}; there are those of {', '.join(_ARITHMETIC)}")
    check_elements(node, (length,), "folded")
    return rules, length


@converter("SignalRfft", max_version=1)
def convert_rfft(node: Node) -> relax.Expr:
    """Σ x[n] exp(−2πi k n / length) / length for k ≤ length / 2 over the last dimension, padded with zeros: real and
    imaginary parts in turns."""
    rules, length = _transform_rules(node)
    *lead, size = signal_input(node, 0, rules.dtype).shape
    if size > length:
        raise node.malformed(f"{size} samples in a transform of {length}")
    rows, half = int(np.prod(lead, dtype=np.int64)), length // 2
    data = Term(node, pad_constant(node, node.input(0), [(0, 0)] * len(lead) + [(0, length - size)], 0))
    pairs = data.to(rules.wide).reshape(rows, half, 2)
    numbers = _Complex(pairs.part(0, 1).reshape(rows, half), pairs.part(1, 2).reshape(rows, half))
    spectrum = _transform(rules, numbers, inverse=False)
    ends = rules.divided(spectrum.part(0, 1), 2)
    outer = [_Complex(end, end - end) for end in (ends.real + ends.imaginary, ends.real - ends.imaginary)]
    low, high = _halves(rules, spectrum, half)
    even, odd = rules.stored(low + high), rules.times(rules.stored(low - high), _half_phases(half, False))
    sides = (
        _Complex(rules.halved(part.real), rules.halved(part.imaginary))
        for part in (even + odd, (even - odd).conjugate())
    )
    result = rules.stored(_joined([outer[0], _mirrored(*sides), outer[1]], 1))
    return _interleaved(result).to(rules.dtype).reshape(*lead, length + 2).expr


def _halves(rules: _Arithmetic, spectrum: _Complex, half: int) -> tuple[_Complex, _Complex]:
    """The numbers at 1 … half / 2 and the conjugates of those at half − 1 … half / 2, both divided by 2."""
    places = np.arange(1, half // 2 + 1)
    low, high = spectrum.taken(places, 1), rules.stored(spectrum.taken(half - places, 1).conjugate())
    return rules.divided(low, 2), rules.divided(high, 2)


def _mirrored(up: _Complex, down: _Complex) -> _Complex:
    """Numbers 1 … half − 1 of those that come in pairs: KISS FFT stores the second of the middle one's."""
    count = up.real.shape[1]
    if count == 1:
        return down
    return _joined([up.part(0, count - 1), down.taken(np.arange(count)[::-1], 1)], 1)


def _interleaved(numbers: _Complex) -> Term:
    rows, count = numbers.real.shape
    pairs = joined([part.reshape(rows, count, 1) for part in (numbers.real, numbers.imaginary)], 2)
    return pairs.reshape(rows, 2 * count)


@converter("SignalIrfft", max_version=1)
def convert_irfft(node: Node) -> relax.Expr:
    """The real numbers of which SignalRfft gives a spectrum, divided by their number."""
    rules, length = _transform_rules(node)
    *lead, size = signal_input(node, 0, rules.dtype).shape
    rows, half = int(np.prod(lead, dtype=np.int64)), length // 2
    if size != length + 2:
        raise node.malformed(f"a spectrum of {size} numbers for {length} samples")
    pairs = Term(node, node.input(0)).to(rules.wide).reshape(rows, half + 1, 2)
    spectrum = _Complex(pairs.part(0, 1).reshape(rows, half + 1), pairs.part(1, 2).reshape(rows, half + 1))
    first, last = spectrum.real.part(0, 1), spectrum.real.part(half, half + 1)
    start = rules.divided(rules.stored(_Complex(first + last, first - last)), 2)
    low, high = _halves(rules, spectrum, half)
    even, odd = rules.stored(low + high), rules.times(rules.stored(low - high), _half_phases(half, True))
    sides = (rules.stored(part) for part in (even + odd, (even - odd).conjugate()))
    numbers = _transform(rules, _joined([start, _mirrored(*sides)], 1), inverse=True)
    result = _interleaved(numbers).to(rules.dtype).reshape(*lead, length)
    return (result / length if rules.dtype == "float32" else result).expr
