"""Operators whose results have sizes that depend on data, and what follows them: ONNX Runtime's results."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, ShapeError, UnsupportedOperatorError

from .graphs import model, node, onnx, ort, value

F32, I64 = np.float32, np.int64


def run_ort(proto, feed):
    """ONNX Runtime's outputs. The products below have weights so small that it does not saturate on any CPU."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)


def check(proto, *feeds, build=True, largest=None):
    """Interpreter, and perhaps engine, against ONNX Runtime; returns the shapes of the outputs."""
    module = qnn_ext.from_onnx(proto, largest=largest)
    runners = [qnn_ext.Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])]
    shapes = []
    for feed in feeds:
        wanted = run_ort(proto, feed)
        shapes.append([array.shape for array in wanted])
        for runner in runners:
            for found, array in zip(runner.run(feed).values(), wanted, strict=True):
                assert (found.shape, found.dtype) == (array.shape, array.dtype)
                np.testing.assert_array_equal(found, array)
    return shapes


def boxes_of(rng, *shape):
    corners = rng.uniform(0, 1, (*shape, 2))
    return np.concatenate([corners, corners + rng.uniform(0.05, 0.5, (*shape, 2))], -1).astype(F32)


# ---- non-maximum suppression -------------------------------------------------------------------------------------


def suppression(constants, batches=2, classes=3, boxes=20, **attributes):
    names = ["boxes", "scores", *(name if name in constants else "" for name in ("most", "iou", "least"))]
    while not names[-1]:
        names.pop()
    return model(
        [node("NonMaxSuppression", names, ["kept"], **attributes)],
        [value("boxes", (batches, boxes, 4)), value("scores", (batches, classes, boxes))],
        [value("kept", None, I64)],
        constants,
    )


def scores_of(rng, *shape):
    return (rng.integers(0, 12, shape) / 12).astype(F32)  # many ties


@pytest.mark.parametrize("center", [0, 1])
def test_suppression(center, rng):
    proto = suppression({"most": I64([5]), "iou": F32([0.4]), "least": F32([0.5])}, center_point_box=center)
    boxes, scores = boxes_of(rng, 2, 20), scores_of(rng, 2, 3, 20)
    swapped = boxes[..., [2, 1, 0, 3]] if not center else boxes
    strange = np.where(rng.uniform(size=scores.shape) < 0.2, np.nan, scores).astype(F32)
    feeds = [
        {"boxes": boxes, "scores": scores},
        {"boxes": swapped, "scores": scores / 2},
        {"boxes": np.zeros_like(boxes), "scores": np.ones_like(scores)},  # no area: all are kept
        {"boxes": boxes, "scores": np.full_like(scores, 0.5)},  # none is above the threshold
        {"boxes": boxes, "scores": strange},
        {"boxes": -boxes, "scores": np.where(scores > 0.7, np.inf, scores).astype(F32)},
    ]
    shapes = check(proto, *feeds, build=True)
    assert shapes[2] == [(30, 3)] and shapes[3] == [(0, 3)]


@pytest.mark.parametrize(
    "constants",
    [
        {"most": I64(2**62)},  # scalars, no thresholds: overlap 0, all scores
        {"most": I64([7]), "iou": F32([1.0])},
        {"most": I64([3]), "iou": F32([0.0]), "least": F32([-np.inf])},
        {"most": I64([3]), "iou": F32([0.3]), "least": F32([np.inf])},
        {"most": I64([3]), "iou": F32([0.3]), "least": F32([np.nan])},
        {"most": I64([0]), "iou": F32([0.3])},
        {"iou": F32([0.3])},
        {"most": I64([-1])},
    ],
    ids=str,
)
def test_limits_of_suppression(constants, rng):
    scores = scores_of(rng, 2, 3, 20) - F32(0.5)
    scores[0, 0, :3] = -np.inf
    check(suppression(constants), {"boxes": boxes_of(rng, 2, 20), "scores": scores})


def suppression_with(*computed, shape=(1,)):
    """A suppression whose limits of these names are inputs."""
    constants = {"most": I64([3]), "iou": F32([0.4]), "least": F32([0.5])}
    limits = [value(name, shape, constants.pop(name).dtype) for name in computed]
    names = ["boxes", "scores", "most", "iou", "least"]
    inputs = [value("boxes", (2, 12, 4)), value("scores", (2, 3, 12)), *limits]
    return model([node("NonMaxSuppression", names, ["kept"])], inputs, [value("kept", None, I64)], constants)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("computed", [["most"], ["iou"], ["least"], ["most", "iou", "least"]])
def test_limits_known_only_at_run_time(computed, shape, rng):
    scores = scores_of(rng, 2, 3, 12)
    scores[0, 0, :2] = np.nan, -np.inf
    feeds = [
        {"most": 2, "iou": 0.4, "least": 0.25},
        {"most": 2**40, "iou": 0.0, "least": -np.inf},
        {"most": 0, "iou": 1.0, "least": np.nan},
        {"most": -1, "iou": 0.1, "least": np.inf},
        {"most": 4, "iou": 0.9, "least": 0.5},
    ]
    dtypes = {"most": np.int64, "iou": F32, "least": F32}
    drawn = [{name: np.full(shape, feed[name], dtypes[name]) for name in computed} for feed in feeds]
    proto = suppression_with(*computed, shape=shape)
    check(proto, *({"boxes": boxes_of(rng, 2, 12), "scores": scores, **limits} for limits in drawn))


@pytest.mark.parametrize("overlap", [-0.1, 1.5, np.nan])
def test_overlaps_that_are_none(overlap, rng):
    """ONNX Runtime refuses them, too."""
    module = qnn_ext.from_onnx(suppression_with("iou"))
    feed = {"boxes": boxes_of(rng, 2, 12), "scores": scores_of(rng, 2, 3, 12), "iou": F32([overlap])}
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        with pytest.raises(qnn_ext.InputError, match="iou_threshold"):
            runner.run(feed)


# ---- distinct elements -------------------------------------------------------------------------------------------


def distinct(shape, dtype, nodes=(), data="x", **attributes):
    outputs = ["values", "first", "inverse", "counts"]
    results = [value(name, None, dtype if name == "values" else np.int64) for name in outputs]
    return model([*nodes, node("Unique", [data], outputs, **attributes)], [value("x", shape, dtype)], results)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("shape, dtype", [((30,), np.int64), ((4, 5), F32), ((1,), np.int64), ((64,), np.int8)])
def test_distinct_elements(shape, dtype, in_order, rng):
    proto = distinct(shape, dtype, sorted=in_order)
    draws = [rng.integers(-most, most, shape).astype(dtype) for most in (1, 3, 100)]
    check(proto, *({"x": x} for x in draws))


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape, dtype", [((6, 3), np.int64), ((3, 5, 2), F32), ((4, 4), np.int8), ((2, 1), np.int64)])
def test_distinct_slices(shape, dtype, axis, in_order, rng):
    proto = distinct(shape, dtype, axis=axis, sorted=in_order)
    draws = [rng.integers(-most, most, shape).astype(dtype) for most in (1, 1, 2)]
    check(proto, *({"x": x} for x in [*draws, np.zeros(shape, dtype)]))


