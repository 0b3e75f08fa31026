"""Where a framework's bits may differ from ours, and how far: each rule once, with its reason.

A generator attaches a rule to the operator that it applies to, and the judge checks that every element is within the
rule's bound. For anything computed from such a result no bound is known (`DERIVED`); most graphs therefore continue
with other tensors (`Builder.cut`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Rule:
    """A reason and a bound; without a bound the output is compared with the interpreter only.

    steps:    how far integers may differ
    relative: to ours, and absolute: by which floats may differ; infinities and NaN must agree
    ends:     elements equal to our minimum or maximum may be anything, as they were clipped
    negated:  anything is allowed where no element has the same sign as ours
    finite:   infinite elements of ours may be the greatest finite number
    nan:      elements that are NaN in ours may be anything
    rounding: the interpreter, run with errors of rounding and approximation, must be able to reach the result
              (tests/fuzz/rounding.py); results computed from it are judged likewise
    """

    reason: str
    steps: int = 0
    relative: float = 0.0
    absolute: float = 0.0
    ends: bool = False
    negated: bool = False
    finite: bool = False
    nan: bool = False
    rounding: bool = False

    @property
    def bounded(self) -> bool:
        rounds = self.steps or self.relative or self.absolute or self.rounding
        return bool(rounds or self.ends or self.negated or self.finite or self.nan)

    def allows(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """Which elements may differ this way, not considering `rounding`."""
        if not self.bounded:
            return np.ones(ours.shape, bool)
        one, two = ours.astype(np.float64), theirs.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            reach = self.steps if ours.dtype.kind in "iu" else self.absolute + self.relative * np.abs(one)
            allowed = np.abs(one - two) <= np.where(np.isfinite(one), reach, 0)
        if self.ends and ours.size:
            allowed |= np.isin(ours, [*_range(ours.dtype), ours.min(), ours.max()])
        if self.negated:
            allowed |= not (np.sign(one) * np.sign(two) > 0).any()
        if self.finite:
            allowed |= np.isinf(one) & (two == np.sign(one) * np.finfo(ours.dtype).max)
        if self.nan:
            allowed |= np.isnan(one)
        return np.asarray(allowed)

    def after_quantize(self, scale: float) -> Rule:
        """The rule for the 8-bit integers that floats under this rule are quantized to."""
        if not (self.relative or self.absolute):
            return DERIVED
        return Rule(self.reason, steps=min(256, 1 + int(self.absolute / scale + 255 * self.relative)))

    def after_dequantize(self, scale: float) -> Rule:
        """The rule for the floats that integers under this rule represent."""
        return replace(self, steps=0, absolute=self.steps * scale * (1 + 1e-6)) if self.steps else self


def _range(dtype: np.dtype) -> Sequence[float]:
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else ()


def bounded(rule: Rule, absolute: float, relative: float = 0.0) -> Rule:
    """A rule about floats with a bound known in advance."""
    return replace(rule, rounding=False, absolute=absolute, relative=relative)


def inherited(rules: Sequence[Rule | None], own: Rule | None) -> Rule | None:
    """The rule for a result, from those of its operands and the operator's own."""
    found = [rule for rule in rules if rule is not None]
    if not found:
        return own
    every = found if own is None else [*found, own]
    return found[0] if all(rule.rounding for rule in every) else DERIVED


DERIVED = Rule("computed from a result to which another rule applies")
HOSTILE = Rule("the framework's instructions decide what NaN, infinities and floats out of the integer's range become")
FLOAT_SUMS = Rule("float sums: every kernel adds in its own order, and rounds after each addition", rounding=True)
UNBOUNDED_SUMS = replace(FLOAT_SUMS, rounding=False)  # where the framework gives bounds
APPROXIMATION = Rule(
    "float functions (exp, sin, tanh, …) are approximated, and the last bits differ between libraries", rounding=True
)
FLOAT_STEPS = Rule(
    "float32 formulas of several steps: the compiler chooses which operations it contracts to multiply-adds",
    rounding=True,
)
NARROWED = Rule("converting a float out of the integer's range is undefined in C; ours saturates", ends=True)
UNDEFINED_BOUND = Rule(
    "a clip's bound divided by the scale does not fit into int32, and its conversion is undefined in C"
)
SHIFTED_OUT = Rule(
    "a multiplier out of the range of LiteRT's fixed point (2³¹ and more, in comparisons 1 and more, in divisions very "
    "small ones): LiteRT shifts by more bits than there are, or by a negative number, which is undefined "
    "in C; ours saturates or becomes 0"
)
NAN_POSITION = Rule(
    "NaN has no order: if there is one, what ARG_MAX and TOPK_V2 find depends on the order of comparisons"
)
FUSED = Rule("ONNX Runtime optimizes it into one QLinear operator, which adds the zero point before rounding; so do we")
LARGEST = Rule(
    "without a fused activation LiteRT clips floats to ±FLT_MAX, so that no result is infinite; ours may be",
    finite=True,
)
NAN_LOST = Rule(
    "maxima and minima of floats: LiteRT's kernels ignore NaN or not, by the order of comparisons; ours keep it. "
    "Pooling clips to ±FLT_MAX besides",
    nan=True,
    finite=True,
)
LOGISTIC_TAIL = replace(APPROXIMATION, absolute=2e-8)  # LiteRT's reference kernel takes exp(x) below −9: e⁻¹⁸ off
LARGEST_SUM = replace(FLOAT_SUMS, finite=True)  # LARGEST, where sums differ too
PYTORCH_TAIL = Rule(
    "PyTorch's scalar loops for the elements left over from whole vectors contract products and sums differently "
    "from its vector loops, and add the zero point before rounding",
    steps=1,
)
QUANTIZED_FLOATS = Rule("float sums and approximations, quantized: off by one step near midpoints", steps=1)
DEPTHWISE_PAIRS = Rule(
    "fbgemm's depthwise kernels (3×3 padded by 1, 5×5 by 2, channels in eights) add the products of taps 2i and 2i + 1 "
    "in 16 bits with saturation (vpmaddubsw), which is why PyTorch's observers reduce the range on x86; ours are exact"
)
OVERFLOW = Rule("partial sums of floats may overflow float32 in one order of additions and not in another")
UNWRITTEN = Rule(
    "PyTorch's group_norm and instance_norm of channels-last tensors write as many samples as a group has elements; "
    "the others hold whatever was in memory"
)
LAST_CHANNEL = Rule("LiteRT's reference kernel of LOCAL_RESPONSE_NORMALIZATION omits the last channel from its windows")
INFINITE_SCALE = Rule(
    "a range that MXNet finds at run time to be smaller than 127.5 / FLT_MAX has an infinite scale, by which 0 becomes "
    "NaN; ours turn that into 0, oneDNN into the end of the range",
    absolute=float(127.5 / np.finfo(np.float32).max),
)
PADDED_ROWS = Rule(
    "in uint8 convolutions without groups that have a residual added, MXNet 1.9.1 (oneDNN) computes the rows whose "
    "windows lie within the padding incorrectly, for example without the bias"
)
LOWEST_INT32 = Rule(
    "without calibration MXNet's requantize computes |−2³¹|, to which a sum saturates, as −2³¹: the signs of all "
    "results are wrong; ours are right",
    negated=True,
)
SIGN_OF_ZERO = "−0.0 equals 0.0: IEEE 754 does not say which of them a minimum, maximum or rounding function returns"
ROUNDED = Rule(
    "float32 rounding: PyTorch sums floats where ours sums integers, so a result may fall on the other side of a "
    "midpoint; each value lies within bounds derived for it (pt2e/enclosure.py)"
)
