"""SignalFilterBank and what follows it, in TensorFlow Lite Micro's integers: SignalFilterBankSquareRoot,
SignalFilterBankSpectralSubtraction, SignalPCAN, SignalFilterBankLog. Energies are uint32, computed in int64."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..node import Node
from ..registry import converter
from .shape import check_elements
from .signal_frames import Kept
from .signal_spectrum import bit_length, option, signal_input

_LOW = (1 << 32) - 1
_MOST_BITS = 30  # of factors, so that two products with uint32 are added in 63 bits
_GAINS = (
    125  # in the table of SignalPCAN: 3 for the smallest numbers, then 4 for each number of bits, of which 3 are used
)
_SNR_BITS, _RESULT_BITS = 12, 6

# 2¹⁶ · (log2(1 + i / 128) − i / 128)
_LOG_ERRORS = np.array([
    0, 224, 442, 654, 861, 1063, 1259, 1450, 1636, 1817, 1992, 2163, 2329, 2490, 2646, 2797, 2944, 3087, 3224, 3358,
    3487, 3611, 3732, 3848, 3960, 4068, 4172, 4272, 4368, 4460, 4549, 4633, 4714, 4791, 4864, 4934, 5001, 5063, 5123,
    5178, 5231, 5280, 5326, 5368, 5408, 5444, 5477, 5507, 5533, 5557, 5578, 5595, 5610, 5622, 5631, 5637, 5640, 5641,
    5638, 5633, 5626, 5615, 5602, 5586, 5568, 5547, 5524, 5498, 5470, 5439, 5406, 5370, 5332, 5291, 5249, 5203, 5156,
    5106, 5054, 5000, 4944, 4885, 4825, 4762, 4697, 4630, 4561, 4490, 4416, 4341, 4264, 4184, 4103, 4020, 3935, 3848,
    3759, 3668, 3575, 3481, 3384, 3286, 3186, 3084, 2981, 2875, 2768, 2659, 2549, 2437, 2323, 2207, 2090, 1971, 1851,
    1729, 1605, 1480, 1353, 1224, 1094, 963, 830, 695, 559, 421, 282, 142, 0,
], np.int64)  # fmt: skip
_LN_2 = 45426  # in 16 bits after the binary point


@converter("SignalFilterBank", max_version=1)
def convert_filter_bank(node: Node) -> relax.Expr:
    """For each channel, Σ x · weight over its own bins and Σ x · unweight over those of the channel before it, as
    uint64. Bins and weights of channel 0 only serve channel 1; it has no result."""
    data, channels = signal_input(node, 0, "uint32", 1).to("int64"), option(node, "num_channels", 1, 1 << 15)
    tables = [node.constant(index).astype(np.int64).reshape(-1) for index in range(1, 6)]
    weights, unweights, starts, places, widths = tables
    sizes = [len(table) for table in tables]
    if sizes[0] != sizes[1] or min(sizes[2:]) <= channels:
        raise node.malformed(f"tables of {sizes} numbers for {channels} channels")
    starts, places, widths = (table[: channels + 1] for table in (starts, places, widths))
    if min(map(np.min, (starts, places, widths))) < 0 or (starts + widths).max() > data.shape[0]:
        raise node.malformed(f"channels of bins beyond the {data.shape[0]} that there are")
    if (places + widths).max() > sizes[0]:
        raise node.malformed(f"channels of weights beyond the {sizes[0]} that there are")
    if min(weights.min(initial=0), unweights.min(initial=0)) < 0:
        raise node.unsupported("weights below zero, whose sums are not those of unsigned integers")
    longest = int((widths[1:] + widths[:-1]).max())
    bins = np.zeros(check_elements(node, (channels, max(longest, 1)), "folded"), np.int64)
    factors = np.zeros_like(bins)
    for channel in range(channels):
        end = 0
        for row, table in ((channel + 1, weights), (channel, unweights)):
            width, part = widths[row], slice(end, end + widths[row])
            bins[channel, part] = starts[row] + np.arange(width)
            factors[channel, part] = table[places[row] : places[row] + width]
            end += width
    return (data.taken(bins) * factors).sum(1).to("uint64").expr


@converter("SignalFilterBankSquareRoot", max_version=1)
def convert_square_root(node: Node) -> relax.Expr:
    """round(√x) >> bits, as uint32: rounded up if x exceeds the square by more than the root, unless that has all bits
    that Micro computes with, 16 for numbers of 32 bits."""
    data, bits = signal_input(node, 0, "uint64", 1).to("int64"), signal_input(node, 1, "int32", 0).to("int64")
    root = data.to("float64").sqrt().to("int64")
    root = root - (root * root > data).to("int64")
    root = root + ((root + 1) * (root + 1) <= data).to("int64")
    most = (data <= _LOW).where(data.number(0xFFFF), _LOW)
    root = root + ((data - root * root > root) & (root < most)).to("int64")
    return (root >> bits).to("uint32").expr


@converter("SignalFilterBankSpectralSubtraction", max_version=1)
def convert_spectral_subtraction(node: Node) -> list[relax.Expr]:
    """What exceeds a running average, which is the second result and a state, but at least a share of x."""
    data, channels = signal_input(node, 0, "uint32", 1).to("int64"), option(node, "num_channels", 1, 1 << 20)
    if data.shape != (channels,):
        raise node.malformed(f"{data.shape} energies for {channels} channels")
    shift = option(node, "spectral_subtraction_bits", 0, 62)
    up = option(node, "smoothing_bits", 0, 31)
    odd = np.arange(channels) % 2 == 1
    share, rest = (
        np.where(odd, *(option(node, prefix + name, 0, (1 << _MOST_BITS) - 1) for prefix in ("alternate_", "")))
        for name in ("smoothing", "one_minus_smoothing")
    )
    kept = Kept(node, "noise", np.zeros(channels, np.uint32))
    scaled = (data << up) & _LOW
    noise = ((scaled * share + kept.value.to("int64") * rest) >> shift) & _LOW
    estimate = noise.at_most(scaled)
    if option(node, "clamping", 0, 1):
        noise = estimate
    floor = ((data * option(node, "min_signal_remaining", 0, (1 << _MOST_BITS) - 1)) >> shift) & _LOW
    result = ((scaled - estimate) >> up).at_least(floor)
    kept.assign(noise)
    return [result.to("uint32").expr, noise.to("uint32").expr]


@converter("SignalPCAN", max_version=1)
def convert_pcan(node: Node) -> relax.Expr:
    """shrink(x · gain(noise) >> snr_shift) as uint32, where shrink(s) is s² / 4 below 2 and s − 1 from there on, and
    the gain interpolates a table over the logarithm of the noise."""
    data, noise = (signal_input(node, index, "uint32", 1).to("int64") for index in (0, 1))
    table = signal_input(node, 2, "int16", 1).to("int64")
    if data.shape != noise.shape or table.shape[0] < _GAINS:
        raise node.malformed(f"{data.shape} energies, {noise.shape} of noise and a table of {table.shape[0]} gains")
    bits = bit_length(noise)
    row = ((bits << 2) - 6).at_least(0)
    part = (noise << (-bits + 11).at_least(0)) >> (bits - 11).at_least(0)
    part = part & 0x3FF
    slope = ((table.taken(row + 2) * part) >> 5) + (table.taken(row + 1) << 5)
    curve = ((slope * part + (1 << 14)) >> 15) + table.taken(row)
    gain = (noise <= 2).where(table.taken(noise.at_most(2)), curve).wrapped("int16") & _LOW
    snr = (data * gain >> option(node, "snr_shift", 0, 32)) & _LOW
    small = snr * snr >> 2 + 2 * _SNR_BITS - _RESULT_BITS
    large = (snr >> _SNR_BITS - _RESULT_BITS) - (1 << _RESULT_BITS)
    return (snr < 2 << _SNR_BITS).where(small, large).to("uint32").expr


@converter("SignalFilterBankLog", max_version=1)
def convert_log(node: Node) -> relax.Expr:
    """output_scale · ln(x << input_correction_bits) as int16, at most 32767, and 0 for ln(0)."""
    data = (signal_input(node, 0, "uint32", 1).to("int64") << option(node, "input_correction_bits", 0, 31)) & _LOW
    scale = option(node, "output_scale", -(1 << 31), _LOW) & _LOW
    whole = (bit_length(data) - 1).at_least(0)
    beyond = data - (data.number(1) << whole)
    part = (beyond << (-whole + 16).at_least(0)) >> (whole - 16).at_least(0)
    segment = (part >> 9) & 127
    errors = data.number(_LOG_ERRORS)
    left, right = errors.taken(segment), errors.taken(segment + 1)
    part = part + left + ((right - left) * (part - (segment << 9)) >> 16)
    natural = (((whole << 16) + part) * _LN_2 + (1 << 15)) >> 16
    scaled = (((natural * scale) + (1 << 15)) & _LOW) >> 16
    return (data > 1).where(scaled.at_most(np.iinfo(np.int16).max), 0).to("int16").expr