@pytest.mark.parametrize("in_order", [0, 1])
def test_distinct_slices_of_unknown_number(in_order, rng):
    chosen = [
        node("Constant", [], ["axes"], value_ints=[1]),
        node("ReduceMax", ["x", "axes"], ["m"], keepdims=0),
        node("Cast", ["m"], ["mask"], to=9),
        node("Compress", ["x", "mask"], ["c"], axis=0),
    ]
    proto = distinct((12, 2), np.int64, chosen, "c", axis=0, sorted=in_order)
    check(proto, *({"x": rng.integers(0, 3, (12, 2))} for _ in range(4)))


@pytest.mark.parametrize(
    "steps, bounds",
    [
        ([1], [(0, 3), (0, 0), (2, -2), (-4, 100), (5, 2), (-100, 8), (8, 9)]),
        ([3], [(0, 8), (1, 7), (-3, 100)]),
    ],
)
def test_slices_with_bounds_computed_at_run_time(steps, bounds, rng):
    constants = {"axes": np.array([1]), "steps": np.array(steps)}
    proto = model(
        [node("Slice", ["x", "start", "end", "axes", "steps"], ["part"]), node("ReduceSum", ["part"], ["y"])],
        [value("x", (2, 8), F32), value("start", (1,), I64), value("end", (1,), I64)],
        [value("part", None, F32), value("y", None, F32)],
        constants,
    )
    x = rng.integers(-9, 9, (2, 8)).astype(F32)
    check(proto, *({"x": x, "start": np.array([one]), "end": np.array([two])} for one, two in bounds))


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("dtype", [np.int64, F32])
def test_distinct_elements_of_a_vector_of_unknown_size(dtype, in_order, rng):
    """What is behind its end is no element, whatever it is."""
    chosen = [node("Cast", ["x"], ["mask"], to=9), node("Compress", ["x", "mask"], ["c"], axis=0)]
    proto = distinct((20,), dtype, chosen, "c", axis=0, sorted=in_order)
    most = np.iinfo(np.int64).max if dtype == np.int64 else np.inf
    draws = [rng.integers(0, 4, 20).astype(dtype), np.arange(20).astype(dtype), np.zeros(20, dtype), np.full(20, most)]
    shapes = check(proto, *({"x": x.astype(dtype)} for x in draws))
    assert shapes[2] == [(0,)] * 4 and shapes[3][0] == (1,)


# ---- detectors' tails --------------------------------------------------------------------------------------------


def detector(tail, outputs, constants, classes=3, boxes=16, **more):
    """A quantized product that gives boxes and scores, suppression, and what follows it."""
    rng = np.random.default_rng(5)
    weights = {
        f"w{name}": rng.integers(-63, 64, (8, size)).astype(np.int8)
        for name, size in (("b", boxes * 4), ("s", boxes * classes))
    }
    scales = {
        "sx": F32(0.05),
        "zx": np.uint8(128),
        "sw": F32(0.02),
        "zw": np.int8(0),
        "sy": F32(0.02),
        "zy": np.uint8(9),
    }
    nodes = [node("QuantizeLinear", ["x", "sx", "zx"], ["q"])]
    for name in "bs":
        nodes += [
            node("QLinearMatMul", ["q", "sx", "zx", f"w{name}", "sw", "zw", "sy", "zy"], [f"p{name}"]),
            node("DequantizeLinear", [f"p{name}", "sy", "zy"], [f"d{name}"]),
        ]
    nodes += [
        node("Reshape", ["db", "box_shape"], ["boxes"]),
        node("Reshape", ["ds", "score_shape"], ["scores"]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["kept"]),
        *tail,
    ]
    shapes = {"box_shape": I64([1, boxes, 4]), "score_shape": I64([1, classes, boxes])}
    limits = {"most": I64([6]), "iou": F32([0.5]), "least": F32([1.5])}
    everything = {**weights, **scales, **shapes, **limits, **constants}
    return model(nodes, [value("x", (1, 8))], [value(*output) for output in outputs], everything, opset=18)


def feeds_of(rng):
    drawn = [{"x": rng.standard_normal((1, 8)).astype(F32) * scale} for scale in (1, 2, 5)]
    return [*drawn, {"x": np.zeros((1, 8), F32)}]


