"""MediaPipe's custom operators, which LiteRT's Python package cannot run, against loops over single elements."""

import struct

import numpy as np
import pytest
from flatbuffers import flexbuffers

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph

F32 = np.float32


def custom(name, inputs, outputs, options, version=1):
    """A model of one operator, whose options are bytes or a map."""
    graph = Graph()
    content = options if isinstance(options, bytes) else bytes(flexbuffers.Dumps(options))
    operands = [graph.input(one.shape, "float32") for one in inputs]
    results = [graph.output(shape, "float32") for shape in outputs]
    graph.op(name, operands, results, custom=content, version=version)
    return graph.build()


def results(model, *inputs, exact=True):
    """The interpreter's; the engine's must be the same."""
    module = from_tflite(model)
    found = list(Interpreter(module).run(list(inputs)).values())
    for one, other in zip(qnn_ext.build(module, num_threads=1).run(list(inputs)).values(), found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if exact else 1e-5)
    return found


def pool_options(padding, strides, window, activation=0):
    return struct.pack("<6i", padding, strides[1], strides[0], window[1], window[0], activation)


def pooled(x, size, window, strides, first):
    """Each window's first largest element, and its place."""
    largest, places = (np.zeros((x.shape[0], *size, x.shape[3]), F32) for _ in range(2))
    for n, i, j, c in np.ndindex(largest.shape):
        best, at = np.finfo(F32).min, 0
        for y in range(window[0]):
            for z in range(window[1]):
                row, column = i * strides[0] - first[0] + y, j * strides[1] - first[1] + z
                inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                if inside and x[n, row, column, c] > best:
                    best, at = x[n, row, column, c], y * window[1] + z
        largest[n, i, j, c], places[n, i, j, c] = best, F32(at) + F32(0.1)
    return largest, places


