"""Float convolutions and products: Conv, ConvTranspose, Gemm, Einsum, Col2Im. Passes make integers of them."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ....limits import charge
from ....op.base import constant, constant_value, shape_of
from ....passes.marks import Mark
from ..fusions.chain import Chain
from ..node import Node
from ..registry import MICROSOFT, converter
from .activations import activation
from .geometry import window
from .weight_only import weight_only_product

_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


def _spatial_rank(node: Node) -> int:
    data, weight = node.shape(0), node.shape(1)
    if len(data) != len(weight):
        raise node.malformed(f"data of shape {data} and weights of shape {weight} differ in rank")
    if len(data) - 2 not in _LAYOUTS:
        raise node.unsupported(f"data of shape {data}; supported: 1, 2 and 3 spatial dimensions")
    return len(data) - 2


def _with_bias(node: Node, product: relax.Expr, rank: int) -> relax.Expr:
    if not node.has_input(2):
        return product
    channels = shape_of(node.emit(product))[1]
    if node.shape(2) != (channels,):
        raise node.malformed(f"the bias has shape {node.shape(2)}, expected ({channels},)")
    bias = node.emit(relax.op.reshape(node.input(2), (1, channels, *(1,) * rank)))
    return relax.op.add(node.emit(product), bias)


@converter("Conv")
def conv(node: Node) -> relax.Expr:
    """Convolution over 1, 2 or 3 dimensions, padded with zeros, plus the bias."""
    product, rank = _convolved(node, node.input(1))
    return _with_bias(node, product, rank)


def _convolved(node: Node, weight: relax.Expr) -> tuple[relax.Expr, int]:
    """The convolution without its bias, and its number of dimensions."""
    rank = _spatial_rank(node)
    geometry = window(node, node.shape(0)[2:], node.shape(1)[2:])
    operator = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[rank - 1]
    data_layout, kernel_layout, _ = _LAYOUTS[rank]
    product = operator(
        node.input(0),
        weight,
        strides=geometry.strides,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=node.attribute("group", 1),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
    )
    return node.emit(product), rank


@converter("FusedConv", domain=MICROSOFT)
def fused_conv(node: Node) -> relax.Expr:
    """A convolution plus its bias, plus a tensor of its shape if there is one, through an activation."""
    result = node.emit(conv(node))
    if node.has_input(3):
        result = node.emit(relax.op.add(result, node.input(3)))
    return _activated(node, result, node.attribute("activation_params", []))


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node) -> relax.Expr:
    """Gemm through an activation."""
    names = [f"activation_{name}" for name in ("alpha", "beta", "gamma")]
    return _activated(node, node.emit(gemm(node)), [node.attribute(name) for name in names if name in node.attributes])


def _activated(node: Node, x: relax.Expr, parameters: list[float]) -> relax.Expr:
    name = str(node.attribute("activation", ""))
    if name.lower() == "clip":
        if len(parameters) != 2:
            raise node.malformed(f"the activation Clip needs its two bounds, found {parameters}")
        return relax.op.clip(x, *map(float, parameters))
    return activation(node, name, parameters)(x) if name else x


@converter("ConvTranspose")
def conv_transpose(node: Node) -> relax.Expr:
    """Transposed convolution over 1, 2 or 3 dimensions plus the bias."""
    product, rank = _transposed(node, node.input(1))
    return _with_bias(node, product, rank)


def normalized_convolution(node: Node) -> relax.Expr | None:
    """A BatchNormalization that alone reads a convolution, transposed or not, where all but the data is constant: ONNX
    Runtime has it in the weights and the bias of the convolution. None for others."""
    chain, source = Chain(node), node.operator.inputs[0]
    operator = chain.only(source, "ConvTranspose") or chain.only(source, "Conv")
    factors = [constant_value(value) for value in node.inputs[1:5] if value is not None]
    if operator is None or any(factor is None or factor.dtype != np.float32 for factor in factors):
        return None
    product = Node(node.assembly, operator)
    weight, bias = (constant_value(value) for value in (product.input(1), *product.inputs[2:], None)[:2])
    scale, shift, mean, variance = (np.asarray(factor) for factor in factors)
    is_transposed, channels = operator.op_type == "ConvTranspose", scale.size
    groups = product.attribute("group", 1) if is_transposed else channels
    if weight is None or weight.dtype != np.float32 or (product.has_input(2) and bias is None):
        return None
    with np.errstate(all="ignore"):  # the model's own arithmetic
        factor = scale / np.sqrt(variance + np.float32(node.attribute("epsilon", 1e-5)))
        shift = shift - mean * factor if bias is None else (bias - mean) * factor + shift
        of_groups = weight.reshape(groups, -1, channels // groups, *weight.shape[2:])
        scaled = of_groups * factor.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))
    convolved = _transposed if is_transposed else _convolved
    result, rank = convolved(product, constant(scaled.reshape(weight.shape)))
    added = constant(shift.reshape(1, channels, *(1,) * rank))
    return relax.op.add(node.emit(result), added)


def _transposed(node: Node, weight: relax.Expr) -> tuple[relax.Expr, int]:
    """The transposed convolution without its bias, and its number of dimensions."""
    rank = _spatial_rank(node)
    spatial, kernel = node.shape(0)[2:], node.shape(1)[2:]
    if list(node.attribute("kernel_shape", kernel)) != list(kernel):
        raise node.malformed(
            f"kernel_shape is {node.attribute('kernel_shape')}, but the weights have a kernel of {kernel}"
        )
    strides, dilation = (tuple(node.attribute(name, (1,) * rank)) for name in ("strides", "dilations"))
    if len(strides) != rank or len(dilation) != rank or min(*strides, *dilation) < 1:
        raise node.malformed(f"strides and dilations must be {rank} positive integers")
    padding, extra = _transposed_padding(node, spatial, kernel, strides, dilation)
    operator = (relax.op.nn.conv1d_transpose, relax.op.nn.conv2d_transpose, relax.op.nn.conv3d_transpose)[rank - 1]
    data_layout, _, kernel_layout = _LAYOUTS[rank]
    product = operator(
        node.input(0),
        weight,
        strides=strides,
        padding=padding,
        output_padding=extra,
        dilation=dilation,
        groups=node.attribute("group", 1),
        data_layout=data_layout,
        kernel_layout=kernel_layout,
    )
    return node.emit(product), rank


def _transposed_padding(
    node: Node, spatial: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """(all beginnings, then all ends; rows and columns added at the ends), as the specification derives them."""
    rank = len(spatial)
    extra = list(node.attribute("output_padding", [0] * rank))
    mode = node.attribute("auto_pad", "NOTSET")
    target = node.attribute("output_shape")
    if target is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        target = [size * stride for size, stride in zip(spatial, strides, strict=True)]
    if target is None:
        pads = list(node.attribute("pads", [0] * (2 * rank))) if mode == "NOTSET" else [0] * (2 * rank)
    else:
        target = list(target)[-rank:]
        low, high = [], []
        for axis in range(rank):
            reach = strides[axis] * (spatial[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilation[axis] + 1
            total = reach - target[axis]
            if total < 0:  # the result extends beyond what the windows reach: the rest is output padding
                extra[axis] -= total
                total = 0
            less, more = total // 2, total - total // 2
            low.append(less if mode == "SAME_UPPER" else more)
            high.append(more if mode == "SAME_UPPER" else less)
        pads = low + high
    fits = len(pads) == 2 * rank and len(extra) == rank and min(pads + extra) >= 0
    if not fits or any(e >= max(s, d) for e, s, d in zip(extra, strides, dilation, strict=True)):
        raise node.unsupported(f"pads {pads} with output padding {extra} for strides {list(strides)}")
    return pads, extra


@converter("Gemm")
def gemm(node: Node) -> relax.Expr:
    """Y = alpha · A' · B' + beta · C, where a prime means transposed if the attribute says so."""
    if (product := _weight_only(node)) is not None:
        return product
    sides = []
    for index, name in enumerate(("transA", "transB")):
        if len(node.shape(index)) != 2:
            raise node.malformed(f"input {index} must be a matrix, found shape {node.shape(index)}")
        side = node.input(index)
        sides.append(node.emit(relax.op.permute_dims(side, [1, 0])) if node.attribute(name, 0) else side)
    product = node.emit(relax.op.matmul(*sides))
    dtype = np.dtype(str(product.ty.dtype))
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if alpha != 1.0:
        product = node.emit(relax.op.multiply(product, constant(np.asarray(alpha, dtype))))
    if not node.has_input(2) or beta == 0.0:
        return product
    summand = node.input(2)
    if beta != 1.0:
        summand = node.emit(relax.op.multiply(summand, constant(np.asarray(beta, dtype))))
    total = relax.op.add(product, summand)
    return node.assembly.emit_marked(total, node.outputs[0], Mark.SCALED_PRODUCT) if alpha != 1.0 else total


def _weight_only(node: Node) -> relax.Expr | None:
    """The product with a weight of few bits; None for one that is none, or that has factors or transposed operands."""
    factors = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if node.attribute("transA", 0) or node.attribute("transB", 0) or factors != (1.0, 1.0):
        return None
    if not node.has_input(2):
        return weight_only_product(node)
    is_bias = node.shape(2) in (node.shape(1)[1:], (1, *node.shape(1)[1:]))
    return weight_only_product(node, node.input(2)) if is_bias else None


@converter("Col2Im", since=18)
def col2im(node: Node) -> relax.Expr:
    """Windows, added up where they lie in the image: a transposed convolution of each channel with ones at the places
    of its window."""
    image, kernel = node.integers(1), node.integers(2)
    shape, size = node.shape(0), math.prod(kernel)
    if len(image) != 2 or len(kernel) != 2:
        raise node.unsupported(f"an image of shape {image} and a window of shape {kernel}; supported: two dimensions")
    if len(shape) != 3 or min(*image, *kernel) < 1 or shape[1] % size:
        raise node.malformed(f"data of shape {shape} for windows of shape {kernel}")
    geometry = window(node, image, kernel)
    low, high = geometry.padding[:2], geometry.padding[2:]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, geometry.dilation, strict=True)]
    room = [n + a + b - r for n, a, b, r in zip(image, low, high, reach, strict=True)]
    blocks = [free // stride + 1 for free, stride in zip(room, geometry.strides, strict=True)]
    if min(room) < 0 or math.prod(blocks) != shape[2]:
        raise node.malformed(f"{shape[2]} windows of shape {kernel} do not match an image of shape {image}")
    channels = shape[1] // size
    charge((shape[1], size), node.label)
    places = np.tile(np.eye(size, dtype=node.dtype(0)), (channels, 1)).reshape(shape[1], 1, *kernel)
    return relax.op.nn.conv2d_transpose(
        node.emit(relax.op.reshape(node.input(0), (shape[0], shape[1], *blocks))),
        constant(places),
        strides=geometry.strides,
        padding=geometry.padding,
        output_padding=[free % stride for free, stride in zip(room, geometry.strides, strict=True)],
        dilation=geometry.dilation,
        groups=channels,
        data_layout="NCHW",
        kernel_layout="IOHW",
    )


@converter("Einsum")
def einsum(node: Node) -> relax.Expr:
    """Sum of products over the letters that the result drops. A product of two operands with leading batch letters,
    "…ik,…kj->…ij" in any order of letters, becomes a matmul."""
    equation = node.attribute("equation", "").replace(" ", "")
    operands = [node.input(index) for index in range(len(node.inputs))]
    product = _as_matmul(node, equation, operands) if len(operands) == 2 else None
    return product if product is not None else relax.op.einsum(operands, equation)


def _as_matmul(node: Node, equation: str, operands: list[relax.Expr]) -> relax.Expr | None:
    """The equation as permute → reshape → matmul → reshape → permute; None unless it is a plain product of two. The
    mark says that ONNX Runtime multiplies quantized tensors in float here."""
    terms, arrow, result = equation.partition("->")
    left, comma, right = terms.partition(",")
    letters = [left, right, result]
    if not arrow or not comma or any("." in term or len(set(term)) != len(term) for term in letters):
        return None
    shapes = [shape_of(operand) for operand in operands]
    if any(len(shape) != len(term) for shape, term in zip(shapes, letters[:2], strict=True)):
        raise node.malformed(f"the equation {equation} does not match shapes {shapes[0]} and {shapes[1]}")
    sizes = dict(zip(left, shapes[0], strict=True)) | dict(zip(right, shapes[1], strict=True))
    if any(
        sizes[letter] != size
        for term, shape in zip(letters, shapes, strict=False)
        for letter, size in zip(term, shape, strict=True)
    ):
        return None  # broadcasting within a letter
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in result if c in left and c not in right]
    columns = [c for c in result if c in right and c not in left]
    inner = [c for c in left if c in right and c not in result]
    if len(batch) + len(rows) + len(columns) != len(result) or not inner:
        return None
    if sorted(left) != sorted(batch + rows + inner) or sorted(right) != sorted(batch + columns + inner):
        return None  # a letter that occurs in only one operand is summed out

    def arranged(operand: relax.Expr, term: str, *groups: list[str]) -> relax.Expr:
        order = [term.index(letter) for letter in (*batch, *groups[0], *groups[1])]
        moved = node.emit(relax.op.permute_dims(operand, order))
        shape = (*(sizes[c] for c in batch), *(math.prod(sizes[c] for c in group) for group in groups))
        return node.emit(relax.op.reshape(moved, shape))

    product = relax.op.matmul(arranged(operands[0], left, rows, inner), arranged(operands[1], right, inner, columns))
    computed = [*batch, *rows, *columns]
    computed_in_float = node.assembly.emit_marked(product, node.outputs[0], Mark.PRODUCT)
    spread = node.emit(relax.op.reshape(computed_in_float, tuple(sizes[c] for c in computed)))
    return relax.op.permute_dims(spread, [computed.index(letter) for letter in result])
