"""The builtin options of a TFLite operator as a plain dict, decoded by reflection over the schema's accessor classes.

What an option means to an operator is for the converters to know.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from ...errors import ModelFormatError, QnnError, UnsupportedOperatorError
from .flatbuffer import AbsentTable, CheckedTable, FlatFile, numbers, text

# Fields that the schema types as enums: the generated accessors only return integers.
_ENUM_OF_FIELD = {
    "padding": "Padding",
    "fused_activation_function": "ActivationFunctionType",
    "mode": "MirrorPadMode",
    "kernel_type": "LSTMKernelType",
    "weights_format": "FullyConnectedOptionsWeightsFormat",
    "combiner": "CombinerType",
    "type": "LSHProjectionType",
    "reduce_function": "ReduceWindowFunction",
    "algorithm": "RngAlgorithm",
    "comparison_direction": "StablehloComparisonDirection",
    "compare_type": "StablehloComparisonType",
    "composite_attributes_format": "CustomOptionsFormat",
}
_DTYPE_FIELDS = {
    "in_data_type",
    "out_data_type",
    "output_type",
    "out_type",
    "idx_out_type",
    "quantized_bias_type",
    "key_dtype",
    "value_dtype",
}
# What the schema of LiteRT 2.3 adds to the enums of the installed package.
_NEWER = {
    "TensorType": {19: "INT2", 20: "UINT4", 21: "FLOAT8_E4M3FN", 22: "FLOAT8_E5M2"},
    "QuantizationDetails": {2: "BlockwiseQuantization", 3: "MultiAxisQuantization"},
    "BuiltinOperator": {209: "STABLEHLO_CASE"},
    "BuiltinOptions2": {23: "StablehloCaseOptions"},
}
# Options that the installed package has no class for: the slots of their vectors of int32.
_NEWER_OPTIONS = {"StablehloCaseOptions": {"branch_subgraph_indices": 4}}
# Operators whose options class is not named after them.
_SHARED_OPTIONS = {
    "Pool2DOptions": ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"),
    "ReducerOptions": ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"),
    "MaximumMinimumOptions": ("MAXIMUM", "MINIMUM"),
    "L2NormOptions": ("L2_NORMALIZATION",),
    "Conv3DOptions": ("CONV_3D_TRANSPOSE",),
    "SequenceRNNOptions": ("UNIDIRECTIONAL_SEQUENCE_RNN",),
    "RandomOptions": ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"),
}


def require_schema() -> Any:
    """The `tflite` schema package. Raises QnnError with the pip command when it is not installed."""
    try:
        import tflite
    except ImportError as error:
        raise QnnError("reading .tflite files needs the TFLite schema: pip install 'qnn-ext[tflite]'") from error
    return tflite


@cache
def _names_by_value(enum: str) -> dict[int, str]:
    members = vars(getattr(require_schema(), enum)).items()
    return _NEWER.get(enum, {}) | {value: name for name, value in members if not name.startswith("_")}


def enum_name(enum: str, value: int) -> str:
    """Name of `value` in the schema enum; UnsupportedOperatorError naming the number when the schema has none."""
    try:
        return _names_by_value(enum)[value]
    except KeyError:
        raise UnsupportedOperatorError(
            f"{enum} {value} is unknown to the installed tflite schema package: the file is newer, or corrupt"
        ) from None


def dtype_name(tensor_type: int) -> str:
    """The schema's TensorType as a lower-case dtype name, e.g. 9 -> "int8"."""
    return enum_name("TensorType", tensor_type).lower()


def read_options(file: FlatFile, operator: Any, name: str) -> dict[str, Any]:
    """Every field of the builtin options of `operator` (a checked schema accessor) called `name`.

    Absent fields, and all fields when the file leaves the options out, get the schema's defaults; operators without
    options give {}. Raises ModelFormatError when the file carries another operator's options.
    """
    expected = _options_class(name)
    for union in ("BuiltinOptions", "BuiltinOptions2"):
        kind = enum_name(union, getattr(operator, union + "Type")())
        if kind == "NONE":
            continue
        if expected not in (None, kind):
            raise ModelFormatError(f"it has {kind} where the schema requires {expected}: the file is corrupt")
        return _decode(file, kind, getattr(operator, union)())
    return _decode(file, expected, None) if expected else {}


@cache
def _options_class(operator: str) -> str | None:
    """Name of the options class the schema gives a builtin operator."""
    by_words = {
        kind.removesuffix("Options").lower(): kind
        for union in ("BuiltinOptions", "BuiltinOptions2")
        for kind in _names_by_value(union).values()
        if kind != "NONE"
    }
    shared = {op: kind for kind, ops in _SHARED_OPTIONS.items() for op in ops}
    return shared.get(operator) or by_words.get(operator.replace("_", "").lower())


def _decode(file: FlatFile, kind: str, union: Any) -> dict[str, Any]:
    if kind in _NEWER_OPTIONS:
        table = CheckedTable(file, union.Pos) if union is not None else None
        return {field: table.int32s(slot) if table else () for field, slot in _NEWER_OPTIONS[kind].items()}
    accessor = getattr(require_schema(), kind)()
    if union is None:
        accessor._tab = AbsentTable()
    else:
        accessor.Init(union.Bytes, union.Pos)
        file.table(accessor)
    scalars, vectors = _fields(kind)
    options = {field: _scalar(field, getattr(accessor, method)()) for field, method in scalars.items()}
    options |= {field: numbers(file, accessor, method) for field, method in vectors.items()}
    if union is not None and accessor._tab.has_unread_fields():
        raise UnsupportedOperatorError(
            f"uses fields of {kind} that the installed tflite schema package does not know; update it"
        )
    return options


@cache
def _fields(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """(scalars, vectors) of an options class: schema field name -> accessor method."""
    methods = {name for name, f in vars(getattr(require_schema(), kind)).items() if inspect.isfunction(f)} - {"Init"}
    vectors = {name for name in methods if name + "Length" in methods}
    helpers = {name + suffix for name in vectors for suffix in ("Length", "AsNumpy", "IsNone")}
    return (
        {_snake_case(name): name for name in sorted(methods - vectors - helpers)},
        {_snake_case(name): name for name in sorted(vectors)},
    )


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _scalar(field: str, value: Any) -> Any:
    if field in _ENUM_OF_FIELD:
        return enum_name(_ENUM_OF_FIELD[field], value)
    if field in _DTYPE_FIELDS:
        return dtype_name(value)
    return text(value) if value is None or isinstance(value, bytes) else value
