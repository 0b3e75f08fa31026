"""Damaged files: every mutation of a good file is either read as something consistent or refused with an error of ours.

Deterministic. QNN_FUZZ_CASES raises the number of cases per file, e.g. to 50000 for a long run by hand.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.frontends.tflite.reader import Model, Tensor, read_model

from .schema_models import conv_sketch

CASES = int(os.environ.get("QNN_FUZZ_CASES", "1500"))
SECONDS_PER_CASE = 2.0  # a hang guard: a case takes about a millisecond, more on a busy machine
BUNDLED = Path(__file__).parents[3] / "qnn_ext" / "data"
REAL = Path(__file__).parents[4] / "shared" / "models" / "tflite"


def flip_bits(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    for _ in range(rng.integers(1, 9)):
        data[rng.integers(reach)] ^= 1 << int(rng.integers(8))


def random_bytes(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    for _ in range(rng.integers(1, 9)):
        data[rng.integers(reach)] = rng.integers(256)


def fill_range(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    start = int(rng.integers(reach))
    end = min(len(data), start + int(rng.integers(1, 65)))
    data[start:end] = bytes([rng.choice([0, 255])]) * (end - start)


def overwrite_integers(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    """The positions that hold offsets and lengths, with values that are near misses or extremes."""
    for _ in range(rng.integers(1, 5)):
        start = 4 * int(rng.integers(reach // 4))
        old = int.from_bytes(data[start : start + 4], "little")
        extremes = [0, 1, old + 4, old - 4, len(data) - start, len(data), 2**31 - 1, 2**31, 2**32 - 1, 2**30 + 1]
        value = int(rng.choice(extremes)) if rng.random() < 0.7 else int(rng.integers(2**32))
        data[start : start + 4] = (value % 2**32).to_bytes(4, "little")


def truncate(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    del data[int(rng.integers(len(data))) :]


def move_range(data: bytearray, rng: np.random.Generator, reach: int) -> None:
    """Copy one stretch over another: tables that are valid, in the wrong place."""
    length = 4 * int(rng.integers(1, 17))
    source, target = (4 * int(rng.integers(max(1, (reach - length) // 4))) for _ in range(2))
    data[target : target + length] = data[source : source + length]


MUTATIONS = (flip_bits, random_bytes, fill_range, overwrite_integers, overwrite_integers, truncate, move_range)


def damaged(good: bytes, cases: int, reach: int) -> Iterator[tuple[str, bytes]]:
    """`cases` variants of `good`; all but truncation change the first `reach` bytes, where a file keeps its tables."""
    for case in range(cases):
        rng = np.random.default_rng(case)
        mutation = MUTATIONS[case % len(MUTATIONS)]
        data = bytearray(good)
        mutation(data, rng, reach)
        if rng.random() < 0.9:
            data[4:8] = b"TFL3"  # otherwise short files are mostly refused for their identifier
        yield f"{mutation.__name__} {case}", bytes(data)


def check_consistent(model: Model) -> None:
    """What the reader promises to the converters."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            check_tensor(tensor)
        ready = {t.index for t in graph.tensors if t.data is not None or t.is_variable} | set(graph.inputs)
        for operator in graph.operators:
            assert all(i == -1 or i in ready for i in operator.inputs)
            assert not ready & set(operator.outputs)
            assert isinstance(operator.label(), str)
            ready |= set(operator.outputs)
        assert set(graph.outputs) <= ready


def check_tensor(tensor: Tensor) -> None:
    assert all(dim >= 0 for dim in tensor.shape) and len(tensor.shape) == len(tensor.shape_signature)
    if tensor.data is None:
        assert math.prod(tensor.shape) < 2**31
    else:
        assert tensor.data.shape == tensor.shape and tensor.data.dtype == tensor.dtype
        assert not tensor.data.flags.writeable
    if tensor.qparams is not None and tensor.qparams.per_channel:
        assert tensor.qparams.scale.size == tensor.shape[tensor.qparams.axis]


def survive(good: bytes, cases: int, reach: int) -> tuple[int, int]:
    """Read every damaged variant; how many were read and how many refused."""
    read = refused = 0
    for name, data in damaged(good, cases, reach):
        start = time.perf_counter()
        try:
            check_consistent(read_model(data))
            read += 1
        except QnnError:
            refused += 1
        except Exception as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error}")
        assert time.perf_counter() - start < SECONDS_PER_CASE, name
    return read, refused


def test_synthetic_model() -> None:
    good = conv_sketch().bytes()
    read, refused = survive(good, 2 * CASES, len(good))
    assert read and refused  # the mutations are neither harmless nor all caught at the door


@pytest.mark.parametrize("name", ["digits_lstm_int8", "digits_cnn_uint8"])
def test_bundled_models(name: str) -> None:
    good = (BUNDLED / f"{name}.tflite").read_bytes()
    read, refused = survive(good, CASES // 4, len(good))
    assert read and refused


@pytest.mark.parametrize("name", ["micro_speech_quantized", "keras_lstm_mnist_ptq"])
def test_real_models(name: str, models: Path) -> None:
    good = (models / "tflite" / f"{name}.tflite").read_bytes()
    read, refused = survive(good, CASES // 2, len(good))
    assert read and refused


def test_every_truncation() -> None:
    good = conv_sketch().bytes()
    for length in range(0, len(good), 3):
        with pytest.raises(QnnError):
            read_model(good[:length])


def test_every_byte_at_its_extremes() -> None:
    good = conv_sketch().bytes()
    for position in range(len(good)):
        for value in (0x00, 0x80, 0xFF):
            data = good[:position] + bytes([value]) + good[position + 1 :]
            with contextlib.suppress(QnnError):
                check_consistent(read_model(data))
