"""A module's digest changes with everything that the module is, and with nothing else."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

import qnn_ext
from qnn_ext import op
from qnn_ext.compiling.digest import digest_of
from qnn_ext.frontends.loops import loop
from qnn_ext.op.base import constant
from tests.cases.bundled import DATA
from tests.cases.loops import assembled

ONE, TWO = (np.random.default_rng(seed).integers(-128, 128, (8, 8)).astype(np.int8) for seed in (1, 2))


def network(
    weights: tuple[np.ndarray, ...] = (ONE, TWO),
    repeated: np.ndarray = ONE,
    nested: np.ndarray = TWO,
    zero_point: int = 3,
    scale: float = 0.25,
    rounding: str = "TONEAREST_EVEN",
    out_dtype: str = "int8",
    rows: int = 2,
    trips: int = 3,
    add_bias: bool = False,
) -> IRModule:
    """Dense layers, one behind another, then a loop with a layer in its body and one in a loop in that."""

    def layer(a: Any, x: Any, weight: np.ndarray, dtype: str = "int8") -> Any:
        acc = a.emit(op.dense(x, constant(weight), zero_point, 0, 0.5, 0.5))
        if add_bias:
            acc = a.emit(relax.op.add(acc, constant(np.ones((1, 8), np.int32))))
        return a.emit(op.requantize(acc, scale, 0, 40.0, -3, rounding=rounding, out_dtype=dtype))

    def walk(a: Any, x: Any) -> list[Any]:
        def outer(states: list[Any], _slices: list[Any]) -> tuple[list[Any], list[Any]]:
            def inner(states: list[Any], _slices: list[Any]) -> tuple[list[Any], list[Any]]:
                return [layer(a, states[0], nested)], []

            return loop(a, inner, [layer(a, states[0], repeated)], [], 2)[0], []

        for weight in weights:
            x = layer(a, x, weight)
        (result,), _ = loop(a, outer, [x], [], trips)
        return [layer(a, result, ONE, out_dtype)]

    return assembled([("x", (rows, 8), "int8")], walk)


def changed(array: np.ndarray) -> np.ndarray:
    """The array with one bit of one byte changed."""
    other = array.copy()
    other.view(np.uint8)[5, 6] ^= 1
    return other


CHANGES: dict[str, dict[str, Any]] = {
    "one bit of a weight": {"weights": (ONE, changed(TWO))},
    "two weights of one shape exchanged": {"weights": (TWO, ONE)},
    "a weight twice": {"weights": (ONE, ONE)},
    "a weight more": {"weights": (ONE, TWO, TWO)},
    "a weight's dtype": {"weights": (ONE, TWO.view(np.uint8))},
    "one bit in a loop's body": {"repeated": changed(ONE)},
    "one bit in a loop within a loop": {"nested": changed(TWO)},
    "weights of two bodies exchanged": {"repeated": TWO, "nested": ONE},
    "a scalar": {"zero_point": 4},
    "one ulp of a scalar": {"scale": np.float64(np.nextafter(np.float32(0.25), np.float32(1), dtype=np.float32))},
    "a scalar's dtype": {"scale": np.float64(0.25)},
    "a text attribute": {"rounding": "UPWARD"},
    "the result's dtype": {"out_dtype": "uint8"},
    "the input's shape": {"rows": 3},
    "the rounds": {"trips": 4},
    "an operator": {"add_bias": True},
}


def test_equal_modules_have_equal_digests():
    assert digest_of(network()) == digest_of(network())


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    assert digest_of(network(**CHANGES[change])) != digest_of(network())


def test_all_changes_differ():
    assert len({digest_of(network(**change)) for change in CHANGES.values()}) == len(CHANGES)


def returning(*values: np.ndarray) -> IRModule:
    """A module that returns constants."""
    return assembled([("x", (2, 8), "int8")], lambda a, x: [a.emit(relax.op.negative(x)), *map(constant, values)])


def test_shape_dtype_and_bytes_of_constants():
    """The same bytes are other constants in another shape, another dtype, other parts."""
    data = np.arange(16, dtype=np.int8)
    halves = data[:8], data[8:]
    parts = [
        (data,),
        (data.reshape(4, 4),),
        (data.reshape(2, 8),),
        (data.reshape(1, 16),),
        (data.view(np.uint8),),
        (data.view(np.int32),),
        (data.view(np.float32),),
        (data.view(np.float64),),
        (data.view(np.float16),),
        halves,
        halves[::-1],
        (data[:0], data),
        (data, data[:0]),
        (np.float32(0.0),),
        (np.float32(-0.0),),
        (np.float64(0.0),),
        (np.bool_(False),),
    ]
    assert len({digest_of(returning(*values)) for values in parts}) == len(parts)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "int64"])
def test_constants_of_every_dtype(dtype):
    def of(*values: int) -> bytes:
        x = relax.Var("x", relax.TensorType((2,), dtype))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.equal(x, relax.const(np.array(values), dtype))))
        return digest_of(builder.get())

    assert of(0, 1) == of(0, 1) and len({of(0, 1), of(1, 0), of(0, 0), of(1, 1)}) == 4


def test_numbers_as_attributes():
    def of(value: Any) -> bytes:
        x = relax.Var("x", relax.TensorType((2,), "float32"))
        call = relax.Call(tvm.ir.Op.get("relax.nn.relu"), [x], tvm.ir.attrs.make_node("ir.DictAttrs", value=value))
        return digest_of(IRModule({"main": relax.Function([x], call, x.ty)}))

    values = [0.1, math.nextafter(0.1, 1), 0.0, -0.0, math.inf, math.nan, 1, 2**62, 2**62 + 1, "1", (1, 2), (2, 1)]
    assert len({of(value) for value in values}) == len(values)
    assert of(0.1) == of(0.1)


def test_one_constant_read_twice_is_not_two():
    def of(first: Any, second: Any) -> bytes:
        return digest_of(assembled([("x", (8, 8), "int8")], lambda a, x: [a.emit(relax.op.add(x, first)), second]))

    shared = constant(ONE)
    assert of(shared, shared) != of(constant(ONE), constant(ONE)) == of(constant(ONE), constant(ONE))


def test_weights_are_not_written_down():
    """Memory is that of one constant, not of the weights as text."""
    module = returning(*(np.full((1 << 20,), value, np.uint8) for value in range(12)))
    tracemalloc.start()
    try:
        digest_of(module)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_a_file_read_twice():
    for name in ("digits_cnn_int8.tflite", "digits_lstm_int8.tflite"):
        one, two = (qnn_ext.from_tflite(DATA / name).ir for _ in range(2))
        assert digest_of(one) == digest_of(two)