TAILS = {
    "gathered": (
        [
            node("Slice", ["kept", "zero", "one", "one"], ["batch"]),
            node("Gather", ["kept", "two_scalar"], ["box"], axis=1),
            node("Slice", ["kept", "one", "two", "one"], ["cls"]),
            node("Squeeze", ["boxes", "zero"], ["table"]),
            node("Gather", ["table", "box"], ["found"]),
            node("GatherND", ["scores", "kept"], ["points"]),
            node("Cast", ["cls"], ["label"], to=1),
            node("Unsqueeze", ["points", "one"], ["scores_column"]),
            node("Concat", ["found", "scores_column", "label"], ["all"], axis=1),
            node("Unsqueeze", ["all", "zero"], ["detections"]),
        ],
        [("detections", None), ("batch", None, I64)],
    ),
    "best": (
        [
            node("GatherND", ["scores", "kept"], ["points"]),
            node("Shape", ["points"], ["count"]),
            node("Min", ["count", "five"], ["k"]),
            node("TopK", ["points", "k"], ["best", "order"], axis=0),
            node("Gather", ["kept", "order"], ["chosen"]),
            node("Gather", ["chosen", "two_scalar"], ["box"], axis=1),
            node("Squeeze", ["boxes", "zero"], ["table"]),
            node("Gather", ["table", "box"], ["found"]),
        ],
        [("best", None), ("chosen", None, I64), ("found", None)],
    ),
    "first": (
        [
            node("Slice", ["kept", "zero", "five", "zero"], ["start"]),
            node("Slice", ["kept", "minus_two", "end", "zero"], ["last"]),
            node("Slice", ["kept", "two", "minus_two", "zero"], ["middle"]),
            node("Slice", ["kept", "one", "end", "zero", "three"], ["third"]),
        ],
        [(name, None, I64) for name in ("start", "last", "middle", "third")],
    ),
    "padded": (
        [
            node("GatherND", ["scores", "kept"], ["points"]),
            node("Shape", ["points"], ["count"]),
            node("Sub", ["twenty", "count"], ["rest"]),
            node("Concat", ["zero", "rest"], ["pads"], axis=0),
            node("Pad", ["points", "pads", "minus_one"], ["fixed"]),
            node("Sub", ["eighteen", "count"], ["rest18"]),
            node("Concat", ["zero", "rest18"], ["pads18"], axis=0),
            node("Pad", ["points", "pads18"], ["whole"]),
            node("Sub", ["five", "count"], ["rest5"]),
            node("Concat", ["zero", "rest5"], ["pads5"], axis=0),
            node("Pad", ["points", "pads5"], ["cropped"]),
            node("Cast", ["count"], ["number"], to=6),
        ],
        [("fixed", None), ("number", None, np.int32), ("whole", None), ("cropped", None)],
    ),
    "counted": (
        [
            node("GatherND", ["scores", "kept"], ["points"]),
            node("ReduceMax", ["points", "zero"], ["top"]),
            node("ReduceSum", ["kept", "zero"], ["total"], keepdims=0),
            node("Size", ["kept"], ["elements"]),
            node("Transpose", ["kept"], ["turned"], perm=[1, 0]),
            node("Reshape", ["turned", "flat"], ["line"]),
            node("ReduceMin", ["turned"], ["least_index"], keepdims=0),
        ],
        [("total", None, I64), ("elements", None, I64), ("turned", None, I64)],
    ),
    "shaped": (
        [
            node("Shape", ["kept"], ["shape"]),
            node("Gather", ["shape", "zero_scalar"], ["count"]),
            node("Unsqueeze", ["count", "zero"], ["counts"]),
            node("Concat", ["counts", "two"], ["pair"], axis=0),
            node("ConstantOfShape", ["pair"], ["zeros"]),
            node("Range", ["zero_scalar", "count", "one_scalar"], ["numbers"]),
            node("Reshape", ["numbers", "column"], ["upright"]),
            node("Expand", ["upright", "pair"], ["wide"]),
            node("Reshape", ["kept", "flat"], ["line"]),
            node("Mul", ["counts", "three"], ["triple"]),
            node("Reshape", ["line", "triple"], ["again"]),
            node("Concat", ["wide", "kept"], ["joined"], axis=1),
        ],
        [("zeros", None), ("wide", None, I64), ("again", None, I64), ("joined", None, I64)],
    ),
    "joined": (
        [
            node("Concat", ["kept", "rows", "kept"], ["both"], axis=0),
            node("Gather", ["both", "minus_one_scalar"], ["last"]),
            node("Concat", ["rows", "kept"], ["behind"], axis=0),
        ],
        [("both", None, I64), ("last", None, I64), ("behind", None, I64)],
    ),
}
CONSTANTS = {
    "zero": I64([0]), "one": I64([1]), "two": I64([2]), "three": I64([3]), "five": I64([5]), "twenty": I64([20]),
    "eighteen": I64([18]),
    "zero_scalar": I64(0), "one_scalar": I64(1), "two_scalar": I64(2), "minus_one_scalar": I64(-1),
    "minus_two": I64([-2]), "end": I64([2**63 - 1]), "minus_one": F32(-1), "flat": I64([-1]), "column": I64([-1, 1]),
    "rows": I64([[7, 8, 9], [4, 5, 6]]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAILS)
def test_tail(name, rng):
    tail, outputs = TAILS[name]
    used = {one for step in tail for one in step.input}
    read = {one for step in tail for one in step.input} | {output[0] for output in outputs}
    tail = [step for step in tail if any(one in read for one in step.output)]
    constants = {one: CONSTANTS[one] for one in used if one in CONSTANTS}
    check(detector(tail, outputs, constants), *feeds_of(rng), build=name in ("gathered", "best", "joined"))


# ---- NonZero and Compress ----------------------------------------------------------------------------------------


def masks(rng, *shape):
    """Some, all and no elements."""
    drawn = rng.standard_normal(shape).astype(F32)
    return [np.where(np.abs(drawn) > 0.8, drawn, 0).astype(F32), np.ones(shape, F32), np.zeros(shape, F32)]


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64, np.int32, np.uint8])
def test_nonzero(shape, dtype, rng):
    proto = model([node("NonZero", ["x"], ["y"])], [value("x", shape, dtype)], [value("y", None, I64)])
    special = np.array([np.nan, -0.0, np.inf, 1e-45], F32)
    arrays = [x.astype(dtype) for x in masks(rng, *shape)]
    if dtype == np.float32:
        arrays[1].reshape(-1)[:4] = special
    check(proto, *({"x": x} for x in arrays))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis, rng):
    length = 15 if axis is None else (3, 5)[axis]
    attributes = {} if axis is None else {"axis": axis}
    for known in (length, length - 1):
        nodes = [node("Compress", ["x", "mask"], ["y"], **attributes), node("Shape", ["y"], ["shape"])]
        inputs = [value("x", (3, 5)), value("mask", (known,), np.bool_)]
        proto = model(nodes, inputs, [value("y", None), value("shape", None, I64)])
        x = rng.standard_normal((3, 5)).astype(F32)
        found = [rng.uniform(size=known) < 0.5, np.ones(known, np.bool_), np.zeros(known, np.bool_)]
        check(proto, *({"x": x, "mask": mask} for mask in found))


