"""What quantization makes of each operator: one registry, operator -> family.

A family says what happens to values, not how: an operator nobody registered computes in float, between tensors that
others may quantize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from tvm import ir, relax

from ...passes.rewrite import op_name


class Family(Enum):
    """How an operator works on quantized tensors.

    PRODUCT:   multiplies integers and adds them up: both operands are quantized, the result is an int32 accumulator
    SUM:       averages and sums over positions: on integers where its data is quantized
    POINTWISE: each element by itself: in the kernel of what comes before it, or on integers
    MOVE:      moves values or keeps their order: its integers are those of its data
    JOIN:      several tensors in one: shares one scale with those that only it reads
    FLOAT:     everything else
    """

    PRODUCT = "product"
    SUM = "sum"
    POINTWISE = "pointwise"
    MOVE = "move"
    JOIN = "join"
    FLOAT = "float"


# a call, and the functions that shall stay float -> its family
FamilyRule = Callable[[relax.Call, Sequence[str]], Family]
FAMILIES: dict[str, FamilyRule] = {}


def family_rule(*names: str) -> Callable[[FamilyRule], FamilyRule]:
    """Register the decorated rule for these operators."""

    def register(rule: FamilyRule) -> FamilyRule:
        for name in names:
            if name in FAMILIES:
                raise ValueError(f"two families for {name}")
            FAMILIES[name] = rule
        return rule

    return register


def always(family: Family, *names: str) -> None:
    """Register operators that are of one family whatever their attributes are."""
    family_rule(*names)(lambda call, float_functions: family)


always(
    Family.PRODUCT,
    *(f"nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose")),
)
always(
    Family.SUM,
    "mean", "sum", *(f"nn.{kind}avg_pool{rank}d" for kind in ("", "adaptive_") for rank in (1, 2, 3)),
)  # fmt: skip
always(
    Family.POINTWISE,
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negative", "abs", "sign", "square",
    "sqrt", "rsqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "clip",
    "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.prelu", "nn.silu", "nn.selu", "nn.softplus",
)  # fmt: skip
RESHAPES = ("reshape", "flatten", "nn.batch_flatten", "squeeze", "expand_dims")
always(
    Family.MOVE,
    *RESHAPES,
    "permute_dims", "broadcast_to", "strided_slice", "dynamic_strided_slice", "split", "flip", "tile", "repeat",
    "take", "gather_elements", "gather_nd", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "max", "min",
)  # fmt: skip
always(Family.JOIN, "concat", "stack")


@family_rule("matmul")
def _matmul(call: relax.Call, float_functions: Sequence[str]) -> Family:
    return Family.PRODUCT if all(len(arg.ty.shape) for arg in call.args) else Family.FLOAT


@family_rule("nn.pad")
def _pad(call: relax.Call, float_functions: Sequence[str]) -> Family:
    """Padding with zeros has an integer at any scale, as have mirrored values; another value joins the others."""
    zero = str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value) == 0.0
    return Family.MOVE if zero else Family.JOIN


@family_rule("image.resize2d")
def _resize(call: relax.Call, float_functions: Sequence[str]) -> Family:
    """Mean values of neighbours lie between them: they are rounded to the integers of the image."""
    nearest = str(call.attrs.method) == "nearest_neighbor"
    return Family.MOVE if nearest or is_integer_resize(call) else Family.FLOAT


def is_integer_resize(call: relax.Call) -> bool:
    """Whether an image.resize2d is what qnn.resize_bilinear computes: of whole images, positions of a known rule."""
    attributes = call.attrs
    plain = str(attributes.method) == "linear" and all(float(bound.value) == 0.0 for bound in attributes.roi)
    modes = ("half_pixel", "align_corners", "asymmetric")
    return plain and str(attributes.coordinate_transformation_mode) in modes


@family_rule("nn.softmax", "nn.log_softmax")
def _softmax(call: relax.Call, float_functions: Sequence[str]) -> Family:
    return Family.FLOAT if "softmax" in float_functions else Family.SUM


@family_rule("nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm")
def _normalization(call: relax.Call, float_functions: Sequence[str]) -> Family:
    return Family.FLOAT if "layer_norm" in float_functions else Family.SUM


@family_rule("nn.gelu", "nn.gelu_tanh")
def _gelu(call: relax.Call, float_functions: Sequence[str]) -> Family:
    """In float it is computed in the kernel before it; else its data is quantized, which makes a table of it."""
    return Family.POINTWISE if "gelu" in float_functions else Family.SUM


def family_of(value: Any, float_functions: Sequence[str]) -> Family:
    """The family of a bound value."""
    if isinstance(value, relax.TupleGetItem):
        return Family.MOVE
    rule = FAMILIES.get(op_name(value))
    return Family.FLOAT if rule is None else rule(value, float_functions)


def data_of(value: Any) -> Any:
    """The operand whose values a MOVE moves."""
    return value.tuple_value if isinstance(value, relax.TupleGetItem) else value.args[0]


def is_constant(expr: Any) -> bool:
    """Whether an operand is a constant."""
    return isinstance(expr, ir.expr.GenericConst)
