"""Resource variables (VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE) and detection postprocessing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from .builder import Graph, Q, Spec, Subgraph, activation, rng_for
from .weights import Kind, add_weights

DETECTION = "TFLite_Detection_PostProcess"


def variable(graph: Subgraph, name: str) -> int:
    """A handle on the variable of that name."""
    handle = graph.tensor((), "resource", name=f"{name}_handle")
    graph.op("VAR_HANDLE", [], [handle], container=b"", sharedName=name.encode())
    return handle


def initialize(graph: Graph, initial: dict[str, tuple[np.ndarray, Q | None]]) -> None:
    """CALL_ONCE of a subgraph that assigns every variable its first value."""
    init = graph.subgraph("init")
    for name, (value, q) in initial.items():
        init.op("ASSIGN_VARIABLE", [variable(init, name), init.const(value, q=q)], [])
    graph.op("CALL_ONCE", [], [], initSubgraphIndex=len(graph.subgraphs) - 1)


def accumulator(dtype: str) -> Spec:
    """state = state + x, returned."""
    graph, q = Graph(), activation(dtype)
    x = graph.input((2, 3), dtype, q, **({"low": -50, "high": 60} if dtype == "int8" else {}))
    initialize(graph, {"sum": (np.full((2, 3), 2, dtype), q)})
    handle = variable(graph, "sum")
    old = graph.tensor((2, 3), dtype, q)
    graph.op("READ_VARIABLE", [handle], [old])
    new = graph.output((2, 3), dtype, q)
    graph.op("ADD", [old, x], [new], potScaleInt16=False)
    graph.op("ASSIGN_VARIABLE", [handle, new], [])
    return Spec(f"ASSIGN_VARIABLE/{dtype}/accumulator", graph, trials=6, stateful=True)


def streaming_convolution(dtype: str) -> Spec:
    """A causal convolution one frame at a time: the state is a ring of the last frames, joined with the new one."""
    name = f"READ_VARIABLE/{dtype}/streaming_convolution"
    graph, rng, q = Graph(), rng_for(name), activation(dtype)
    channels, memory = 4, 3
    x = graph.input((1, 1, 1, channels), dtype, q)
    zero = np.full((1, memory - 1, 1, channels), q.zero_point if q else 0, dtype)
    initialize(graph, {"frames": (zero, q)})
    handle = variable(graph, "frames")
    old = graph.tensor(zero.shape, dtype, q)
    graph.op("READ_VARIABLE", [handle], [old])
    window = graph.tensor((1, memory, 1, channels), dtype, q)
    graph.op("CONCATENATION", [old, x], [window], axis=1)
    kept = graph.tensor(zero.shape, dtype, q)
    begin, size = graph.const([0, 1, 0, 0], "int32"), graph.const([-1, -1, -1, -1], "int32")
    graph.op("SLICE", [window, begin, size], [kept])
    graph.op("ASSIGN_VARIABLE", [handle, kept], [])
    layer = add_weights(graph, Kind(dtype), rng, (5, memory, 1, channels), 0, q)
    y = graph.output((1, 1, 1, 5), dtype, layer.output)
    graph.op("CONV_2D", [window, layer.weight, layer.bias], [y], padding="VALID", strideH=1, strideW=1)
    return Spec(name, graph, trials=6, stateful=True)


def two_variables() -> Spec:
    """Two variables that are read, mixed and written crosswise."""
    graph = Graph()
    x = graph.input((3,), "float32")
    initialize(graph, {n: (np.full(3, v, "float32"), None) for n, v in (("a", 1.0), ("b", -2.0))})
    handles = {n: variable(graph, n) for n in ("a", "b")}
    values = {n: graph.tensor((3,), "float32") for n in handles}
    for n, handle in handles.items():
        graph.op("READ_VARIABLE", [handle], [values[n]])
    total = graph.output((3,), "float32")
    graph.op("ADD", [values["a"], x], [total])
    scaled = graph.output((3,), "float32")
    graph.op("MUL", [values["b"], total], [scaled])
    graph.op("ASSIGN_VARIABLE", [handles["a"], values["b"]], [])
    graph.op("ASSIGN_VARIABLE", [handles["b"], total], [])
    return Spec("VAR_HANDLE/float32/two_variables", graph, trials=6, stateful=True)


def variable_specs() -> Iterator[Spec]:
    """Streaming models: several invocations that keep the state."""
    for dtype in ("int8", "int16", "float32"):
        yield accumulator(dtype)
        yield streaming_convolution(dtype)
    yield two_variables()


def detection_options(**changes: Any) -> bytes:
    """The operator's flexbuffer map."""
    options: dict[str, Any] = {
        "max_detections": 6,
        "max_classes_per_detection": 1,
        "detections_per_class": 4,
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.5,
        "num_classes": 3,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
        "use_regular_nms": False,
    }
    return bytes(flexbuffers.Dumps(options | changes))


DETECTIONS: dict[str, dict[str, Any]] = {
    "fast": {},
    "regular_nms": {"use_regular_nms": True},
    "two_classes_per_detection": {"max_classes_per_detection": 2},
    "strict_overlap": {"nms_iou_threshold": 0.1},
    "high_threshold": {"nms_score_threshold": 0.9},
    "more_detections_than_boxes": {"max_detections": 30, "nms_score_threshold": 1e-8},
}


def detection(dtype: str, variant: str, background: int = 1) -> Spec:
    """One case of 20 boxes; int8 inputs pass through DEQUANTIZE, as the operator takes float and uint8 only."""
    name = f"{DETECTION}/{dtype}/{variant}{'' if background else '_no_background'}"
    graph, rng = Graph(), rng_for(name)
    changes = DETECTIONS[variant]
    boxes, classes = 20, 3 + background
    quantized = dtype in ("uint8", "int8")
    offset = 0 if dtype == "uint8" else -128
    box_q, score_q = (Q(0.12, 125 + offset), Q(1 / 256, offset)) if quantized else (None, None)
    encodings = graph.input((1, boxes, 4), dtype, box_q, low=None if quantized else -12, high=None if quantized else 12)
    limits: dict[str, Any] = {} if quantized else {"low": 0.0, "high": 1.0, "step": 1 / 65536}
    scores = graph.input((1, boxes, classes), dtype, score_q, **limits)
    anchors = np.concatenate([rng.uniform(0.2, 0.8, (boxes, 2)), rng.uniform(0.1, 0.5, (boxes, 2))], axis=1)
    if dtype == "uint8":
        anchor = graph.const(np.round(anchors * 255), "uint8", Q(1 / 255, 0))
    else:
        anchor = graph.const(anchors.astype("float32"))
    operands = [encodings, scores]
    if dtype == "int8":
        wide = [graph.tensor((1, boxes, n), "float32") for n in (4, classes)]
        for narrow, float_tensor in zip(operands, wide, strict=True):
            graph.op("DEQUANTIZE", [narrow], [float_tensor])
        operands = wide
    count = changes.get("max_detections", 6) * changes.get("max_classes_per_detection", 1)
    outputs = [graph.output(shape, "float32") for shape in ((1, count, 4), (1, count), (1, count), (1,))]
    graph.op(DETECTION, [*operands, anchor], outputs, custom=detection_options(**changes))
    return Spec(name, graph, trials=3, uniform=True, counted_by=3)


def detection_specs() -> Iterator[Spec]:
    """TFLite_Detection_PostProcess."""
    for dtype in ("float32", "uint8", "int8"):
        for variant in DETECTIONS:
            yield detection(dtype, variant)
        yield detection(dtype, "fast", background=0)