NETWORKS = {
    # PyTorch's x[x > 0.5], and rows that a mask selects
    "mask": (
        [
            node("Greater", ["x", "half"], ["m"]),
            node("NonZero", ["m"], ["where"]),
            node("Transpose", ["where"], ["rows"], perm=[1, 0]),
            node("GatherND", ["x", "rows"], ["y"]),
            node("ReduceMax", ["x", "one"], ["highest"], keepdims=0),
            node("Greater", ["highest", "half"], ["kept"]),
            node("NonZero", ["kept"], ["index"]),
            node("Squeeze", ["index", "zero"], ["flat"]),
            node("Gather", ["x", "flat"], ["z"]),
            node("MatMul", ["z", "weight"], ["product"]),
            node("Softmax", ["z"], ["shares"], axis=1),
        ],
        [("y", None), ("z", None), ("product", None)],
    ),
    # twice: what is selected is selected from again
    "nested": (
        [
            node("NonZero", ["x"], ["where"]),
            node("Transpose", ["where"], ["rows"], perm=[1, 0]),
            node("GatherND", ["x", "rows"], ["values"]),
            node("Less", ["values", "zero_float"], ["below"]),
            node("Compress", ["values", "below"], ["y"], axis=0),
            node("NonZero", ["below"], ["again"]),
            node("ReduceSum", ["again"], ["sum"]),
            node("ReduceProd", ["y"], ["product"]),
        ],
        [("y", None), ("again", None, I64), ("sum", None, I64), ("product", None)],
    ),
    # the mean of what a mask selects, and its deviations
    "statistics": (
        [
            node("NonZero", ["x"], ["where"]),
            node("Split", ["where"], ["i", "j"], axis=0, num_outputs=2),
            node("Mul", ["i", "five"], ["start"]),
            node("Add", ["start", "j"], ["place"]),
            node("Squeeze", ["place", "zero"], ["flat"]),
            node("Cast", ["flat"], ["real"], to=1),
            node("ReduceSum", ["real", "zero"], ["sum"]),
            node("Sub", ["real", "sum"], ["deviation"]),
            node("CumSum", ["flat", "zero"], ["running"]),
            node("Where", ["odd", "flat", "minus_one"], ["chosen"]),
            node("Mod", ["flat", "two"], ["odd_number"]),
            node("Equal", ["odd_number", "one"], ["odd"]),
        ],
        [("deviation", None), ("running", None, I64), ("chosen", None, I64)],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name, rng):
    nodes, outputs = NETWORKS[name]
    order = [step for step in nodes if step.op_type != "Where"] + [step for step in nodes if step.op_type == "Where"]
    used = {one for step in nodes for one in step.input}
    constants = {
        "half": F32(0.5), "zero": I64([0]), "one": I64([1]), "two": I64([2]), "five": I64([5]), "zero_float": F32(0),
        "minus_one": I64([-1]), "weight": rng.integers(-3, 4, (5, 3)).astype(F32),
    }  # fmt: skip
    constants = {key: array for key, array in constants.items() if key in used}
    proto = model(order, [value("x", (4, 5))], [value(*output) for output in outputs], constants, opset=18)
    feeds = [np.rint(array * 4).astype(F32) for array in masks(rng, 4, 5)]
    check(proto, *({"x": x} for x in feeds))


def test_classes_moved_apart(rng):
    """torchvision's batched_nms: boxes above a threshold, each class moved to a place of its own."""
    nodes = [
        node("Greater", ["scores", "least"], ["mask"]),
        node("NonZero", ["mask"], ["where"]),
        node("Squeeze", ["where", "zero"], ["keep"]),
        *(node("Gather", [name, "keep"], [name[0]]) for name in ("boxes", "scores", "labels")),
        node("ReduceMax", ["b"], ["highest"], keepdims=0),
        node("Add", ["highest", "one_float"], ["step"]),
        node("Cast", ["l"], ["class"], to=1),
        node("Mul", ["class", "step"], ["offset"]),
        node("Unsqueeze", ["offset", "one"], ["offsets"]),
        node("Add", ["b", "offsets"], ["moved"]),
        node("Unsqueeze", ["moved", "zero"], ["all_boxes"]),
        node("Unsqueeze", ["s", "zero_one"], ["all_scores"]),
        node("NonMaxSuppression", ["all_boxes", "all_scores", "most", "iou"], ["kept"]),
        node("Gather", ["kept", "two"], ["column"], axis=1),
        node("Squeeze", ["column", "one"], ["order"]),
        node("Slice", ["order", "zero", "four", "zero"], ["first"]),
        *(node("Gather", [name[0], "first"], [f"best_{name}"]) for name in ("boxes", "scores", "labels")),
    ]
    constants = {
        "least": F32(0.3), "zero": I64([0]), "one": I64([1]), "two": I64([2]), "four": I64([4]),
        "zero_one": I64([0, 1]),
        "one_float": F32(1), "most": I64([2**63 - 1]), "iou": F32([0.5]),
    }  # fmt: skip
    inputs = [value("boxes", (12, 4)), value("scores", (12,)), value("labels", (12,), I64)]
    outputs = [value("best_boxes", None), value("best_scores", None), value("best_labels", None, I64)]
    boxes, labels = boxes_of(rng, 12), rng.integers(0, 3, 12)
    scores = [scores_of(rng, 12), np.ones(12, F32), np.zeros(12, F32), np.full(12, np.nan, F32)]
    feeds = [{"boxes": boxes, "scores": one, "labels": labels} for one in scores]
    check(model(nodes, inputs, outputs, constants, opset=17), *feeds)


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_assignment_by_a_mask(operator, reduction, rng):
    """PyTorch's x[mask] = …: as many places as the mask is true at."""
    places = {"ScatterND": ("rows", (12,)), "ScatterElements": ("flat", (12,))}[operator]
    nodes = [
        node("Greater", ["x", "half"], ["mask"]),
        node("NonZero", ["mask"], ["where"]),
        node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        node("Squeeze", ["where", "zero"], ["flat"]),
        node("Gather", ["values", "flat"], ["new"]),
        node(operator, ["x", places[0], "new"], ["y"], reduction=reduction),
    ]
    constants = {"half": F32(0.5), "zero": I64([0]), "values": rng.integers(-9, 9, 12).astype(F32)}
    proto = model(nodes, [value("x", (12,))], [value("y", None)], constants, opset=18)
    check(proto, *({"x": np.rint(x * 4)} for x in masks(rng, 12)))


def test_branch_without_elements(rng):
    """What torchvision's scripted functions do if there are no boxes."""
    nothing = model([node("ConstantOfShape", ["zero"], ["none"])], [], [value("none", (0,))], {"zero": I64([0])}).graph
    some = model([node("Mul", ["values", "half"], ["halves"])], [], [value("halves", None)]).graph
    nodes = [
        node("NonZero", ["x"], ["where"]),
        node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        node("GatherND", ["x", "rows"], ["values"]),
        node("Size", ["values"], ["count"]),
        node("Equal", ["count", "no"], ["empty"]),
        node("If", ["empty"], ["y"], then_branch=nothing, else_branch=some),
        node("ReduceSum", ["y"], ["total"]),
    ]
    proto = model(nodes, [value("x", (12,))], [value("y", None), value("total", None)], {"half": F32(2), "no": I64(0)})
    check(proto, *({"x": np.rint(x * 4)} for x in masks(rng, 12)))


def test_crops_of_regions(rng):
    """What follows the regions that a detector proposes; TVM's converter of RoiAlign joins tensors within a call."""
    nodes = [
        node("NonZero", ["scores"], ["where"]),
        node("Squeeze", ["where", "zero"], ["index"]),
        *(node("Gather", [name, "index"], [name[0]]) for name in ("boxes", "samples")),
        node("RoiAlign", ["x", "b", "s"], ["crops"], output_height=2, output_width=2, sampling_ratio=2),
        node("Flatten", ["crops"], ["rows"]),
        node("Gemm", ["rows", "weight"], ["y"]),
    ]
    inputs = [value("x", (2, 3, 8, 8)), value("scores", (6,)), value("boxes", (6, 4)), value("samples", (6,), I64)]
    constants = {"zero": I64([0]), "weight": rng.standard_normal((12, 5)).astype(F32)}
    proto = model(nodes, inputs, [value("y", None)], constants, opset=16)
    module = qnn_ext.from_onnx(proto)
    for scores in masks(rng, 6):
        x, samples = rng.standard_normal((2, 3, 8, 8)).astype(F32), rng.integers(0, 2, 6)
        feed = {"x": x, "scores": scores, "boxes": boxes_of(rng, 6) * 6, "samples": samples}
        (found,), (wanted,) = qnn_ext.Interpreter(module).run(feed).values(), run_ort(proto, feed)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def picked(tail, constants, batch=6, opset=18):
    """The images of x (6, 3, 5, 5) whose score is not 0, and what a detector's head makes of them."""
    nodes = [
        node("NonZero", ["scores"], ["where"]),
        node("Squeeze", ["where", "zero"], ["index"]),
        node("Gather", ["x", "index"], ["f"]),
        *tail,
    ]
    constants = {
        "zero": I64([0]),
        **{name: one for step in tail for name, one in constants.items() if name in step.input},
    }
    outputs = [value("y", None, I64 if tail[-1].op_type == "Shape" else F32)]
    return model(nodes, [value("x", (batch, 3, 5, 5)), value("scores", (batch,))], outputs, constants, opset=opset)


def head_constants():
    rng = np.random.default_rng(3)
    small = {
        "sx": F32(0.05), "zx": np.uint8(128), "sw": F32(0.11), "zw": np.int8(0), "sy": F32(0.23), "zy": np.uint8(9),
        "sizes": F32([1, 1, 2, 2]), "rows": I64([-1, 75]), "half": F32(0.5), "two": I64([2]), "four": I64([4]),
    }  # fmt: skip
    weights = {
        "w": rng.integers(-9, 9, (4, 3, 2, 2)).astype(np.int8),
        "wt": rng.integers(-9, 9, (3, 4, 2, 2)).astype(np.int8),
        "wr": rng.integers(-9, 9, (75, 4)).astype(np.int8),
    }
    floats = {f"{name}3": rng.uniform(0.5, 1.5, 3).astype(F32) for name in "smbv"}
    return {**small, **weights, **floats, "ln": rng.uniform(0.5, 1.5, 5).astype(F32)}


QUANTIZED = [node("QuantizeLinear", ["f", "sx", "zx"], ["q"])]
RESULT = [node("DequantizeLinear", ["r", "sy", "zy"], ["y"])]
DEQUANTIZED = [*QUANTIZED, node("DequantizeLinear", ["q", "sx", "zx"], ["d"])]
ROWS = [*QUANTIZED, node("Reshape", ["q", "rows"], ["qr"])]
HEADS = {
    "QLinearConv": [*QUANTIZED, node("QLinearConv", ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["r"]), *RESULT],
    "ConvInteger": [*QUANTIZED, node("ConvInteger", ["q", "w", "zx"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
    "MatMulInteger": [*ROWS, node("MatMulInteger", ["qr", "wr", "zx"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
    "QLinearMatMul": [*ROWS, node("QLinearMatMul", ["qr", "sx", "zx", "wr", "sw", "zw", "sy", "zy"], ["r"]), *RESULT],
    "dynamic": [
        node("Reshape", ["f", "rows"], ["fr"]),
        node("DynamicQuantizeLinear", ["fr"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "wr", "z"], ["i"]),
        node("Cast", ["i"], ["c"], to=1),
        node("Mul", ["c", "s"], ["y"]),
    ],
    "GlobalMaxPool": [node("GlobalMaxPool", ["f"], ["y"])],
    "SpaceToDepth": [
        node("Slice", ["f", "zero", "four", "two"], ["c"]),
        node("Transpose", ["c"], ["t"], perm=[0, 1, 3, 2]),
        node("Slice", ["t", "zero", "four", "two"], ["d"]),
        node("SpaceToDepth", ["d"], ["y"], blocksize=2),
    ],
    "Shrink": [node("Shrink", ["f"], ["y"], lambd=0.5)],
    "Trilu": [node("Trilu", ["f"], ["y"])],
    "Resize": [node("Resize", ["f", "", "sizes"], ["y"], mode="nearest", nearest_mode="floor")],
}
FLOAT_HEADS = {
    "ConvTranspose": [
        *DEQUANTIZED,
        node("DequantizeLinear", ["wt", "sw", "zw"], ["k"]),
        node("ConvTranspose", ["d", "k"], ["y"], strides=[2, 2]),
    ],
    "BatchNormalization": [node("BatchNormalization", ["f", "s3", "b3", "m3", "v3"], ["y"])],
    "InstanceNormalization": [node("InstanceNormalization", ["f", "s3", "b3"], ["y"])],
    "GlobalAveragePool": [node("GlobalAveragePool", ["f"], ["y"])],
    "LpNormalization": [node("LpNormalization", ["f"], ["y"], axis=1)],
    "LRN": [node("LRN", ["f"], ["y"], size=3)],
    "bilinear": [node("Resize", ["f", "", "sizes"], ["y"], mode="linear")],
}


def chosen(rng):
    return [{"x": rng.standard_normal((6, 3, 5, 5)).astype(F32), "scores": scores} for scores in masks(rng, 6)]


@pytest.mark.parametrize("name", HEADS)
def test_head_on_a_number_of_images_that_depends_on_data(name, rng):
    check(picked(HEADS[name], head_constants()), *chosen(rng), build=name in ("QLinearConv", "dynamic"))


@pytest.mark.parametrize("name", FLOAT_HEADS)
def test_float_head_on_a_number_of_images_that_depends_on_data(name, rng):
    proto = picked(FLOAT_HEADS[name], head_constants())
    module = qnn_ext.from_onnx(proto)
    for feed in chosen(rng):
        (found,), (wanted,) = qnn_ext.Interpreter(module).run(feed).values(), run_ort(proto, feed)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def microsoft(name, inputs, output="r", **attributes):
    return onnx.helper.make_node(name, inputs, [output], domain="com.microsoft", **attributes)


MICROSOFT_HEADS = {
    "QGemm": [*ROWS, microsoft("QGemm", ["qr", "sx", "zx", "wr", "sw", "zw", "", "sy", "zy"]), *RESULT],
    "QLinearAdd": [*QUANTIZED, microsoft("QLinearAdd", ["q", "sx", "zx", "q", "sx", "zx", "sy", "zy"]), *RESULT],
    "QLinearSigmoid": [*QUANTIZED, microsoft("QLinearSigmoid", ["q", "sx", "zx", "sy", "zy"]), *RESULT],
    "QLinearGlobalAveragePool": [
        *QUANTIZED,
        microsoft("QLinearGlobalAveragePool", ["q", "sx", "zx", "sy", "zy"], channels_last=0),
        *RESULT,
    ],
    "QLinearSoftmax": [
        *QUANTIZED,
        microsoft("QLinearSoftmax", ["q", "sx", "zx", "sy", "zy"], axis=-1, opset=13),
        *RESULT,
    ],
    "QLinearConcat": [
        *QUANTIZED,
        microsoft("QLinearConcat", ["sy", "zy", "q", "sx", "zx", "q", "sx", "zx"], axis=1),
        *RESULT,
    ],
    "DynamicQuantizeMatMul": [
        node("Reshape", ["f", "rows"], ["fr"]),
        microsoft("DynamicQuantizeMatMul", ["fr", "wr", "sw", "zw"], "y"),
    ],
}


@pytest.mark.parametrize("name", MICROSOFT_HEADS)
def test_operators_of_microsoft_on_such_a_number(name, rng):
    proto = picked(MICROSOFT_HEADS[name], head_constants())
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    check(proto, *chosen(rng), build=False)


def test_other_domains_on_such_a_number_are_refused(rng):
    proto = picked([onnx.helper.make_node("Unique", ["f"], ["y"], domain="com.microsoft")], {})
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedOperatorError, match="Unique is not supported"):
        qnn_ext.from_onnx(proto)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_crops_put_into_their_places(reduction, rng):
    """As torchvision's MultiScaleRoIAlign: crops of each level are written into a tensor of all regions, whose shape is
    computed from others by ConstantOfShape, Equal and Where. Indices count from its end, too."""
    level = [
        node("Gather", ["scores", "index"], ["kept"]),
        node("Less", ["kept", "half"], ["low"]),
        node("NonZero", ["low"], ["wherelow"]),
        node("Squeeze", ["wherelow", "zero"], ["lows"]),
        node("Gather", ["f", "lows"], ["crops"]),
        node("Shape", ["f"], ["whole"]),
        node("ConstantOfShape", ["whole"], ["empty"]),
        node("Reshape", ["lows", "upright"], ["column"]),
        node("Shape", ["crops"], ["wide"]),
        node("Reshape", ["wide", "flat"], ["line"]),
        node("Equal", ["line", "nothing"], ["free"]),
        node("Where", ["free", "ones", "line"], ["target"]),
        node("Expand", ["column", "target"], ["places"]),
        node("Gather", ["whole", "first"], ["count"]),
        node("Sub", ["places", "count"], ["from_end"]),
        node("ScatterElements", ["empty", "from_end", "crops"], ["y"], axis=0, reduction=reduction),
    ]
    constants = {
        "half": F32(0), "upright": I64([-1, 1, 1, 1]), "flat": I64([-1]), "nothing": I64([-1] * 4),
        "ones": I64([1] * 4), "first": I64(0),
    }  # fmt: skip
    check(picked(level, constants), *chosen(rng))


@pytest.mark.parametrize("reduction", ["ReduceMin", "ReduceMax", "ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_sizes_reduced(reduction, keepdims, rng):
    """As torchvision's number of candidates: the least of a limit and how many there are."""
    tail = [
        node("Shape", ["index"], ["count"]),
        node("Concat", ["two", "count"], ["both"], axis=0),
        node(reduction, ["both"], ["k"], keepdims=keepdims),
        node("Reshape", ["k", "two1"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["y"]),
    ]
    check(picked(tail, {"two": I64([2]), "two1": I64([1])}), *chosen(rng), build=False)


def test_sizes_joined_alike():
    """Tensors joined of parts with the same sizes have the same size, also if it is only one."""
    tail = [
        node("Concat", ["f"], ["one"], axis=0),
        node("Add", ["one", "f"], ["sum"]),
        node("Concat", ["sum", "rows", "f"], ["a"], axis=0),
        node("Concat", ["f", "rows", "sum"], ["b"], axis=0),
        node("Mul", ["a", "b"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    check(picked(tail, {"rows": rng.standard_normal((2, 3, 5, 5)).astype(F32)}), *chosen(rng), build=False)


# ---- loops -------------------------------------------------------------------------------------------------------


def repeated(nodes, state, constants):
    """A loop whose state of unknown size `s` becomes `t` by these nodes, over the rows of x (3, 6)."""
    body = onnx.helper.make_graph(
        [node("Gather", ["x", "i"], ["row"], axis=0), *nodes, node("Identity", ["c"], ["more"])],
        "body",
        [value("i", (), I64), value("c", (), np.bool_), value("s", None, state)],
        [value("more", (), np.bool_), value("t", None, state)],
    )
    inputs = [value("x", (3, 6)), *([] if "n" in constants else [value("n", (), I64)])]
    loop = node("Loop", ["n", "", "start"], ["y"], "rows", body=body)
    start = [] if "start" in constants else [node("Compress", ["first", "mask"], ["start"], axis=0)]
    start = start and [node("Squeeze", ["part", "zero"], ["first"]), node("Cast", ["first"], ["mask"], to=9), *start]
    start = start and [node("Slice", ["x", "zero", "one"], ["part"]), *start]
    return model([*start, loop], inputs, [value("y", None, state)], constants)


LIMITS = {"zero": I64([0]), "one": I64([1]), "half": F32(0.5)}
GROWING = [
    node("Greater", ["row", "half"], ["hit"]),
    node("NonZero", ["hit"], ["found"]),
    node("Concat", ["s", "found"], ["t"], axis=1),
]
SHRINKING = [
    node("Greater", ["s", "half"], ["keep"]),
    node("Compress", ["s", "keep"], ["kept"], axis=0),
    node("Mul", ["kept", "half"], ["t"]),
]


@pytest.mark.parametrize("name", ["growing", "shrinking"])
def test_a_state_whose_size_depends_on_data(name, rng):
    """The rounds are written out, as each has sizes of its own."""
    constants = {**LIMITS, "n": np.int64(3)}
    if name == "growing":
        proto = repeated(GROWING, I64, {**constants, "start": np.zeros((1, 0), np.int64)})
    else:
        proto = repeated(SHRINKING, F32, constants)
    check(proto, *({"x": x} for x in (rng.uniform(0, 4, (3, 6)).astype(F32), np.zeros((3, 6), F32))))


def test_such_states_need_a_known_number_of_rounds():
    proto = repeated(GROWING, I64, {**LIMITS, "start": np.zeros((1, 0), np.int64)})
    with pytest.raises(UnsupportedOperatorError, match="only if the number of rounds is known at import"):
        qnn_ext.from_onnx(proto)


# ---- refusals ----------------------------------------------------------------------------------------------------


REFUSED = {
    "reshape": (node("Reshape", ["f", "n"], ["y"]), I64([2, -1]), r"a reshape from \(1, ≤6\) to \(2, 3\)"),
    "static": (node("Add", ["f", "n"], ["y"]), np.ones(6, I64), "add with a tensor of 6 elements along it"),
    "other": (node("ReverseSequence", ["f", "n"], ["y"], time_axis=1, batch_axis=0), I64([1]), "ReverseSequence"),
    "flip": (node("CumSum", ["f", "n"], ["y"], reverse=1), I64(1), "flip along such a dimension"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name):
    tail, constant, message = REFUSED[name]
    nodes = [node("NonZero", ["x"], ["f"], "finder"), tail]
    proto = model(nodes, [value("x", (6,))], [value("y", None, I64)], {"n": constant})
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        qnn_ext.from_onnx(proto)
    assert "comes from NonZero 'finder'" in str(caught.value)


def test_sizes_that_may_differ_are_refused():
    nodes = [node("NonZero", [name], [f"f{name}"], f"find {name}") for name in "ab"]
    proto = model(
        [*nodes, node("Add", ["fa", "fb"], ["y"])], [value("a", (6,)), value("b", (6,))], [value("y", None, I64)]
    )
    with pytest.raises(UnsupportedOperatorError, match=r"find b' .* and may be another one"):
        qnn_ext.from_onnx(proto)


def test_fewer_elements_than_top_k_wants():
    nodes = [
        node("NonZero", ["x"], ["f"]),
        node("TopK", ["f", "k"], ["values", "order"]),
    ]
    outputs = [value("values", None, I64), value("order", None, I64)]
    proto = model(nodes, [value("x", (6,))], outputs, {"k": I64([2])})
    check(proto, {"x": np.ones(6, F32)}, {"x": np.array([0, 3, 0, 4, 0, 0], F32)})
    with pytest.raises(InputError, match="k"):
        qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run({"x": np.array([0, 3, 0, 0, 0, 0], F32)})


# ---- rows that a suppression chose, by GatherND ------------------------------------------------------------------


@pytest.mark.parametrize("filtered", [False, True])
def test_gather_nd_of_rows_chosen_at_run_time(filtered, rng):
    """Advanced indexing, as torch.export writes it; of rows that a mask chose before, too."""
    nodes = [
        node("NonZero", ["mask"], ["found"]),
        node("Transpose", ["found"], ["places"]),
        node("GatherND", ["table", "places"], ["kept"]),
    ]
    constants = {}
    if filtered:
        nodes += [
            node("Shape", ["kept"], ["size"], end=1),
            node("Concat", ["size", "four"], ["wanted"], axis=0),
            node("ConstantOfShape", ["wanted"], ["zeros"]),
            node("Greater", ["kept", "zeros"], ["positive"]),
            node("Cast", ["positive"], ["numbers"], to=onnx.TensorProto.INT32),
            node("ReduceSum", ["numbers", "one"], ["counts"], keepdims=0),
            node("Greater", ["counts", "two"], ["most"]),
            node("NonZero", ["most"], ["again"]),
            node("Transpose", ["again"], ["rows"]),
            node("Sub", ["rows", "size"], ["from_the_end"]),
            node("GatherND", ["kept", "from_the_end"], ["result"]),
        ]
        constants = {"four": I64([4]), "one": I64([1]), "two": np.int32(2)}
    outputs = [value("result" if filtered else "kept", None)]
    proto = model(nodes, [value("mask", (9,), np.bool_), value("table", (9, 4))], outputs, constants)
    table = rng.standard_normal((9, 4)).astype(F32)
    masks = [rng.random(9) < 0.6, np.ones(9, np.bool_), np.zeros(9, np.bool_)]
    shapes = check(proto, *({"mask": mask, "table": table} for mask in masks))
    assert shapes[2] == [(0, 4)]


def test_rows_chosen_at_run_time_count_within_their_batches(rng):
    """The places of detections among those of their image, as tf2onnx writes CombinedNonMaxSuppression: a GatherND
    whose batches are the rows that are left; and rows of a table, padded at its start."""
    nodes = [
        node("NonZero", ["mask"], ["found"]),
        node("Transpose", ["found"], ["places"]),
        node("Slice", ["places", "zero", "one", "one"], ["batch"]),
        node("Squeeze", ["batch", "one"], ["flat"]),
        node("Gather", ["unit", "flat"], ["rows"]),
        node("CumSum", ["rows", "first"], ["counts"], exclusive=1),
        node("GatherND", ["counts", "batch"], ["rank"], batch_dims=1),
        node("Pad", ["rows", "widths"], ["wider"]),
    ]
    constants = {"zero": I64([0]), "one": I64([1]), "first": np.int64(0), "unit": np.eye(3, dtype=F32)}
    constants["widths"] = I64([1, 0, 0, 0])
    outputs = [value("rank", None), value("wider", None)]
    proto = model(nodes, [value("mask", (3, 6), np.bool_)], outputs, constants)
    masks = [rng.random((3, 6)) < 0.5, np.ones((3, 6), np.bool_), np.zeros((3, 6), np.bool_)]
    check(proto, *({"mask": mask} for mask in masks))


def test_gather_nd_of_elements_chosen_at_run_time(rng):
    nodes = [
        node("NonZero", ["mask"], ["found"]),
        node("Transpose", ["found"], ["places"]),
        node("GatherND", ["table", "places"], ["kept"]),
    ]
    inputs = [value("mask", (3, 5), np.bool_), value("table", (3, 5, 2))]
    proto = model(nodes, inputs, [value("kept", None)])
    table = rng.standard_normal((3, 5, 2)).astype(F32)
    check(proto, *({"mask": rng.random((3, 5)) < share, "table": table} for share in (0.5, 0, 1.1)))


# ---- lengths computed from data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start, step", [(0, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("dtype", [I64, np.int32])
def test_range_up_to_a_number_that_the_model_limits(dtype, start, step):
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Clip", ["sum", "low", "high"], ["limit"]),
        node("Range", ["start", "limit", "step"], ["y"]),
    ]
    constants = {"low": dtype(0), "high": dtype(9), "start": dtype(start), "step": dtype(step)}
    proto = model(nodes, [value("x", (3,), dtype)], [value("y", None, dtype)], constants)
    check(proto, *({"x": dtype([total, 2, -1])} for total in (-2, -1, 0, 1, 2, 4, 8, 50)))


def speech(rng, channels=4):
    """Symbols → frames, as text-to-speech does: each symbol's row repeated as often as a duration computed from data,
    attention over the frames, a residual convolution, one with a stride, and upsampling. Whole numbers, so that sums
    are exact in any order."""

    def weights(*shape):
        return rng.integers(-2, 3, shape).astype(F32)

    nodes = [
        node("Cast", ["durations"], ["whole"], to=onnx.TensorProto.INT64),
        node("CumSum", ["whole", "axis"], ["ends"]),
        node("ReduceMax", ["ends"], ["length"], keepdims=0),
        node("Range", ["zero", "length", "one"], ["frames"]),
        node("Unsqueeze", ["frames", "last"], ["column"]),
        node("Less", ["column", "ends"], ["before_end"]),
        node("Cast", ["before_end"], ["numbers"], to=onnx.TensorProto.FLOAT),
        node("Slice", ["numbers", "first", "end", "last"], ["shorter"]),
        node("Pad", ["shorter", "pads"], ["before_start"]),
        node("Sub", ["numbers", "before_start"], ["path"]),
        node("MatMul", ["path", "rows"], ["spoken"]),
        node("Transpose", ["spoken"], ["turned"], perm=[1, 0]),
        node("MatMul", ["turned", "spoken"], ["gram"]),
        node("MatMul", ["spoken", "gram"], ["mixed"]),
        node("Transpose", ["mixed"], ["channels"], perm=[1, 0]),
        node("Unsqueeze", ["channels", "batch"], ["image"]),
        node("Conv", ["image", "w1", "b"], ["conv"], kernel_shape=[3], pads=[2, 2], dilations=[2]),
        node("Add", ["conv", "image"], ["residual"]),
        node("ConvTranspose", ["residual", "w2"], ["y1"], kernel_shape=[4], strides=[2], pads=[1, 1]),
        node("ConvTranspose", ["residual", "w2"], ["y2"], kernel_shape=[4], strides=[3], output_padding=[1]),
        node("Conv", ["residual", "w3"], ["y3"], kernel_shape=[3], strides=[2], pads=[1, 2]),
        node("Conv", ["residual", "w3"], ["y4"], kernel_shape=[3]),
        node("Pad", ["residual", "longer", "minus"], ["y5"]),
        node("Shape", ["residual"], ["y6"]),
        node("Unsqueeze", ["length", "batch"], ["vector"]),
        node("ConstantOfShape", ["vector"], ["y7"]),
    ]
    constants = {
        **{"axis": I64(0), "zero": I64(0), "one": I64(1), "last": I64([1]), "first": I64([0]), "end": I64([-1])},
        **{"pads": I64([0, 1, 0, 0]), "longer": I64([0, 0, 2, 0, 0, 3]), "minus": F32(-1), "batch": I64([0])},
        **{"w1": weights(channels, channels, 3), "b": weights(channels), "w2": weights(channels, 2, 4)},
        "w3": weights(3, channels, 3),
    }
    inputs = [value("durations", (5,)), value("rows", (5, channels))]
    outputs = [value(f"y{index}", None, I64 if index == 6 else F32) for index in range(1, 8)]
    return model(nodes, inputs, outputs, constants, opset=17)


def test_speech_of_a_length_computed_from_data(rng):
    feeds = [
        {"durations": F32(durations), "rows": rng.integers(-2, 3, (5, 4)).astype(F32)}
        for durations in ([1, 2, 0, 3, 1], [0, 0, 3, 0, 0], [4, 4, 4, 4, 4], [1, 1, 1, 1, 0])
    ]
    shapes = check(speech(rng), *feeds, largest={"length": 20})
    assert [one[0] for one in shapes] == [(1, 2, 14), (1, 2, 6), (1, 2, 40), (1, 2, 8)]


def test_speech_longer_than_the_largest_length(rng):
    module = qnn_ext.from_onnx(speech(rng), largest={"length": 7})
    feed = {"durations": F32([2, 2, 2, 1, 1]), "rows": np.zeros((5, 4), F32)}
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        with pytest.raises(InputError, match=r"'length'.*8"):
            runner.run(feed)
    runner.run(feed | {"durations": F32([2, 2, 2, 1, 0])})


def test_a_range_of_floats_up_to_the_length_of_a_mask(rng):
    """As a text-to-speech network finds which text each frame speaks: the length went through a cast."""
    nodes = [
        node("Add", ["length", "zero"], ["computed"]),
        node("Range", ["zero", "computed", "one"], ["steps"]),
        node("Cast", ["steps"], ["mask"], to=onnx.TensorProto.FLOAT),
        node("Shape", ["mask"], ["shape"]),
        node("Cast", ["shape"], ["real"], to=onnx.TensorProto.FLOAT),
        node("Squeeze", ["real"], ["limit"]),
        node("Range", ["start", "limit", "step"], ["frames"]),
        node("Unsqueeze", ["ends", "last"], ["column"]),
        node("Less", ["frames", "column"], ["spoken"]),
        node("Cast", ["spoken"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    constants = {"zero": I64(0), "one": I64(1), "start": F32(1), "step": F32(2), "last": I64([1])}
    inputs = [value("length", (), I64), value("ends", (4,))]
    proto = model(nodes, inputs, [value("y", None)], constants, opset=17)
    feeds = [{"length": np.array(length), "ends": rng.uniform(0, 9, 4).astype(F32)} for length in (0, 1, 6, 9)]
    shapes = check(proto, *feeds, largest={"computed": 9})
    assert [one[0] for one in shapes] == [(4, 0), (4, 0), (4, 3), (4, 4)]


def test_a_convolution_of_integers_over_a_computed_length(rng):
    """What lies beyond the length counts as the zero point, as padding does."""
    nodes = [
        node("Add", ["length", "zero"], ["computed"]),
        node("Range", ["zero", "computed", "one"], ["frames"]),
        node("Gather", ["table", "frames"], ["rows"]),
        node("Transpose", ["rows"], ["columns"], perm=[1, 0]),
        node("Unsqueeze", ["columns", "first"], ["data"]),
        node("ConvInteger", ["data", "w", "zx", "zw"], ["y"], kernel_shape=[3], pads=[1, 1], strides=[2]),
        node("DequantizeLinear", ["data", "s", "zx"], ["x"]),
        node("DynamicQuantizeLinear", ["x"], ["q", "sq", "zq"]),
        node("ConvInteger", ["q", "w", "zq"], ["z"], kernel_shape=[3], pads=[2, 2], dilations=[2]),
    ]
    constants = {"zero": I64(0), "one": I64(1), "first": I64([0]), "s": F32(0.5), "zx": np.uint8(7), "zw": np.int8(3)}
    constants |= {
        "w": rng.integers(-9, 9, (2, 3, 3)).astype(np.int8),
        "table": rng.integers(0, 255, (12, 3)).astype(np.uint8),
    }
    outputs = [value("y", None, np.int32), value("z", None, np.int32)]
    proto = model(nodes, [value("length", (), I64)], outputs, constants, opset=17)
    shapes = check(proto, *({"length": np.array(length)} for length in (12, 1, 6, 9)), largest={"computed": 12})
    assert [one[0] for one in shapes] == [(1, 2, 6), (1, 2, 1), (1, 2, 3), (1, 2, 5)]


def test_what_a_largest_value_is_given_for(rng):
    with pytest.raises(UnsupportedOperatorError, match=r"a range up to 'length'.*largest=\{'length': n\}"):
        qnn_ext.from_onnx(speech(rng))
    for largest, message in (
        ({"nothing": 3, "length": 9}, "largest names 'nothing', which the model does not compute"),
        ({"ends": 3}, r"of one integer; the model computes int64 of shape \(5,\)"),
        ({"spoken": 3, "length": 9}, "of one integer; the model computes float32"),
        ({"length": 0}, "from 1 on"),
    ):
        with pytest.raises(ShapeError, match=message):
            qnn_ext.from_onnx(speech(rng), largest=largest)
