"""RFFT2D and the operators on its result: against LiteRT."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QnnError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

READERS = ("REAL", "IMAG", "COMPLEX_ABS")


def transform(shape, lengths, squeezed=None):
    """All readers of a transform, which is first reshaped if `squeezed` gives a shape."""
    graph = Graph()
    result = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    x, spectrum = graph.input(shape, "float32"), graph.tensor(result, "complex64")
    graph.op("RFFT2D", [x, graph.const(lengths, "int32")], [spectrum])
    if squeezed is not None:
        whole, spectrum = spectrum, graph.tensor(squeezed, "complex64")
        graph.op("RESHAPE", [whole, graph.const(squeezed, "int32")], [spectrum])
    for reader in READERS:
        graph.op(reader, [spectrum], [graph.output(squeezed or result, "float32")])
    return graph.build()


def both(model, x):
    (expected,) = invoke(model, [[x]], "builtin", stateful=False)
    return Interpreter(from_tflite(model)).run([x]).values(), expected


def same_bits(found, expected):
    """Also the signs of zeros."""
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        ((3, 1, 512), (1, 512)),
        ((2, 8, 16), (8, 16)),
        ((4, 4), (4, 4)),
        ((1, 2, 3, 1, 256), (1, 256)),
        ((2, 1, 400), (1, 512)),  # padded
        ((2, 5, 19), (4, 16)),  # cut
        ((1, 2), (1, 2)),
    ],
)
def test_equals_litert(rng, shape, lengths):
    x = rng.standard_normal(shape).astype(np.float32)
    for found, expected in zip(*both(transform(shape, lengths), x), strict=True):
        same_bits(found, expected)


def test_compiled(rng):
    x = rng.standard_normal((5, 1, 64)).astype(np.float32)
    module = from_tflite(transform((5, 1, 64), (1, 64)))
    expected = Interpreter(module).run([x]).values()
    for found, wanted in zip(qnn_ext.build(module, num_threads=1)(x), expected, strict=True):
        same_bits(found, wanted)


def test_sums_that_cancel():
    """A tone between whose frequency and the others all is zero: LiteRT adds in another order."""
    x = np.sin(2 * np.pi * 5 / 64 * np.arange(64)).reshape(1, 64).astype(np.float32)
    for found, expected in zip(*both(transform((1, 64), (1, 64)), x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_complex_tensors_are_reshaped(rng):
    x = rng.standard_normal((3, 1, 16)).astype(np.float32)
    for found, expected in zip(*both(transform((3, 1, 16), (1, 16), (3, 9)), x), strict=True):
        same_bits(found, expected)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [((1, 12), "powers of two"), ((0, 16), "powers of two"), ((-4, 16), "powers of two"), ((1, 1), "at least 2"),
     ((1, 1 << 20), "elements"), ((1 << 20, 2), "elements")],
)  # fmt: skip
def test_lengths_that_are_refused(lengths, message):
    graph = Graph()
    x, spectrum = graph.input((2, 16), "float32"), graph.tensor((), "complex64")
    graph.op("RFFT2D", [x, graph.const(lengths, "int32")], [spectrum])
    graph.op("REAL", [spectrum], [graph.output((), "float32")])
    with pytest.raises(QnnError, match=f"RFFT2D #0 .*{message}"):
        from_tflite(graph.build())


@pytest.mark.parametrize("reader", ["ADD", "output"])
def test_other_readers_are_refused(reader):
    graph = Graph()
    x, spectrum = graph.input((2, 16), "float32"), graph.tensor((2, 9), "complex64")
    graph.op("RFFT2D", [x, graph.const((2, 16), "int32")], [spectrum])
    graph.packed.outputs = [spectrum]
    if reader == "ADD":
        graph.packed.outputs = [graph.tensor((2, 9), "complex64")]
        graph.op("ADD", [spectrum, spectrum], graph.packed.outputs)
    with pytest.raises(QnnError, match="tensor 1 't1' is complex"):
        from_tflite(graph.build())


def test_readers_of_real_tensors_are_refused():
    graph = Graph()
    x = graph.input((2, 9), "float32")
    graph.op("REAL", [x], [graph.output((2, 9), "float32")])
    with pytest.raises(QnnError, match=r"REAL #0 .*float32"):
        from_tflite(graph.build())