@pytest.mark.parametrize(
    "padding,window,strides,size,first",
    [
        (2, (2, 2), (2, 2), (3, 4), (0, 0)),
        (1, (2, 2), (2, 2), (4, 4), (0, 0)),
        (1, (3, 2), (2, 1), (4, 8), (1, 0)),
        (2, (3, 3), (1, 2), (5, 3), (0, 0)),
    ],
)
def test_pooling_with_places(padding, window, strides, size, first, rng):
    x = rng.integers(-3, 4, (2, 7, 8, 3)).astype(F32)
    x[0, 0, 0] = -np.inf
    model = custom("MaxPoolingWithArgmax2D", [x], [(2, *size, 3)] * 2, pool_options(padding, strides, window))
    for found, wanted in zip(results(model, x), pooled(x, size, window, strides, first), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_activation_of_pooling(rng):
    x = rng.normal(scale=5, size=(1, 4, 4, 2)).astype(F32)
    model = custom("MaxPoolingWithArgmax2D", [x], [(1, 2, 2, 2)] * 2, pool_options(2, (2, 2), (2, 2), activation=3))
    largest, places = results(model, x)
    wanted = pooled(x, (2, 2), (2, 2), (2, 2), (0, 0))
    np.testing.assert_array_equal(largest, np.clip(wanted[0], 0, 6))
    np.testing.assert_array_equal(places, wanted[1])


@pytest.mark.parametrize("window", [(2, 2), (3, 1)])
def test_unpooling(window, rng):
    x, count = rng.normal(size=(2, 3, 4, 5)).astype(F32), window[0] * window[1]
    places = (rng.integers(0, count, x.shape) + 0.1).astype(F32)
    shape = (2, 3 * window[0], 4 * window[1], 5)
    wanted = np.zeros(shape, F32)
    for n, i, j, c in np.ndindex(x.shape):
        y, z = divmod(int(places[n, i, j, c]), window[1])
        wanted[n, i * window[0] + y, j * window[1] + z, c] = x[n, i, j, c]
    (found,) = results(custom("MaxUnpooling2D", [x, places], [shape], pool_options(1, window, window)), x, places)
    np.testing.assert_array_equal(found, wanted)


def matrix(*numbers):
    return np.array([*numbers[:2], 0, numbers[2], *numbers[3:5], 0, numbers[5], 0, 0, 1, 0, 0, 0, 0, 1], F32).reshape(
        1, 4, 4
    )


MATRICES = {
    "inside": matrix(1.3, 0.2, 0.7, -0.1, 0.9, 1.1),
    "beyond": matrix(2.5, -1.5, 3, 1.5, 2.5, -4),
    "corners": matrix(8 / 6, 0, 1 / 6, 0, 7 / 5, 0.2),  # from the first element to the last
}


def region(x, transform, rows, columns):
    """Bilinear interpolation between elements; nothing outside of them."""
    m, (_, height, width, channels) = transform.reshape(4, 4).astype(np.float64), x.shape
    offset = [F32(m[row, 3] + (m[row, 0] * 0.5 + m[row, 1] * 0.5 - 0.5)) for row in (0, 1)]
    result = np.zeros((1, rows, columns, channels), F32)
    for i, j in np.ndindex(rows, columns):
        x0, y0 = (F32(F32(m[row, 0]) * F32(j) + F32(m[row, 1]) * F32(i)) + offset[row] for row in (0, 1))
        if not (0 <= x0 <= width - 1 and 0 <= y0 <= height - 1):
            continue
        left, top = int(x0), int(y0)
        right, below = min(left + 1, width - 1), min(top + 1, height - 1)
        part, depth = float(x0 - F32(left)), float(y0 - F32(top))
        upper, lower = ((1 - part) * x[0, row, left] + part * x[0, row, right] for row in (top, below))
        result[0, i, j] = (1 - depth) * upper + depth * lower
    return result


@pytest.mark.parametrize("name", MATRICES)
def test_regions(name, rng):
    x = rng.normal(size=(1, 7, 8, 3)).astype(F32)
    transform = MATRICES[name]
    options = {"output_height": 5, "output_width": 6}
    model = custom("TransformTensorBilinear", [x, transform], [(1, 5, 6, 3)], options, version=2)
    wanted = region(x, transform, 5, 6)
    (found,) = results(model, x, transform, exact=False)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert np.any(wanted) and (name != "beyond" or np.any(wanted == 0))


@pytest.mark.parametrize("dims", [2, 3])
def test_landmarks(dims, rng):
    points, transform = rng.normal(size=(1, 9, dims)).astype(F32), MATRICES["inside"]
    model = custom("TransformLandmarks", [points, transform], [points.shape], {}, version=2)
    wanted = points.astype(np.float64)
    wanted[..., :2] = points[..., :2] @ transform[0, :2, :2].T + transform[0, :2, 3]
    (found,) = results(model, points, transform, exact=False)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", [0.0, 1.2])
@pytest.mark.parametrize("subset", [[0, 4, 2, 7], [1, 3, 8]])
def test_the_matrix_of_landmarks(target, subset, rng):
    points = rng.uniform(0, 192, (1, 9, 3)).astype(F32)
    options = {
        **{"subset_idxs": subset, "left_rotation_idx": 5, "right_rotation_idx": 2, "scale_x": 1.5, "scale_y": 1.25},
        **{"target_rotation_radians": target, "output_width": 48, "output_height": 32},
    }
    model = custom("Landmarks2TransformMatrix", [points], [(1, 4, 4)], options, version=2)
    flat = points[0, :, :2].astype(np.float64)
    dx, dy = flat[2] - flat[5]
    angle = target - np.arctan2(dy, dx)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = flat[subset] @ rotation.T
    low, high = turned.min(0), turned.max(0)
    center = (low + high) / 2 @ rotation  # the inverse rotation
    linear = rotation.T * ((high - low) * [1.5, 1.25] / [48, 32])
    wanted = np.eye(4)
    wanted[:2, :2], wanted[:2, 3] = linear, center - linear @ [24, 16]
    (found,) = results(model, points, exact=False)
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-4)


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,shapes,outputs,options,version,error,text",
    [
        ("MaxPoolingWithArgmax2D", [(1, 4, 4, 1)], 2, b"123", 1, ModelFormatError, "3 bytes of options"),
        (
            "MaxPoolingWithArgmax2D",
            [(1, 4, 4, 1)],
            2,
            pool_options(3, (2, 2), (2, 2)),
            1,
            ModelFormatError,
            "padding 3",
        ),
        ("MaxPoolingWithArgmax2D", [(1, 1, 4, 1)], 2, pool_options(2, (2, 2), (2, 2)), 1, ModelFormatError, "not fit"),
        (
            "MaxPoolingWithArgmax2D",
            [(1, 99, 99, 1)],
            2,
            pool_options(1, (1, 1), (20, 20)),
            1,
            UnsupportedOperatorError,
            "at most 256",
        ),
        (
            "MaxUnpooling2D",
            [(1, 2, 2, 1)] * 2,
            1,
            pool_options(1, (1, 1), (2, 2)),
            1,
            UnsupportedOperatorError,
            "both must be equal",
        ),
        ("TransformTensorBilinear", [(1, 4, 4, 1), (1, 4, 4)], 1, {}, 2, ModelFormatError, "output_height is missing"),
        (
            "TransformTensorBilinear",
            [(1, 4, 4, 1), (1, 4, 4)],
            1,
            {},
            1,
            UnsupportedOperatorError,
            "version 1; supported: 2",
        ),
        ("TransformLandmarks", [(1, 4, 3), (1, 3, 4)], 1, {}, 2, ModelFormatError, "a matrix of shape"),
        ("Landmarks2TransformMatrix", [(1, 4, 3)], 1, b"", 2, ModelFormatError, "flexbuffer"),
    ],
)
def test_refusals(name, shapes, outputs, options, version, error, text):
    model = custom(name, [np.zeros(shape, F32) for shape in shapes], [()] * outputs, options, version)
    with pytest.raises(error, match=rf"{name} #0 .*{text}"):
        from_tflite(model)
