"""Pooling, local normalization and resizing: windows at the border, activations, size conventions."""

from __future__ import annotations

from collections.abc import Iterator

from .builder import Graph, Spec, activation
from .conv import Window

POOL_VARIANTS = {
    "2x2_stride2": Window(h=6, w=8, cin=5, kh=2, kw=2, stride=(2, 2), padding="VALID"),
    "3x3_same": Window(h=5, w=6, cin=4, in_where="mid"),
    "3x3_stride2_same": Window(h=7, w=8, cin=3, stride=(2, 2), in_where="low"),
    "3x2_stride_1x2_valid": Window(h=5, w=7, cin=3, kh=3, kw=2, stride=(1, 2), padding="VALID", in_where="high"),
    "global": Window(h=7, w=7, cin=16, kh=7, kw=7, padding="VALID"),
    "batch2_relu6": Window(h=4, w=4, cin=3, kh=2, kw=2, batch=2, act="relu6", padding="VALID", in_where="low"),
    "relu": Window(h=4, w=5, cin=3, act="relu"),
    "relu_n1_to_1": Window(h=4, w=5, cin=3, act="relu_n1_to_1"),
    "window_beyond_input": Window(h=2, w=3, cin=3, kh=5, kw=5),
    "stride_beyond_window": Window(h=7, w=7, cin=2, kh=2, kw=2, stride=(3, 3)),
    "1x1": Window(h=3, w=3, cin=4, kh=1, kw=1),
    "many_channels": Window(h=3, w=3, cin=67, kh=2, kw=2),
}
RESIZE_FLAGS = {
    "": {},
    "align_corners_": {"alignCorners": True},
    "half_pixel_": {"halfPixelCenters": True},
    "align_corners_half_pixel_": {"alignCorners": True, "halfPixelCenters": True},
}
RESIZE_SIZES = {
    "double": ((1, 3, 4, 3), (6, 8)),
    "odd_up": ((1, 3, 4, 3), (7, 5)),
    "down": ((1, 7, 9, 2), (3, 4)),
    "halve": ((2, 6, 4, 3), (3, 2)),
    "same_size": ((1, 4, 5, 2), (4, 5)),
    "to_one": ((1, 4, 5, 2), (1, 1)),
    "from_one": ((2, 1, 1, 3), (3, 4)),
    "triple": ((1, 5, 5, 1), (15, 15)),
}


def pool(operator: str, dtype: str, variant: str, window: Window, second: float | None = None) -> Spec:
    """One pooling case; `second` is an output scale that differs from the input's."""
    graph = Graph()
    q = activation(dtype, where=window.in_where)
    x = graph.input((window.batch, window.h, window.w, window.cin), dtype, q)
    out_q = q if second is None else activation(dtype, second, window.in_where)
    y = graph.output((window.batch, *window.out_size(), window.cin), dtype, out_q)
    graph.op(
        operator, [x], [y], padding=window.padding, strideH=window.stride[0], strideW=window.stride[1],
        filterHeight=window.kh, filterWidth=window.kw, act=window.act,
    )  # fmt: skip
    return Spec(f"{operator}/{dtype}/{variant}", graph)


def pool_specs() -> Iterator[Spec]:
    """AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""
    for operator in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for dtype in ("int8", "uint8", "int16", "float32"):
            for variant, window in POOL_VARIANTS.items():
                yield pool(operator, dtype, variant, window)
        yield pool(operator, "int8", "other_output_scale", POOL_VARIANTS["3x3_same"], second=0.03)
    for variant in ("2x2_stride2", "3x3_same", "3x3_stride2_same", "relu", "global"):
        yield pool("L2_POOL_2D", "float32", variant, POOL_VARIANTS[variant])
    yield pool("L2_POOL_2D", "int8", "3x3_same", POOL_VARIANTS["3x3_same"])


def resize(operator: str, dtype: str, flag: str, size: str) -> Spec:
    """One resizing case."""
    shape, target = RESIZE_SIZES[size]
    graph = Graph()
    q = activation(dtype, where="low" if size == "double" else "odd")
    x = graph.input(shape, dtype, q)
    y = graph.output((shape[0], *target, shape[3]), dtype, q)
    graph.op(operator, [x, graph.const(target, "int32")], [y], **RESIZE_FLAGS[flag])
    return Spec(f"{operator}/{dtype}/{flag}{size}", graph)


def resize_specs() -> Iterator[Spec]:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR in every dtype and convention."""
    for operator in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for dtype in ("int8", "uint8", "int16", "float32"):
            for flag in RESIZE_FLAGS:
                for size in RESIZE_SIZES:
                    if dtype in ("int8", "uint8") or size in ("double", "odd_up", "down"):
                        yield resize(operator, dtype, flag, size)


def along_channels(operator: str, dtype: str, variant: str, shape: tuple[int, ...], **options: float) -> Spec:
    """An operator with one input and one output of the same shape; int8 and uint8 L2 norms give multiples of 1/128."""
    graph = Graph()
    x = graph.input(shape, dtype, activation(dtype))
    y = graph.output(shape, dtype, activation(dtype, 1 / 128, "mid"))
    graph.op(operator, [x], [y], **options)
    # The reference resolver's LOCAL_RESPONSE_NORMALIZATION leaves the last channel out of every window.
    kernels = "builtin" if operator == "LOCAL_RESPONSE_NORMALIZATION" else "reference"
    return Spec(f"{operator}/{dtype}/{variant}", graph, kernels=kernels)


def normalization_specs() -> Iterator[Spec]:
    """L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION."""
    for dtype in ("int8", "uint8", "int16", "float32"):
        for variant, shape in {"rank2": (3, 17), "rank4": (2, 3, 2, 8), "rank3": (2, 5, 12), "one": (4, 1)}.items():
            yield along_channels("L2_NORMALIZATION", dtype, variant, shape)
    lrn = "LOCAL_RESPONSE_NORMALIZATION"
    for dtype in ("float32", "int8"):
        yield along_channels(lrn, dtype, "radius2", (1, 3, 2, 9), radius=2, bias=1.0, alpha=0.5, beta=0.5)
        yield along_channels(lrn, dtype, "radius5", (2, 2, 2, 16), radius=5, bias=2.0, alpha=1e-2, beta=0.75)
