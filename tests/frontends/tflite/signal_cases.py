"""Models of TensorFlow Lite Micro's operators on sound, what is fed to them, and what Micro answers.

`python -m tests.frontends.tflite.signal_cases` asks Micro again; it needs the package tflite-micro.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flatbuffers import flexbuffers

from tests.conformance.tflite_models.builder import Graph

ANSWERS = Path(__file__).parent / "signal_answers.npz"
INT16, INT32, FLOAT32 = 7, 2, 0  # of the schema's TensorType


@dataclass(frozen=True)
class Case:
    """A model and what one interpreter of it is called with. checked: whether the last output says that the others
    are written; bins: the elements that are."""

    name: str
    model: bytes
    calls: list[list[np.ndarray]]
    outputs: int
    checked: bool = False
    bins: slice | None = None

    def written(self, answer: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What of a call's outputs is defined."""
        if self.checked and not answer[-1]:
            return [answer[-1]]
        return [value if self.bins is None else value[self.bins] for value in answer]


def packed(**options: int | bool) -> bytes:
    """Options of a custom operator."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            (builder.Bool if isinstance(value, bool) else builder.Int)(key, value)
    return bytes(builder.Finish())


def single(operator, inputs, outputs, constants=(), **options) -> bytes:
    """A model of one operator: (shape, dtype) of its inputs and outputs, and constants behind the inputs."""
    graph = Graph()
    tensors = [graph.input(*one) for one in inputs] + [graph.const(one) for one in constants]
    graph.op(operator, tensors, [graph.output(*one) for one in outputs], custom=packed(**options))
    return bytes(graph.build())


class _Random:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def integers(self, dtype, *shape):
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)

    def extremes(self, *shape):
        return self.rng.choice(np.int16([-32768, 32767, -32767, 0, 1, -1]), shape)

    def sizes(self, *shape):
        """uint32 of any number of bits."""
        return self.integers("uint32", *shape) >> self.rng.integers(0, 32, shape, dtype=np.uint32)


def cases() -> Iterator[Case]:
    """All of them."""
    random = _Random()
    yield from _spectra(random)
    yield from _filter_banks(random)
    yield from _streams(random)
    yield _chain(random)


def _spectra(random: _Random) -> Iterator[Case]:
    weights = random.rng.integers(0, 4097, 24).astype(np.int16)
    for shift in (12, 3):
        model = single("SignalWindow", [((2, 48), "int16")], [((2, 48), "int16")], [weights], shift=shift)
        yield Case(f"window {shift}", model, [[random.integers("int16", 2, 48)], [random.extremes(2, 48)]], 1)
    falling = np.int16([-32768, -900, -800, -70, -6, -5, 3])
    for size in (1, 5, 16):
        model = single("SignalFftAutoScale", [((size,), "int16")], [((size,), "int16"), ((), "int32")])
        values = [random.integers("int16", size) >> bits for bits in range(17)]
        values += [random.rng.choice(part, size) for part in (falling, falling[:4], falling[:6]) for _ in range(20)]
        yield Case(f"scale {size}", model, [[value] for value in values], 2)
    for size, length in ((4, 4), (7, 8), (30, 32), (64, 64)):
        for dtype, kind in (("int16", INT16), ("int32", INT32), ("float32", FLOAT32)):

            def some(*shape, dtype=dtype):
                if dtype == "float32":
                    return random.rng.normal(size=shape).astype(dtype)
                return random.integers(dtype, *shape) >> (2 if dtype == "int32" else 0)

            shapes = ((2, size), dtype), ((2, length + 2), dtype), ((2, length), dtype)
            model = single("SignalRfft", [shapes[0]], [shapes[1]], T=kind, fft_length=length)
            more = [[random.extremes(2, size)]] if dtype == "int16" else []
            yield Case(f"rfft {dtype} {length}", model, [[some(2, size)], [some(2, size)], *more], 1)
            model = single("SignalIrfft", [shapes[1]], [shapes[2]], T=kind, fft_length=length)
            more = [[random.extremes(2, length + 2)]] if dtype == "int16" else []
            yield Case(f"irfft {dtype} {length}", model, [[some(2, length + 2)], *more], 1)
    model = single("SignalEnergy", [((34,), "int16")], [((17,), "uint32")], start_index=2, end_index=15)
    yield Case("energy", model, [[random.integers("int16", 34)], [random.extremes(34)]], 1, bins=slice(2, 15))


def _bank(random: _Random, bins: int, channels: int) -> list[np.ndarray]:
    widths = random.rng.integers(0, 5, channels + 1).astype(np.int16)
    places = (np.cumsum(widths) - widths).astype(np.int16)
    starts = np.minimum(places, bins - widths).astype(np.int16)
    weights = random.rng.integers(0, 4097, int(widths.sum())).astype(np.int16)
    return [weights, (4096 - weights).astype(np.int16), starts, places, widths]


SUBTRACTION = {
    "alternate_one_minus_smoothing": 15000,
    "alternate_smoothing": 1384,
    "min_signal_remaining": 819,
    "one_minus_smoothing": 16000,
    "smoothing": 384,
    "smoothing_bits": 10,
    "spectral_subtraction_bits": 14,
}


def _filter_banks(random: _Random) -> Iterator[Case]:
    tables = _bank(random, 30, 6)
    model = single("SignalFilterBank", [((30,), "uint32")], [((6,), "uint64")], tables, num_channels=6)
    yield Case("bank", model, [[random.sizes(30)], [np.full(30, 2**32 - 1, np.uint32)]], 1)
    roots = [65535, 65536, 2**31 - 1, *map(int, random.sizes(40) >> np.uint32(1))]
    near = [root * root + step for root in roots for step in (-1, 0, 1, root - 1, root, root + 1, 2 * root)]
    squares = np.array([0, 2**32 - 1, 2**32, *(value for value in near if value >= 0)], np.uint64)
    shapes = [(squares.shape, "uint64"), ((), "int32")], [(squares.shape, "uint32")]
    model = single("SignalFilterBankSquareRoot", *shapes)
    yield Case("root", model, [[squares, np.int32(bits)] for bits in (0, 3)], 1)
    one = ((8,), "uint32")
    for clamping in (False, True):
        options = {**SUBTRACTION, "num_channels": 8, "clamping": clamping}
        model = single("SignalFilterBankSpectralSubtraction", [one], [one, one], **options)
        yield Case(f"subtraction {clamping}", model, [[random.sizes(8) >> np.uint32(4)] for _ in range(30)], 2)
    one = ((40,), "uint32")
    for shift, gains in ((6, random.rng.integers(0, 20000, 125)), (20, random.rng.integers(-9000, 9000, 125))):
        model = single("SignalPCAN", [one, one], [one], [gains.astype(np.int16)], snr_shift=shift)
        yield Case(f"pcan {shift}", model, [[random.sizes(40), random.sizes(40)] for _ in range(9)], 1)
    for bits, scale in ((3, 1600), (0, 65536), (7, 100), (0, 2**31 - 1)):
        options = {"input_correction_bits": bits, "output_scale": scale}
        model = single("SignalFilterBankLog", [one], [((40,), "int16")], **options)
        small = np.arange(40, dtype=np.uint32)
        yield Case(f"log {bits} {scale}", model, [[small], *([random.sizes(40)] for _ in range(9))], 1)


def _streams(random: _Random) -> Iterator[Case]:
    def some(*shape):
        return [[random.integers("int16", *shape)] for _ in range(8)]

    for size, delay in ((8, 3), (4, 11), (6, 0)):
        model = single("SignalDelay", [((2, size), "int16")], [((2, size), "int16")], delay_length=delay)
        yield Case(f"delay {size} {delay}", model, some(2, size), 1)
    for size, frame, step in ((16, 10, 4), (4, 10, 4), (4, 12, 4), (4, 4, 4), (20, 11, 10)):
        for prefill in (False, True):
            outputs = [((2, size // step, frame), "int16"), ((), "bool")]
            options = {"frame_size": frame, "frame_step": step, "prefill": prefill}
            model = single("SignalFramer", [((2, size), "int16")], outputs, **options)
            yield Case(f"framer {size} {frame} {step} {prefill}", model, some(2, size), 2, checked=True)
    for left, right, step in ((0, 0, 1), (1, 1, 2), (2, 0, 1), (0, 2, 1), (3, 1, 3), (1, 1, 3)):
        outputs = [((3 * (left + right + 1),), "int16"), ((), "bool")]
        options = {"num_channels": 3, "stacker_left_context": left, "stacker_right_context": right}
        model = single("SignalStacker", [((3,), "int16")], outputs, **options, stacker_step=step)
        yield Case(f"stacker {left} {right} {step}", model, some(3), 2, checked=True)
    for frames, size, step in ((1, 8, 3), (4, 8, 3), (3, 6, 6)):
        shapes = (2, frames, size), (2, frames * step)
        model = single("SignalOverlapAdd", *([(shape, "int16")] for shape in shapes), T=INT16, frame_step=step)
        yield Case(f"overlap int16 {frames} {size} {step}", model, some(*shapes[0]), 1)
        model = single("SignalOverlapAdd", *([(shape, "float32")] for shape in shapes), T=FLOAT32, frame_step=step)
        calls = [[random.rng.normal(size=shapes[0]).astype(np.float32)] for _ in range(4)]
        yield Case(f"overlap float32 {frames} {size} {step}", model, calls, 1)


def _chain(random: _Random) -> Case:
    """From sound to logarithms, as in front of keyword spotting networks."""
    graph = Graph()

    def then(operator, tensors, *results, **options):
        outputs = [graph.tensor(*one) for one in results]
        graph.op(operator, tensors, outputs, custom=packed(**options))
        return outputs

    sound = graph.input((1, 60), "int16")
    window = graph.const(np.rint(4096 * np.hanning(60)).astype(np.int16))
    (shaped,) = then("SignalWindow", [sound, window], ((1, 60), "int16"), shift=12)
    line = graph.tensor((60,), "int16")
    graph.op("RESHAPE", [shaped, graph.const(np.int32([60]))], [line])
    scaled, bits = then("SignalFftAutoScale", [line], ((60,), "int16"), ((), "int32"))
    (spectrum,) = then("SignalRfft", [scaled], ((66,), "int16"), T=INT16, fft_length=64)
    (energy,) = then("SignalEnergy", [spectrum], ((33,), "uint32"), start_index=0, end_index=33)
    tables = [graph.const(table) for table in _bank(random, 33, 10)]
    (sums,) = then("SignalFilterBank", [energy, *tables], ((10,), "uint64"), num_channels=10)
    channels = ((10,), "uint32")
    (roots,) = then("SignalFilterBankSquareRoot", [sums, bits], channels)
    options = {**SUBTRACTION, "num_channels": 10, "clamping": False}
    cleaned, noise = then("SignalFilterBankSpectralSubtraction", [roots], channels, channels, **options)
    gains = graph.const(random.rng.integers(0, 20000, 125).astype(np.int16))
    (even,) = then("SignalPCAN", [cleaned, noise, gains], channels, snr_shift=6)
    (logs,) = then("SignalFilterBankLog", [even], ((10,), "int16"), input_correction_bits=3, output_scale=1600)
    graph.op("CAST", [logs], [graph.output((10,), "float32")])
    loud = np.geomspace(3, 30000, 12)
    calls = [[np.clip(random.rng.normal(0, level, (1, 60)), -32768, 32767).astype(np.int16)] for level in loud]
    return Case("chain", bytes(graph.build()), calls, 1)


def _ask() -> None:
    from tflite_micro.python.tflite_micro import runtime

    answers = {}
    for case in cases():
        interpreter = runtime.Interpreter.from_bytes(case.model, arena_size=1 << 20)
        results = []
        for call in case.calls:
            for index, value in enumerate(call):
                interpreter.set_input(value, index)
            interpreter.invoke()
            results.append([np.array(interpreter.get_output(index)) for index in range(case.outputs)])
        for index, values in enumerate(zip(*results, strict=True)):
            answers[f"{case.name}/{index}"] = np.stack(values)
    np.savez_compressed(ANSWERS, **answers)


if __name__ == "__main__":
    _ask()
