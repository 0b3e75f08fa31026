"""MatMul and Gemm of floats with a weight that DequantizeLinear has in 2, 4 or 8 bits: ONNX Runtime makes them
MatMulNBits with the accuracy level 4, whose activations are quantized to int8 block by block.

It does not where DequantizeLinear has other readers, where activations, or results right away, are of 8 bits, nor where
results are clipped: there it multiplies integers, or floats with the weight's floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ....numerics.packed import WIDTHS, pack
from ....op import compound
from ....op.base import constant_value
from ....op.blockwise import LONGEST_GROUP
from ..fusions.scaled_product import scaled_matmul
from ..node import Node
from ..reader import Operator
from ..registry import converter
from .arithmetic import cast, plus
from .microsoft_nbits import DTYPES, LEAST_INT8_BLOCK, BlockedWeight, of_int8

_LEAST_BLOCK = 16
_BLOCK = 32  # of a weight with one scale, or one for each column
_MOVES = ("Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")  # that ONNX Runtime quantizes before


@converter("MatMul")
def matmul(node: Node) -> relax.Expr:
    """A · B."""
    product = weight_only_product(node)
    return scaled_matmul(node) if product is None else product


def weight_only_product(node: Node, bias: relax.Expr | None = None) -> relax.Expr | None:
    """A · B + bias where B is such a weight, else None. bias: one number for each column"""
    weight = _weight(node)
    if weight is None or _has_8_bit_activations(node) or _is_left_alone(node):
        return None
    shape, columns = node.shape(0), len(weight.packed)
    rows = cast(node, compound.reshape(node.input(0), (math.prod(shape[:-1]), shape[-1]), node.emit), "float32")
    product = of_int8(node, rows, weight)
    if bias is not None:
        product = plus(node, product, cast(node, compound.reshape(bias, (columns,), node.emit), "float32"))
    return cast(node, compound.reshape(product, (*shape[:-1], columns), node.emit), node.dtype(0))


def _weight(node: Node) -> BlockedWeight | None:
    """Operand B, if it is a matrix dequantized by known numbers that only this node reads."""
    dequantize, transposed = _dequantization(node)
    if dequantize is None or not node.shape(0) or node.dtype(1) not in ("float32", "float16"):
        return None
    if _is_overridable(node, dequantize.inputs) or _is_shared(node, dequantize.inputs[1]):
        return None
    arrays = [constant_value(node.assembly.value(name)) for name in dequantize.inputs if name]
    if any(array is None for array in arrays):
        return None
    values, scale, *zero_point = (array for array in arrays if array is not None)
    dtype = node.assembly.narrow_dtypes.get(dequantize.inputs[0]) or str(values.dtype)
    block = _block(dequantize, values, scale, transposed)
    if dtype not in WIDTHS or block is None or block < LEAST_INT8_BLOCK[WIDTHS[dtype]]:
        return None
    if transposed:
        if WIDTHS[dtype] != 8 and not zero_point:  # which ONNX Runtime does not transpose
            return None
        values = values.T
    bits, (depth, columns) = WIDTHS[dtype], values.shape
    shift = 0 if dtype.startswith("u") else 1 << (bits - 1)  # to unsigned numbers
    zeros = zero_point[0] if zero_point else np.zeros_like(scale, values.dtype)
    blocks = -(-depth // block)
    by_block = [np.broadcast_to(array, (blocks, columns)).T for array in (scale, zeros.astype(np.int16) + shift)]
    return BlockedWeight(
        pack(values.T.astype(np.int16) + shift, DTYPES[bits]),
        np.ascontiguousarray(by_block[0]),
        pack(by_block[1], DTYPES[bits]),
        DTYPES[bits],
        block,
    )


def _dequantization(node: Node) -> tuple[Operator | None, bool]:
    """What dequantizes operand B, and whether that is transposed in between."""
    graph, name, transposed = node.assembly.neighbours, node.input_name(1), False
    while (writer := graph.writers.get(name)) is not None and graph.only_reader(name) is not None:
        if writer.op_type == "DequantizeLinear":
            return writer, transposed
        if writer.op_type == "Transpose" and not transposed and node.op_type == "MatMul":
            transposed = list(writer.attributes.get("perm", [1, 0])) == [1, 0]
        elif writer.op_type != "Identity":
            break
        name = writer.inputs[0]
    return None, False


def _is_overridable(node: Node, names: Sequence[str]) -> bool:
    """Whether values depend on constants that are inputs, too: to ONNX Runtime these are no stored weights."""
    writers, pending, seen = node.assembly.neighbours.writers, list(names), set[str]()
    while pending:
        name = pending.pop()
        if name in node.assembly.model.overridable:
            return True
        if name not in seen and name in writers:
            pending += writers[name].inputs
        seen.add(name)
    return False


def _is_shared(node: Node, scale: str) -> bool:
    """Whether another operator reads the scale, and is not computed when ONNX Runtime loads the model. It makes one of
    all constant numbers that are equal, before it looks for scales that only one operator reads."""
    constants = node.assembly.model.constants

    def readers(name: str) -> list[Operator]:
        found = node.assembly.neighbours.readers.get(name, ())
        return [one for one in found if one.op_type == "DequantizeLinear" or not set(one.inputs) <= constants.keys()]

    value = constants.get(scale)
    if value is None or len(readers(scale)) > 1:
        return value is not None
    if value.ndim:
        return False
    return any(name != scale and readers(name) for name in node.assembly.model.equal_numbers(value))


def _block(dequantize: Operator, values: np.ndarray, scale: np.ndarray, transposed: bool) -> int | None:
    """The length of the blocks along the rows of a matrix; None if it is quantized in another way, or along an axis
    that is counted from the end: ONNX Runtime only reads it so where it moves a Transpose."""
    block, axis = dequantize.attributes.get("block_size", 0), dequantize.attributes.get("axis", 1)
    if values.ndim != 2:
        return None
    if not block:
        axis_of_columns, accepted = (0, (0, -2)) if transposed else (1, (1,))
        of_columns = scale.shape == (values.shape[axis_of_columns],) and axis in accepted
        return _BLOCK if of_columns or not scale.shape else None
    fits = _LEAST_BLOCK <= block <= LONGEST_GROUP and not block & (block - 1) and not transposed
    matches = scale.shape == (-(-values.shape[0] // block), values.shape[1])
    return block if fits and matches and axis == 0 else None


def _has_8_bit_activations(node: Node) -> bool:
    """Whether operand A was dequantized from 8 bits."""
    name = node.input_name(0)
    while (writer := node.assembly.neighbours.writers.get(name)) is not None and writer.op_type in _MOVES:
        name = writer.inputs[0]
    return writer is not None and writer.op_type == "DequantizeLinear" and _bits_8(node, writer.inputs[:1])


def _is_left_alone(node: Node) -> bool:
    """Whether what the one operator that reads the product makes of it keeps ONNX Runtime from replacing it:

    - quantizes it to 8 bits, behind operators that move it or a bias that becomes part of it
    - clips it for a single reader, right away or behind that bias
    - transposes what a Gemm gives, which becomes the product of the transposed operands
    """
    name, is_moved = node.outputs[0], False
    while (reader := _only_reader(node, name)) is not None:
        if reader.op_type == "QuantizeLinear":
            return _bits_8(node, [zero_point for zero_point in reader.inputs[2:] if zero_point])
        if reader.op_type in ("Clip", "Relu"):
            if is_moved:
                return False
            if not _is_dropped(node, reader):
                return _only_reader(node, reader.outputs[0]) is not None
        elif reader.op_type == "Add":
            if node.op_type == "Gemm" or is_moved or not _adds_bias(node, reader) or _has_open_rows(node, reader):
                return False
            is_moved = len(node.shape(0)) != 2  # it becomes a Gemm between two Reshapes
        elif reader.op_type not in _MOVES:
            return False
        else:
            if reader.op_type == "Transpose" and node.op_type == "Gemm" and not is_moved:
                return True
            is_moved = True
        name = reader.outputs[0]
    return False


def _only_reader(node: Node, name: str) -> Operator | None:
    """The one operator that reads a value, not counting Identity."""
    graph = node.assembly.neighbours
    while (reader := graph.only_reader(name)) is not None and reader.op_type == "Identity":
        name = reader.outputs[0]
    return reader


def _is_dropped(node: Node, clip: Operator) -> bool:
    """Whether an operator is a Relu, and the quantization behind it has no negative numbers."""
    reader = _only_reader(node, clip.outputs[0])
    if clip.op_type != "Relu" or reader is None or reader.op_type != "QuantizeLinear" or len(reader.inputs) < 3:
        return False
    zero_point = constant_value(node.assembly.value(reader.inputs[2]))
    return zero_point is not None and zero_point.dtype.kind in "iu" and zero_point == np.iinfo(zero_point.dtype).min


def _adds_bias(node: Node, add: Operator) -> bool:
    """Whether an operand is known at import, dequantized or not."""
    graph, constants = node.assembly.neighbours, node.assembly.constants
    stored = [name in constants or graph.writers.get(name) for name in add.inputs]
    return any(found is True or (found and found.op_type in ("Constant", "DequantizeLinear")) for found in stored)


def _has_open_rows(node: Node, add: Operator) -> bool:
    """Whether operand A has more or fewer than two dimensions, and not all are numbers to ONNX Runtime, which then has
    no shape for the Reshapes around a Gemm: the bias stays an addition. Where the file gives no shape, those of the
    model's inputs decide."""
    if len(node.shape(0)) == 2:
        return False
    model = node.assembly.model
    declared = map(model.declared_shape, (node.input_name(0), node.outputs[0], add.outputs[0]))
    shape = next((shape for shape in declared if shape), None)
    shapes = [one.shape for one in model.inputs] if shape is None else [shape]
    return any(one is None or not all(isinstance(size, int) for size in one) for one in shapes)


def _bits_8(node: Node, names: Sequence[str]) -> bool:
    return all(str(node.assembly.value(name).ty.dtype) in ("int8", "uint8") for name in names)
