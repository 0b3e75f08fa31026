"""What quantization-aware training simulates: bits, scheme, granularity, observers. No PyTorch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import QuantizationError

_CHOICES = {
    "formula": ("google", "cambricon"),
    "weight_scheme": ("symmetric", "affine"),
    "activation_scheme": ("symmetric", "affine"),
    "observer": ("moving_average", "min_max"),
}
_OF_LAYERS = ("weight_bits", "weight_scheme", "per_channel", "activation_bits")


@dataclass(frozen=True)
class QatConfig:
    """How `prepare` quantizes. b is a number of bits, 2 to 8; q = clip(rint(x / scale) + zero_point).

    formula:            "google": scale = max|x| / (2^(b-1) - 1) where symmetric, (max - min) / (2^b - 1) where affine.
                        "cambricon": symmetric, with scale = 2^(floor(log2 max|x|) - (b - 2)), a power of two; products
                        of such tensors are exact in float32, so every runtime gives the same integers
    weight_bits:        of the weights of convolutions and linear layers
    activation_bits:    of the tensors that they and other quantized operators read
    io_bits:            of the network's float inputs and outputs; None: as other activations, and outputs stay float
    weight_scheme:      "symmetric": zero point 0, q from -(2^(b-1) - 1) to 2^(b-1) - 1; "affine": all 2^b values
    activation_scheme:  the same; affine activations are unsigned, 0 to 2^b - 1
    per_channel:        a scale for each output channel of a weight, or one for each layer
    observer:           range of an activation: "moving_average" of the batches' minima and maxima, or "min_max" of all
    averaging_constant: weight of the newest batch in a moving average
    overrides:          layer (its name in the module, or a part of the module that contains it) -> what differs there
                        of weight_bits, weight_scheme, per_channel and activation_bits (of the data it reads; where
                        several read the same tensor, the most); None keeps it in float

    Raises QuantizationError for values that mean nothing.
    """

    formula: str = "google"
    weight_bits: int = 8
    activation_bits: int = 8
    io_bits: int | None = 8
    weight_scheme: str = "symmetric"
    activation_scheme: str = "affine"
    per_channel: bool = True
    observer: str = "moving_average"
    averaging_constant: float = 0.01
    overrides: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise QuantizationError(f"{name}: expected {' or '.join(choices)}, found {getattr(self, name)!r}")
        for name in ("weight_bits", "activation_bits", "io_bits"):
            bits = getattr(self, name)
            if name == "io_bits" and bits is None:
                continue
            if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 8:
                raise QuantizationError(f"{name}: expected 2 to 8 bits, found {bits!r}")
        if self.formula == "cambricon" and "affine" in (self.weight_scheme, self.activation_scheme):
            raise QuantizationError(
                "Cambricon's formula has no zero points: weight_scheme and activation_scheme must be 'symmetric'"
            )
        if not 0 < self.averaging_constant <= 1:
            raise QuantizationError(f"averaging_constant: expected 0 < c <= 1, found {self.averaging_constant!r}")
        for layer, fields in self.overrides.items():
            if fields is not None:
                self._with(layer, fields)

    def for_layer(self, name: str) -> QatConfig | None:
        """The configuration of a layer, by the longest override that names it; None: the layer stays in float."""
        names = [key for key in self.overrides if name == key or name.startswith(f"{key}.")]
        if not names:
            return self
        layer = max(names, key=len)
        fields = self.overrides[layer]
        return None if fields is None else self._with(layer, fields)

    def _with(self, layer: str, fields: Mapping[str, Any]) -> QatConfig:
        unknown = sorted(set(fields) - set(_OF_LAYERS))
        if unknown:
            what = f"{', '.join(unknown)} cannot differ by layer; what can: {', '.join(_OF_LAYERS)}"
            raise QuantizationError(f"overrides of '{layer}': {what}")
        return replace(self, overrides={}, **fields)
