"""relay.nn.*: layers, in Relay's layouts and with its defaults, on float and integer tensors."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..errors import ShapeError
from ..op.base import normalize_axis, shape_of
from .basic import pad
from .expressions import Call, Op, TupleWrapper
from .geometry import output_channels_first, pair, window_padding
from .lowering import OPERATORS, Context, operator, split_results

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_flatten",
    "batch_matmul",
    "batch_norm",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dropout",
    "global_avg_pool2d",
    "global_max_pool2d",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "max_pool2d",
    "pad",
    "prelu",
    "relu",
    "softmax",
    "upsampling",
]


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _floats(name: str, data: Any) -> None:
    if not _dtype(data).startswith("float"):
        raise ShapeError(f"{name} takes floats, found {_dtype(data)}: cast first, or use the operator of relay.qnn.op")


# ---- products ----------------------------------------------------------------------------------------------------


def _to_nchw(c: Context, data: Any, layout: str) -> Any:
    if layout not in ("NCHW", "NHWC"):
        raise ShapeError(f"data_layout must be NCHW or NHWC, found {layout}: build chooses blocked layouts by itself")
    return data if layout == "NCHW" else c.emit(relax.op.permute_dims(data, [0, 3, 1, 2]))


def _from_nchw(c: Context, result: Any, layout: str) -> Any:
    return result if layout == "NCHW" else relax.op.permute_dims(c.emit(result), [0, 2, 3, 1])


def _to_layout(c: Context, kernel: Any, source: str, target: str) -> Any:
    if sorted(source) != sorted(target):
        raise ShapeError(f"kernel_layout {source} is not supported: a permutation of {target} is")
    return (
        kernel if source == target else c.emit(relax.op.permute_dims(kernel, [source.index(axis) for axis in target]))
    )


@operator("nn.conv2d", operands=2)
def conv2d(
    c: Context,
    data: Any,
    weight: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Any = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Any:
    """Convolution; depthwise kernels are (C, M, H, W) in OIHW and (H, W, C, M) in HWOI."""
    data = _to_nchw(c, data, data_layout)
    weight, layout, _ = output_channels_first(weight, kernel_layout, groups, shape_of(data)[1], c.emit)
    result = relax.op.nn.conv2d(
        data,
        _to_layout(c, weight, layout, "OIHW"),
        pair(strides),
        window_padding(padding),
        pair(dilation),
        groups,
        out_dtype=out_dtype or None,
    )
    return _from_nchw(c, result, data_layout)


@operator("nn.conv1d", operands=2)
def conv1d(
    c: Context,
    data: Any,
    weight: Any,
    strides: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Any = None,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Any:
    """Convolution over one dimension, NCW and OIW."""
    if (data_layout, kernel_layout) != ("NCW", "OIW"):
        raise ShapeError(f"conv1d takes NCW and OIW, found {data_layout} and {kernel_layout}: transpose first")
    return relax.op.nn.conv1d(data, weight, strides, padding, dilation, groups, out_dtype=out_dtype or None)


@operator("nn.conv2d_transpose", operands=2)
def conv2d_transpose(
    c: Context,
    data: Any,
    weight: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Any = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: Any = (0, 0),
    out_dtype: str = "",
) -> Any:
    """Transposed convolution."""
    result = relax.op.nn.conv2d_transpose(
        _to_nchw(c, data, data_layout),
        _to_layout(c, weight, kernel_layout, "IOHW"),
        pair(strides),
        window_padding(padding),
        pair(output_padding),
        pair(dilation),
        groups,
        out_dtype=out_dtype or None,
    )
    return _from_nchw(c, result, data_layout)


@operator("nn.dense", operands=2)
def dense(c: Context, data: Any, weight: Any, units: int | None = None, out_dtype: str = "") -> Any:
    """data · weightᵀ."""
    return relax.op.matmul(data, c.emit(relax.op.permute_dims(weight)), out_dtype or None)


@operator("nn.batch_matmul", operands=2)
def batch_matmul(
    c: Context,
    tensor_a: Any,
    tensor_b: Any,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> Any:
    """One matrix product per sample; the second operand is transposed unless told otherwise."""
    if transpose_a:
        tensor_a = c.emit(relax.op.permute_dims(tensor_a, [0, 2, 1]))
    if transpose_b:
        tensor_b = c.emit(relax.op.permute_dims(tensor_b, [0, 2, 1]))
    return relax.op.matmul(tensor_a, tensor_b, out_dtype or None)


@operator("nn.bias_add", operands=2)
def bias_add(c: Context, data: Any, bias: Any, axis: int = 1) -> Any:
    """data + bias along `axis`."""
    shape = [1] * len(shape_of(data))
    shape[normalize_axis(axis, len(shape))] = -1
    return relax.op.add(data, c.emit(relax.op.reshape(bias, shape)))


# ---- activations -------------------------------------------------------------------------------------------------


@operator("nn.relu")
def relu(c: Context, data: Any) -> Any:
    """max(x, 0)."""
    return relax.op.nn.relu(data)


@operator("nn.leaky_relu")
def leaky_relu(c: Context, data: Any, alpha: float = 0.01) -> Any:
    """x where it is positive, else alpha · x."""
    return relax.op.nn.leakyrelu(data, float(alpha))


@operator("nn.prelu", operands=2)
def prelu(c: Context, data: Any, alpha: Any, axis: int = 1) -> Any:
    """leaky_relu with a slope for each channel."""
    return relax.op.nn.prelu(data, alpha, axis)


@operator("nn.softmax")
def softmax(c: Context, data: Any, axis: int = -1) -> Any:
    """e^x / Σ e^x along `axis`."""
    return relax.op.nn.softmax(data, axis)


@operator("nn.log_softmax")
def log_softmax(c: Context, data: Any, axis: int = -1) -> Any:
    """log(softmax(x))."""
    return relax.op.nn.log_softmax(data, axis)


@operator("nn.dropout")
def dropout(c: Context, data: Any, rate: float = 0.5) -> Any:
    """The data: nothing is dropped at inference."""
    return data


# ---- normalization -----------------------------------------------------------------------------------------------

OPERATORS["nn.batch_norm"] = lambda c, *args, **attrs: split_results(c, relax.op.nn.batch_norm(*args, **attrs))


def batch_norm(
    data: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> TupleWrapper:
    """Batch normalization with the moving statistics, which are the second and third result."""
    args = [data, gamma, beta, moving_mean, moving_var]
    attrs: dict[str, Any] = {"axis": axis, "epsilon": epsilon, "center": center, "scale": scale, "training": False}
    return TupleWrapper(Call(Op("nn.batch_norm"), args, **attrs), 3)


@operator("nn.layer_norm", operands=3)
def layer_norm(
    c: Context,
    data: Any,
    gamma: Any,
    beta: Any,
    axis: int = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Any:
    """Layer normalization over one axis."""
    return relax.op.nn.layer_norm(data, gamma, beta, [axis], epsilon, center, scale)


# ---- windows -----------------------------------------------------------------------------------------------------


@operator("nn.max_pool2d")
def max_pool2d(
    c: Context,
    data: Any,
    pool_size: Any = (1, 1),
    strides: Any = (1, 1),
    dilation: Any = (1, 1),
    padding: Any = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> Any:
    """The largest value of each window."""
    window = pair(pool_size), pair(strides), window_padding(padding), pair(dilation)
    return relax.op.nn.max_pool2d(data, *window, ceil_mode, layout=layout)


@operator("nn.avg_pool2d")
def avg_pool2d(
    c: Context,
    data: Any,
    pool_size: Any = (1, 1),
    strides: Any = (1, 1),
    dilation: Any = (1, 1),
    padding: Any = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Any:
    """The mean of each window of floats."""
    _floats("nn.avg_pool2d", data)
    window = pair(pool_size), pair(strides), window_padding(padding), pair(dilation)
    return relax.op.nn.avg_pool2d(data, *window, ceil_mode, count_include_pad, layout)


@operator("nn.global_avg_pool2d")
def global_avg_pool2d(c: Context, data: Any, layout: str = "NCHW", out_layout: str = "") -> Any:
    """The mean over height and width, which become 1."""
    _floats("nn.global_avg_pool2d", data)
    return relax.op.mean(data, [layout.index("H"), layout.index("W")], keepdims=True)


@operator("nn.global_max_pool2d")
def global_max_pool2d(c: Context, data: Any, layout: str = "NCHW", out_layout: str = "") -> Any:
    """The largest value over height and width, which become 1."""
    return relax.op.max(data, [layout.index("H"), layout.index("W")], keepdims=True)


@operator("nn.adaptive_avg_pool2d")
def adaptive_avg_pool2d(
    c: Context, data: Any, output_size: Any = None, layout: str = "NCHW", out_layout: str = ""
) -> Any:
    """Means over windows chosen so that the result has `output_size`."""
    _floats("nn.adaptive_avg_pool2d", data)
    return relax.op.nn.adaptive_avg_pool2d(data, None if output_size is None else pair(output_size), layout)


@operator("nn.batch_flatten")
def batch_flatten(c: Context, data: Any) -> Any:
    """(N, …) as a matrix with N rows."""
    return relax.op.reshape(data, (shape_of(data)[0], -1))


@operator("nn.upsampling")
def upsampling(
    c: Context,
    data: Any,
    scale_h: float = 1,
    scale_w: float = 1,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Any:
    """Height and width times a factor."""
    methods = {"nearest_neighbor": ("nearest_neighbor", "asymmetric"), "bilinear": ("linear", "half_pixel")}
    if method not in methods:
        raise ShapeError(f"method must be one of {', '.join(methods)}, found {method}")
    kind, transformation = methods[method]
    shape = shape_of(data)
    size = int(shape[layout.index("H")] * scale_h), int(shape[layout.index("W")] * scale_w)
    return relax.op.image.resize2d(
        data,
        size,
        layout=layout,
        method=kind,
        coordinate_transformation_mode="align_corners" if align_corners else transformation,
        rounding_method="floor" if kind == "nearest_neighbor" else "",
    )
