"""The factors S of a group's channels that put least noise into the results of the products that read them.

S is what minimizes the expected noise in the results of the products that read x. With x/S in −a … b in steps of
d = (a + b) / 255 and the weights of an output in steps of δ_o = max_i S_i·|w_oi| / 127, that is

    Σ_o v_o Σ_i (S_i·d·w_oi)² / 12 + c_i·w_oi² + (δ_o·x_i / S_i)² / 12

over S = rᵅ / wᵝ, with w the largest weights that read a channel, and r the range that it needs if a : b is given. v_o
says how much the result o matters to the model's outputs (see `importance`): a channel that several products read has
one factor for all of them, and those of a depthwise product have each their own result.
c_i is what clipping adds: of N values, h_i was the largest, and others exceed it by β_i in the mean with a probability
of 1 / N (see `calibrators.extremes`), so that c_i = 2·β_i² / N · exp(−(b·S_i − h_i) / β_i), and the same at the other
end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .channel_values import ChannelValues
from .channels import Weight

_BELOW_ZERO = (0.0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5)  # a / (a + b)
_OF_DATA, _OF_WEIGHTS = (0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5)  # α, β
_LEVELS = 0.25, 4.0, 0.7, 1 / 0.7  # what levels are multiplied by, as long as that helps, in so many rounds at most:
_ROUNDS, _STILL_BETTER = 4, 0.99
_LEAST = 1e-3  # of the largest channel: smaller ones are left alone
_MOST_OUTPUTS = 256  # of a weight


@dataclass(frozen=True)
class Reader:
    """What reads some channels.

    values:  what is known of these; factors: the position of each one's factor in S
    weight:  of a product, None for a multiplication, whose factors are not rounded
    important: of each output of the product, or of each channel that is multiplied, see `importances`
    """

    values: ChannelValues
    factors: np.ndarray
    weight: Weight | None
    important: np.ndarray

    @property
    def squares(self) -> np.ndarray:
        """(channels,) by how much the square of an error of a channel grows in the results."""
        if self.weight is None:
            return np.broadcast_to(self.important, self.factors.shape)
        return self.weight.input_squares(self.important)


def best_scales(readers: Sequence[Reader], fixed: np.ndarray, symmetric: bool = False) -> np.ndarray:
    """The S (factors,) with the least noise in the results of the weights that read these channels.

    fixed: which factors are 1; symmetric: whether the tensors' integers are
    """
    return _Search(readers, fixed, symmetric).best()


@dataclass(frozen=True)
class _Setting:
    """Where S comes from.

    below:  a / (a + b); of_data, of_weights: α, β
    levels: of each reader, what the ranges of its channels are divided by before the largest of all readers are taken:
            a reader whose level is lower decides about more factors
    """

    below: float
    of_data: float
    of_weights: float
    levels: tuple[float, ...]


class _Search:
    """For the best S: first with ranges as they are, and with those of each reader divided by its largest, then with
    one reader's level after the other moved."""

    def __init__(self, readers: Sequence[Reader], fixed: np.ndarray, symmetric: bool) -> None:
        self._readers, self._fixed = readers, fixed
        self._below_zero = (0.5,) if symmetric else _BELOW_ZERO
        self._noises = [_Noise(reader, symmetric) for reader in readers]
        self._needed = [reader.values.needed for reader in readers]
        read = self._largest_of(
            [np.sqrt(r.squares) if r.weight is None else r.weight.input_ranges() for r in readers],
        )
        self._read = np.where(read > 0, read, 1.0)
        self._best: _Setting | None = None
        self._scales = np.ones(len(fixed))
        self._noise = self._noise_of(self._scales)

    def best(self) -> np.ndarray:
        """S"""
        alike = tuple(1.0 for _ in self._readers)
        own = tuple(max(float(end.max(initial=0.0)) for end in ends) or 1.0 for ends in self._needed)
        for levels in (alike, own)[: len(self._readers)]:
            for below, of_data, of_weights in itertools.product(self._below_zero, _OF_DATA, _OF_WEIGHTS):
                self._try(_Setting(below, of_data, of_weights, levels))
        for _ in range(_ROUNDS if len(self._readers) > 1 else 0):
            before = self._noise
            for i, by in itertools.product(range(len(self._readers)), _LEVELS):
                setting = self._best or _Setting(0.5, 1.0, 0.0, own)
                levels = setting.levels
                self._try(replace(setting, levels=(*levels[:i], levels[i] * by, *levels[i + 1 :])))
            if self._noise > _STILL_BETTER * before:
                break
        return self._scales

    def _try(self, setting: _Setting) -> None:
        scales = self._scales_of(setting)
        noise = np.inf if scales is None else self._noise_of(scales)
        if scales is not None and noise < self._noise:
            self._best, self._scales, self._noise = setting, scales, noise

    def _noise_of(self, scales: np.ndarray) -> float:
        return sum(noise.of(scales) for noise in self._noises)

    def _scales_of(self, setting: _Setting) -> np.ndarray | None:
        below_zero, above_zero = (
            self._largest_of([ends[end] / level for ends, level in zip(self._needed, setting.levels, strict=True)])
            for end in range(2)
        )
        if setting.below == 0 and below_zero.any():
            return None
        largest = np.maximum(above_zero / (1 - setting.below), below_zero / setting.below if setting.below else 0.0)
        if largest.max() <= 0:
            return None
        largest = np.maximum(largest, _LEAST * largest.max())
        log = setting.of_data * np.log(largest) - setting.of_weights * np.log(self._read)
        log -= log[self._fixed].max() if self._fixed.any() else log.mean()
        return np.where(self._fixed, 1.0, np.exp(log))

    def _largest_of(self, found: Sequence[np.ndarray]) -> np.ndarray:
        largest = np.zeros(len(self._fixed))
        for reader, array in zip(self._readers, found, strict=True):
            np.maximum.at(largest, reader.factors, array)
        return largest


class _Noise:
    """What rounding adds to the results of one reader, as a function of S."""

    def __init__(self, reader: Reader, symmetric: bool) -> None:
        self._reader, self._symmetric, self._squares = reader, symmetric, reader.squares
        if reader.weight is not None:
            by_group = reader.weight.by_group
            outputs = by_group.shape[1]
            step = -(-outputs // _MOST_OUTPUTS)
            by_group = by_group[:, ::step]
            important = np.broadcast_to(reader.important, reader.weight.outputs).reshape(len(by_group), outputs)
            self._important = important[:, ::step]
            self._largest = np.abs(by_group).max(axis=3)  # (groups, outputs, inputs)
            self._taps = by_group.shape[3] * outputs / by_group.shape[1]

    def of(self, found: np.ndarray) -> float:
        """found: S"""
        values, scales = self._reader.values, found[self._reader.factors]
        low, high = (max(0.0, float((end / scales).max())) for end in values.ends)
        low, high = (max(low, high),) * 2 if self._symmetric else (low, high)
        lost = values.clipped(scales, (low, high))
        of_data = ((np.square(scales * (low + high) / 255) / 12 + lost) * self._squares).sum()
        if self._reader.weight is None:
            return float(of_data)
        steps = (self._largest * scales.reshape(len(self._largest), 1, -1)).max(axis=2) / 127
        squares = (values.square / scales**2).reshape(len(self._largest), -1).sum(axis=1) * self._taps
        return float(of_data + ((np.square(steps) * self._important).sum(axis=1) * squares).sum() / 12)
