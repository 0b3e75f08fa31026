"""Damaged models: whatever is cut off or flipped, the import ends with a module or with one of our errors."""

import os
import random
import time

import numpy as np
import pytest

from qnn_ext import QnnError
from qnn_ext.frontends.onnx import from_onnx

from .graphs import model, node, value
from .test_dynamic_batch import cnn, transformer

SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))  # for each kind of damage


def integer_model():
    """QLinear operators, branches and shape arithmetic in one model."""
    rng = np.random.default_rng(1)
    branch = model([node("Identity", ["c"], ["t"])], [], [value("t", None)]).graph
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "s", "zw", "s", "z"], ["c"], pads=[1, 1, 1, 1]),
        node("If", ["yes"], ["t"], then_branch=branch, else_branch=branch),
        node("Reshape", ["t", "target"], ["r"]),
        node("QLinearMatMul", ["r", "s", "z", "m", "s", "zw", "s", "z"], ["p"]),
        node("Pad", ["p", "pads"], ["e"]),
        node("DequantizeLinear", ["e", "s", "z"], ["d"]),
        node("Clip", ["d", "low", "high"], ["y"]),
    ]
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(120),
        "zw": np.int8(0),
        "w": rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8),
        "m": rng.integers(-127, 127, (64, 5)).astype(np.int8),
        "yes": np.asarray(True),
        "target": np.asarray([1, -1, 64]),
        "pads": np.asarray([0, 0, 1, 0, 0, 2]),
        "low": np.float32(-1),
        "high": np.float32(1),
    }
    return model(nodes, [value("x", (1, 3, 8, 8))], [value("y", None)], constants)


MODELS = {"cnn": cnn, "transformer": transformer, "integers": integer_model}


def attempts(content: bytes, damage, seed: int):
    """Damaged copies until the time is up; each must import or raise a QnnError."""
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    outcomes = {"module": 0, "error": 0}
    while time.monotonic() < end:
        damaged = damage(bytearray(content), chance)
        try:
            from_onnx(bytes(damaged))
            outcomes["module"] += 1
        except QnnError as error:
            assert str(error)
            outcomes["error"] += 1
    return outcomes


def flip_bits(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(1, 4)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def overwrite(content: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(content))
    for index in range(start, min(start + chance.randint(1, 8), len(content))):
        content[index] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return content


def cut_out(content: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(content))
    del content[start : start + chance.randint(1, 16)]
    return content


@pytest.mark.parametrize("name", MODELS)
def test_truncations(name):
    content = MODELS[name]().SerializeToString()
    from_onnx(content)  # whole, it is fine
    for length in range(0, len(content), max(1, len(content) // 100)):
        with pytest.raises(QnnError):
            from_onnx(content[:length])


@pytest.mark.parametrize("damage", [flip_bits, overwrite, cut_out])
@pytest.mark.parametrize("name", MODELS)
def test_damage(name, damage):
    outcomes = attempts(MODELS[name]().SerializeToString(), damage, seed=int(os.environ.get("FUZZ_SEED", "7")))
    assert outcomes["error"] > 0
