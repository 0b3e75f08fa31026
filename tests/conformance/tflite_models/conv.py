"""CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV in every dtype: strides, dilation, padding, groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .builder import Graph, Spec, activation, rng_for
from .weights import FLOAT_KINDS, INTEGER_KINDS, Kind, add_weights, near_zero


@dataclass(frozen=True)
class Window:
    """One convolution: shapes, window, and positions of the zero points."""

    h: int = 5
    w: int = 6
    cin: int = 3
    cout: int = 4
    kh: int = 3
    kw: int = 3
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: str = "SAME"
    act: str = "none"
    batch: int = 1
    groups: int = 1
    in_where: str = "odd"
    out_where: str = "odd"
    gain: float = 1.0
    bias: bool = True

    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        sizes = []
        window = zip((self.h, self.w), (self.kh, self.kw), self.stride, self.dilation, strict=True)
        for size, kernel, stride, dilation in window:
            span = size if self.padding == "SAME" else size - (kernel - 1) * dilation
            sizes.append(-(-span // stride))
        return sizes[0], sizes[1]


CONV_VARIANTS = {
    "same": Window(),
    "valid": Window(padding="VALID", in_where="mid", out_where="mid"),
    "stride2_same_relu6": Window(h=7, w=7, stride=(2, 2), act="relu6", in_where="low", out_where="low"),
    "stride2_same_even": Window(h=6, w=8, stride=(2, 2), in_where="high", out_where="low"),
    "stride2_valid": Window(h=7, w=8, stride=(2, 2), padding="VALID", out_where="high"),
    "stride_1x2_kernel_1x3": Window(h=4, w=9, kh=1, stride=(1, 2), cin=5, cout=7),
    "kernel_4x2": Window(kh=4, kw=2, in_where="high", out_where="high"),
    "dilation2_same": Window(h=9, w=8, dilation=(2, 2)),
    "dilation_3x2_valid": Window(h=9, w=8, dilation=(3, 2), padding="VALID", in_where="low"),
    "pointwise": Window(h=4, w=4, cin=17, cout=9, kh=1, kw=1, in_where="low"),
    "pointwise_stride2": Window(h=5, w=5, cin=8, cout=16, kh=1, kw=1, stride=(2, 2)),
    "wide": Window(h=4, w=4, cin=36, cout=20, in_where="mid"),
    "batch3_relu": Window(h=4, w=3, batch=3, act="relu"),
    "relu_n1_to_1": Window(act="relu_n1_to_1", gain=0.5),
    "kernel_beyond_input": Window(h=3, w=2, kh=5, kw=5),
    "one_pixel": Window(h=1, w=1, cin=12, cout=5),
    "single_output_channel": Window(cout=1),
    "no_bias": Window(bias=False),
    "small_multiplier": Window(gain=0.01),
    "multiplier_above_one": Window(cin=1, kh=1, kw=1, gain=300.0),
    "groups2": Window(cin=6, cout=4, groups=2),
    "groups4_stride2": Window(
        h=7, w=7, cin=12, cout=8, groups=4, stride=(2, 2), act="relu", in_where="low", out_where="low"
    ),
}
# For DEPTHWISE_CONV_2D cout is the depth multiplier.
DEPTHWISE_VARIANTS = {
    "same": Window(cin=5, cout=1),
    "valid": Window(cin=8, cout=1, padding="VALID", in_where="mid", out_where="mid"),
    "stride2_same_relu6": Window(h=7, w=7, cin=8, cout=1, stride=(2, 2), act="relu6", in_where="low", out_where="low"),
    "stride2_same_even": Window(h=6, w=8, cin=16, cout=1, stride=(2, 2), in_where="high"),
    "stride2_valid": Window(h=7, w=8, cin=3, cout=1, stride=(2, 2), padding="VALID", out_where="high"),
    "kernel_5x5": Window(cin=4, cout=1, kh=5, kw=5),
    "kernel_4x2_relu": Window(cin=3, cout=1, kh=4, kw=2, act="relu"),
    "multiplier2": Window(cin=3, cout=2),
    "multiplier8_one_channel": Window(h=9, w=5, cin=1, cout=8, kh=5, kw=4, stride=(2, 2), act="relu", in_where="high"),
    "multiplier3_valid": Window(cin=4, cout=3, padding="VALID", in_where="low"),
    "dilation2_same": Window(h=9, w=8, cin=4, cout=1, dilation=(2, 2)),
    "dilation_3x2_valid_multiplier2": Window(h=9, w=8, cin=3, cout=2, dilation=(3, 2), padding="VALID"),
    "batch2": Window(h=4, w=3, cin=9, cout=1, batch=2),
    "kernel_1x1": Window(cin=11, cout=1, kh=1, kw=1),
    "one_pixel": Window(h=1, w=1, cin=33, cout=1),
    "no_bias": Window(cin=4, cout=1, bias=False),
    "small_multiplier": Window(cin=4, cout=1, gain=0.01),
    "relu_n1_to_1": Window(cin=4, cout=1, act="relu_n1_to_1", gain=0.5),
}
TRANSPOSE_VARIANTS = {
    "same": Window(h=4, w=3),
    "stride2_same": Window(h=3, w=4, stride=(2, 2)),
    "stride2_valid": Window(h=3, w=4, stride=(2, 2), padding="VALID", in_where="low", out_where="low"),
    "stride3_kernel2": Window(h=3, w=2, kh=2, kw=2, stride=(3, 3), padding="VALID", in_where="high"),
    "stride_1x2": Window(h=3, w=4, stride=(1, 2), out_where="high"),
    "kernel_4x2_stride2": Window(h=3, w=3, kh=4, kw=2, stride=(2, 2)),
    "relu": Window(h=4, w=3, act="relu"),
    "relu6_stride2": Window(h=3, w=3, stride=(2, 2), act="relu6", in_where="low", out_where="low"),
    "batch2": Window(h=3, w=3, batch=2),
    "wide": Window(h=3, w=3, cin=17, cout=9, stride=(2, 2)),
    "no_bias": Window(h=4, w=3, bias=False, in_where="mid", out_where="mid"),
    "pointwise": Window(h=4, w=4, cin=6, cout=5, kh=1, kw=1),
}
FEW = (
    "same",
    "stride2_same_relu6",
    "stride2_valid",
    "dilation2_same",
    "pointwise",
    "batch3_relu",
    "batch2",
    "multiplier2",
)


def chosen(key: str, variants: dict[str, Window]) -> dict[str, Window]:
    """All variants for the main kinds, a few for the others."""
    if key in ("int8", "uint8", "int16"):
        return variants
    if key == "int8_per_tensor":
        return {n: v for n, v in variants.items() if "gain" not in n and n != "one_pixel"}
    few = {n: v for n, v in variants.items() if n in FEW or n.startswith("groups2")}
    return few if len(few) > 3 else dict(list(variants.items())[:4])


def convolution(operator: str, key: str, variant: str, window: Window) -> Spec:
    """A CONV_2D or DEPTHWISE_CONV_2D case."""
    kind = Kind(key)
    name = f"{operator}/{kind.name}/{kind.suffix}{variant}"
    graph, rng = Graph(), rng_for(name)
    source = activation(kind.activation, where=window.in_where)
    shape_in = (window.batch, window.h, window.w, window.cin)
    x = graph.input(shape_in, kind.activation, source, **near_zero(source, window.gain))
    depthwise = operator == "DEPTHWISE_CONV_2D"
    channels = window.cin * window.cout if depthwise else window.cout
    shape = (1, window.kh, window.kw, channels)
    if not depthwise:
        shape = (channels, window.kh, window.kw, window.cin // window.groups)
    layer = add_weights(
        graph, kind, rng, shape, 3 if depthwise else 0, source, out_where=window.out_where, gain=window.gain,
        with_bias=window.bias,
    )  # fmt: skip
    y = graph.output((window.batch, *window.out_size(), channels), kind.activation, layer.output)
    options = {"depthMultiplier": window.cout} if depthwise else {}
    if kind.bias32 and not depthwise:
        options["quantizedBiasType"] = 2
    (height, width), (dilation_h, dilation_w) = window.stride, window.dilation
    operands = [x, layer.weight] + ([layer.bias] if window.bias else [])
    graph.op(
        operator, operands, [y], padding=window.padding, strideH=height, strideW=width,
        dilationHFactor=dilation_h, dilationWFactor=dilation_w, act=window.act, **options,
    )  # fmt: skip
    return Spec(name, graph)


def transpose_convolution(key: str, variant: str, window: Window) -> Spec:
    """A TRANSPOSE_CONV case."""
    kind = Kind(key)
    name = f"TRANSPOSE_CONV/{kind.name}/{kind.suffix}{variant}"
    graph, rng = Graph(), rng_for(name)
    source = activation(kind.activation, where=window.in_where)
    sizes = [n * s for n, s in zip((window.h, window.w), window.stride, strict=True)]
    if window.padding == "VALID":
        sizes = [n + max(k - s, 0) for n, k, s in zip(sizes, (window.kh, window.kw), window.stride, strict=True)]
    out_shape = (window.batch, *sizes, window.cout)
    target = graph.const(out_shape, "int32", name="output_shape")
    x = graph.input((window.batch, window.h, window.w, window.cin), kind.activation, source)
    shape = (window.cout, window.kh, window.kw, window.cin)
    layer = add_weights(
        graph, kind, rng, shape, 0, source, out_where=window.out_where, gain=window.gain, with_bias=window.bias
    )
    y = graph.output(out_shape, kind.activation, layer.output)
    operands = [target, layer.weight, x] + ([layer.bias] if window.bias else [])
    graph.op(
        "TRANSPOSE_CONV", operands, [y], padding=window.padding, strideH=window.stride[0], strideW=window.stride[1],
        act=window.act, **({"quantizedBiasType": 2} if kind.bias32 else {}),
    )  # fmt: skip
    return Spec(name, graph)


def conv_specs() -> Iterator[Spec]:
    """CONV_2D in every kind."""
    for key in INTEGER_KINDS + FLOAT_KINDS:
        for variant, window in chosen(key, CONV_VARIANTS).items():
            yield convolution("CONV_2D", key, variant, window)


def depthwise_specs() -> Iterator[Spec]:
    """DEPTHWISE_CONV_2D in every kind."""
    for key in INTEGER_KINDS + FLOAT_KINDS:
        for variant, window in chosen(key, DEPTHWISE_VARIANTS).items():
            yield convolution("DEPTHWISE_CONV_2D", key, variant, window)


def transpose_conv_specs() -> Iterator[Spec]:
    """TRANSPOSE_CONV in every kind."""
    for key in INTEGER_KINDS + FLOAT_KINDS:
        for variant, window in chosen(key, TRANSPOSE_VARIANTS).items():
            yield transpose_convolution(key, variant, window)
