"""Images of sizes that a model computes from data, and loops that collect results: ONNX Runtime's results."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, UnsupportedOperatorError
from tests.cases.loops import loops_of

from .graphs import model, node, onnx, value
from .test_data_dependent import F32, I64, run_ort


def check(proto, *feeds, build=True, exact=True, largest=None):
    """Interpreter, and perhaps engine, against ONNX Runtime; returns the module."""
    module = qnn_ext.from_onnx(proto, largest=largest)
    runners = [qnn_ext.Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])]
    for feed in feeds:
        wanted = run_ort(proto, feed)
        for runner in runners:
            for found, array in zip(runner.run(feed).values(), wanted, strict=True):
                assert (found.shape, found.dtype) == (array.shape, array.dtype)
                if exact:
                    np.testing.assert_array_equal(found, array)
                else:
                    np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-6)
    return module


def limited(name, most):
    """An integer of one element that the model limits."""
    return node("Clip", [name, "low", f"most_{name}"], [f"{name}_c"]), {f"most_{name}": I64(most), "low": I64(1)}


# ---- Resize ------------------------------------------------------------------------------------------------------


def resized(shape=(1, 2, 5, 7), limit=True, tail=(), output="y", constants=None, **attributes):
    """A Resize of an image to (h, w), which are inputs."""
    rows, most_rows = limited("h", 12)
    columns, most_columns = limited("w", 15)
    names = ["h_c", "w_c"] if limit else ["h", "w"]
    nodes = [
        *([rows, columns] if limit else []),
        *(node("Reshape", [name, "one"], [f"{name}_1"]) for name in names),
        node("Concat", ["lead", *(f"{name}_1" for name in names)], ["size"], axis=0),
        node("Resize", ["x", "", "", "size"], ["y"], "resize", **attributes),
        *tail,
    ]
    inputs = [value("x", shape), value("h", (), I64), value("w", (), I64)]
    given = {**most_rows, **most_columns, "one": I64([1]), "lead": I64(shape[:-2]), **(constants or {})}
    return model(nodes, inputs, [value(output, None)], given)


SIZES = [(12, 15), (1, 1), (5, 7), (3, 14), (11, 2), (10, 7)]


def feeds_of(rng, shape=(1, 2, 5, 7), sizes=SIZES):
    return [{"x": rng.standard_normal(shape).astype(F32), "h": np.array(h), "w": np.array(w)} for h, w in sizes]


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_to_a_computed_size(mode, coordinates, rng):
    proto = resized(mode=mode, coordinate_transformation_mode=coordinates)
    check(proto, *feeds_of(rng), exact=mode == "linear")


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_pixels_of_a_computed_size(nearest, rng):
    check(resized(mode="nearest", nearest_mode=nearest), *feeds_of(rng))


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 7)])
def test_interpolation_of_images_without_channels(shape, rng):
    check(resized(shape, mode="linear"), *feeds_of(rng, shape), build=False)


def test_a_size_that_largest_limits(rng):
    proto = resized(limit=False, mode="linear")
    check(proto, *feeds_of(rng, sizes=[(4, 9), (9, 3)]), build=False, largest={"h": 9, "w": 9})
    with pytest.raises(UnsupportedOperatorError, match=r"Resize 'resize'.*computes \('h'\).*largest=\{'h': n\}"):
        qnn_ext.from_onnx(proto)
    with pytest.raises(UnsupportedOperatorError, match=r"largest=\{'w': n\}"):
        qnn_ext.from_onnx(proto, largest={"h": 9})


def test_scales_of_an_image_of_unknown_size(rng):
    """The first rows, as many as an input says, twice and 0.6 times as large."""
    clip, constants = limited("h", 6)
    nodes = [
        clip,
        node("Reshape", ["h_c", "two"], ["end"]),
        node("Slice", ["x", "zero", "end", "two"], ["part"]),
        node("Resize", ["part", "", "scales"], ["y"], mode="linear", coordinate_transformation_mode="asymmetric"),
        node("Resize", ["part", "", "smaller"], ["z"], mode="nearest", coordinate_transformation_mode="asymmetric"),
    ]
    constants |= {"two": I64([2]), "zero": I64([0]), "scales": F32([1, 1, 2, 1]), "smaller": F32([1, 1, 0.6, 1])}
    nodes[1] = node("Reshape", ["h_c", "one"], ["end"])
    constants |= {"one": I64([1])}
    proto = model(
        nodes, [value("x", (1, 2, 6, 5)), value("h", (), I64)], [value("y", None), value("z", None)], constants
    )
    feeds = [{"x": rng.standard_normal((1, 2, 6, 5)).astype(F32), "h": np.array(h)} for h in (2, 3, 6)]
    check(proto, *feeds)


@pytest.mark.parametrize("attributes", [{"mode": "linear", "antialias": 1}, {"mode": "cubic", "exclude_outside": 1}])
def test_refusal_of_a_resize(attributes):
    with pytest.raises(UnsupportedOperatorError, match=r"antialias|exclude_outside"):
        qnn_ext.from_onnx(resized(**attributes))


# ---- what follows ------------------------------------------------------------------------------------------------


def test_the_largest_pixel_of_an_image_of_computed_size(rng):
    """As keypoints of regions: the position in a flattened image."""
    tail = [
        node("Reshape", ["y", "flat"], ["line"]),
        node("ArgMax", ["line"], ["place"], axis=1, keepdims=0),
        node("Shape", ["y"], ["shape"]),
        node("Gather", ["shape", "three"], ["width"]),
        node("Mod", ["place", "width"], ["column"]),
        node("Sub", ["place", "column"], ["start"]),
        node("Div", ["start", "width"], ["row"]),
        node("Concat", ["row", "column"], ["both"], axis=0),
        node("Cast", ["both"], ["found"], to=1),
    ]
    constants = {"flat": I64([2, -1]), "three": I64(3)}
    check(resized(mode="nearest", tail=tail, output="found", constants=constants), *feeds_of(rng))


def test_flattened_images_of_computed_size(rng):
    tail = [node("Reshape", ["y", "flat"], ["line"])]
    check(resized(mode="nearest", tail=tail, output="line", constants={"flat": I64([2, -1])}), *feeds_of(rng))
    tail = [node("Reshape", ["y", "flat"], ["line"])]
    check(resized(mode="nearest", tail=tail, output="line", constants={"flat": I64([-1])}), *feeds_of(rng))


def test_tensors_joined_along_another_axis_are_checked(rng):
    """A tensor of unknown width joined with one of 4 columns: its width must be 4."""
    tail = [node("Concat", ["y", "rows"], ["z"], axis=2)]
    rows = rng.standard_normal((1, 2, 1, 4)).astype(F32)
    proto = resized(mode="nearest", tail=tail, output="z", constants={"rows": rows})
    check(proto, *feeds_of(rng, sizes=[(3, 4), (12, 4)]))
    module = qnn_ext.from_onnx(proto)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for wrong in (3, 5):
            with pytest.raises(InputError, match=r"less the length 4 of what it is joined with"):
                runner.run(feeds_of(rng, sizes=[(3, wrong)])[0])


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand"])
def test_a_tensor_of_a_computed_shape(operator):
    clip, constants = limited("n", 5)
    make = node("ConstantOfShape", ["shape"], ["y"]) if operator == "ConstantOfShape" else None
    nodes = [
        clip,
        node("Reshape", ["n_c", "one"], ["n_1"]),
        node("Concat", ["two", "n_1"], ["shape"], axis=0),
        make or node("Expand", ["column", "shape"], ["y"]),
    ]
    constants |= {"one": I64([1]), "two": I64([2]), "column": F32([[1], [2]])}
    proto = model(nodes, [value("n", (), I64)], [value("y", None)], constants)
    check(proto, *({"n": np.array(n)} for n in (1, 3, 5)))
    proto.graph.node[1].input[0] = "n"
    with pytest.raises(UnsupportedOperatorError, match=r"computes \('n'\).*largest=\{'n': n\}"):
        qnn_ext.from_onnx(proto)


# ---- bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps,most",
    [
        (["Clip", "Ceil"], 7),
        (["Clip", "Double", "Floor"], 13),
        (["Clip", "Half", "Round"], 3),
        (["Clip", "Split", "Less1"], 6),
        (["Relu", "Clip", "Negate", "Plus9"], 9),
    ],
)
def test_the_largest_size_follows_from_floats(steps, most):
    """A length computed from coordinates within an image; the result's largest size is as small as can be known."""
    how = {
        "Clip": ("Clip", ["zero", "six"]), "Double": ("Mul", ["two"]), "Half": ("Div", ["two"]), "Ceil": ("Ceil", []),
        "Floor": ("Floor", []), "Round": ("Round", []), "Relu": ("Relu", []), "Negate": ("Neg", []),
        "Plus9": ("Add", ["nine"]), "Less1": ("Sub", ["one"]),
    }  # fmt: skip
    nodes, last = [], "x"
    for index, step in enumerate(steps):
        if step == "Split":
            nodes.append(node("Split", [last], ["unread", f"v{index}"], axis=0, num_outputs=2))
        else:
            operator, others = how[step]
            nodes.append(node(operator, [last, *others], [f"v{index}"]))
        last = f"v{index}"
    nodes += [
        node("ReduceMax", [last], ["top"], keepdims=0),
        node("Cast", ["top"], ["whole"], to=7),
        node("Reshape", ["whole", "line"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["y"]),
    ]
    constants = {
        "zero": F32(0), "six": F32(6.5), "two": F32(2), "nine": F32(9), "one": F32(0.5), "line": I64([1]),
    }  # fmt: skip
    proto = model(nodes, [value("x", (4,))], [value("y", None)], constants)
    module = check(proto, *({"x": F32(x)} for x in ([1, 2, 3, 4], [0, 0, 0, 9])), build=False)
    assert module.outputs[0].shape == (most,)


# ---- loops that collect ------------------------------------------------------------------------------------------


def collecting(nodes, initial, state=F32, axis=0, constants=None, output="y", cast=False):
    """A loop over the rows of x that are above 0, each of which appends `new` to a state."""
    before = [node("Cast", ["s"], ["s1"], to=1)] if cast else []
    body = onnx.helper.make_graph(
        [
            node("Gather", ["rows", "i"], ["row"], axis=0),
            *nodes,
            *before,
            node("Concat", ["s1" if cast else "s", "new"], ["t"], "append", axis=axis),
            node("Identity", ["c"], ["more"]),
        ],
        "body",
        [value("i", (), I64), value("c", (), np.bool_), value("s", None, state)],
        [value("more", (), np.bool_), value("t", None, state)],
    )
    outer = [
        node("ReduceMax", ["x", "last"], ["best"], keepdims=0),
        node("Greater", ["best", "zero"], ["chosen"]),
        node("Compress", ["x", "chosen"], ["rows"], axis=0),
        node("Shape", ["rows"], ["shape"]),
        node("Gather", ["shape", "first"], ["count"]),
        node("Loop", ["count", "", "start"], [output], "collect", body=body),
    ]
    given = {"last": I64([1]), "zero": F32(0), "first": I64(0), "start": initial, **(constants or {})}
    return model(outer, [value("x", (5, 6))], [value(output, None, state)], given)


def rows_of(rng):
    """Of which all, none and some are chosen."""
    x = rng.uniform(0.1, 4, (5, 6)).astype(F32)
    return [{"x": one} for one in (x, -x, np.where(np.arange(5)[:, None] % 2, x, -x))]


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("axis,length", [(0, 0), (0, 2), (1, 0), (1, 3)])
def test_a_loop_that_collects_rows(axis, length, cast, rng):
    """As torchvision's lists of masks: one loop, whatever the number of rounds."""
    shape = (length, 6) if axis == 0 else (6, length)
    upright = node("Reshape", ["row", "shape0"], ["new"])
    proto = collecting(
        [upright], np.ones(shape, F32), axis=axis, constants={"shape0": I64([1, 6] if axis == 0 else [6, 1])}, cast=cast
    )
    module = check(proto, *rows_of(rng))
    assert len(loops_of(module)) == 1


def test_a_loop_that_collects_more_than_its_state_is_refused(rng):
    """The rounds read the state: it is none that they only append to."""
    proto = collecting([node("ReduceSum", ["s", "first1"], ["new"], keepdims=1)], np.ones((1, 6), F32),
                       constants={"first1": I64([0])})  # fmt: skip
    with pytest.raises(qnn_ext.QnnError, match="state 0 of the loop changes"):
        qnn_ext.from_onnx(proto)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_masks_pasted_into_an_image(mode, rng):
    """As Mask R-CNN: each row is a box and a mask of 2 × 1 pixels, which is resized to the box in an image."""
    index = {"x0": 0, "y0": 1, "x1": 2, "y1": 3}
    nodes = [
        node("Clip", ["row", "none", "edge"], ["inside"]),
        node("Cast", ["inside"], ["whole"], to=7),
        *(node("Gather", ["whole", f"at_{name}"], [name]) for name in index),
        node("Sub", ["x1", "x0"], ["w0"]),
        node("Max", ["w0", "one"], ["w"]),
        node("Sub", ["y1", "y0"], ["h0"]),
        node("Max", ["h0", "one"], ["h"]),
        node("Reshape", ["h", "line"], ["h1"]),
        node("Reshape", ["w", "line"], ["w1"]),
        node("Concat", ["ones", "h1", "w1"], ["size"], axis=0),
        node("Slice", ["row", "four", "six", "axis0"], ["pixels"]),
        node("Reshape", ["pixels", "image"], ["mask"]),
        node("Resize", ["mask", "", "", "size"], ["large"], mode=mode),
        node("Squeeze", ["large", "lead"], ["flat"]),
        node("Reshape", ["y0", "line"], ["top"]),
        node("Concat", ["top", "w1"], ["above"], axis=0),
        node("ConstantOfShape", ["above"], ["zeros_above"]),
        node("Concat", ["zeros_above", "flat"], ["lower"], axis=0),
        node("Add", ["y0", "h"], ["bottom"]),
        node("Sub", ["nine", "bottom"], ["left_below"]),
        node("Max", ["left_below", "nil"], ["positive"]),
        node("Reshape", ["positive", "line"], ["below1"]),
        node("Concat", ["below1", "w1"], ["below"], axis=0),
        node("ConstantOfShape", ["below"], ["zeros_below"]),
        node("Concat", ["lower", "zeros_below"], ["tall0"], axis=0),
        node("Slice", ["tall0", "axis0", "end"], ["tall"]),
        node("ReduceSum", ["tall", "axis1"], ["summed"], keepdims=1),
        node("Transpose", ["summed"], ["new"], perm=[1, 0]),
    ]
    constants = {
        "none": F32(0), "edge": F32(8), "one": I64(1), "line": I64([1]), "ones": I64([1, 1]), "four": I64([4]),
        "six": I64([6]), "axis0": I64([0]), "axis1": I64([1]), "image": I64([1, 1, 2, 1]), "lead": I64([0, 1]),
        "nine": I64(9), "nil": I64(0), "end": I64([9]), **{f"at_{name}": I64(place) for name, place in index.items()},
    }  # fmt: skip
    proto = collecting(nodes, np.zeros((0, 9), F32), constants=constants)
    boxes = [[1, 2, 5, 4, 1, 2], [0, 0, 8, 8, 3, -1], [7, 7, 9, 9, 1, 1], [4, 1, 4, 1, 2, 5], [3, 0, 8, 5, -2, 4]]
    x = F32(boxes) + F32(0.25)
    check(proto, {"x": x}, {"x": -np.abs(x)}, {"x": np.where(np.arange(5)[:, None] < 3, x, -np.abs(x))}, exact=False)


# ---- writing into rows of unknown number ---------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_writing_into_rows_of_unknown_number(depth, reduction, rng):
    """Places in the chosen rows that count from their end; as many as there are large elements in the first column."""
    nodes = [
        node("ReduceMax", ["x", "last"], ["best"], keepdims=0),
        node("Greater", ["best", "zero"], ["chosen"]),
        node("Compress", ["x", "chosen"], ["rows"], axis=0),
        node("Slice", ["rows", "start", "stop", "last"], ["column"]),
        node("Greater", ["column", "two"], ["large"]),
        node("NonZero", ["large"], ["where"]),
        node("Transpose", ["where"], ["places"], perm=[1, 0]),
        node("Slice", ["places", "start", "depth", "last"], ["some"]),
        node("Shape", ["rows"], ["shape"]),
        node("Slice", ["shape", "start", "depth"], ["counts"]),
        node("Sub", ["some", "counts"], ["from_end"]),
        node("Slice", ["places", "start", "stop", "last"], ["whole_rows"]),
        node("GatherND", ["rows", "whole_rows"], ["found"]),
        node("Mul", ["found", "two"], ["doubled"]),
        node("Slice", ["doubled", "start", "stop", "last"], ["firsts"]),
        node("Squeeze", ["firsts", "last"], ["elements"]),
        node("Identity", ["doubled" if depth == 1 else "elements"], ["new"]),
        node("ScatterND", ["rows", "from_end", "new"], ["y"], reduction=reduction),
    ]
    constants = {
        "last": I64([1]), "zero": F32(0), "two": F32(2), "start": I64([0]), "stop": I64([1]), "depth": I64([depth]),
    }  # fmt: skip
    proto = model(nodes, [value("x", (5, 6))], [value("y", None)], constants)
    check(proto, *rows_of(rng))
