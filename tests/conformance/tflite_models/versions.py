"""The operator version a converter writes, by operator, dtypes, ranks and options (TensorFlow's op_version rules).

LiteRT refuses versions above what its kernels know, and importers may refuse unknown ones, so cases carry real
versions.
"""

from __future__ import annotations

from typing import Any


def at_version(version: int, operators: str) -> dict[str, int]:
    """The same version for every operator of a space-separated list."""
    return dict.fromkeys(operators.split(), version)


DTYPE_VERSIONS: dict[str, dict[str, int]] = {
    "int8": {
        **at_version(
            2,
            "AVERAGE_POOL_2D MAX_POOL_2D TRANSPOSE TRANSPOSE_CONV SPLIT SLICE UNPACK DEQUANTIZE ABS RELU "
            "STRIDED_SLICE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR MAXIMUM MINIMUM PACK SPACE_TO_BATCH_ND "
            "BATCH_TO_SPACE_ND ADD SUB MUL TANH LOGISTIC EQUAL NOT_EQUAL LESS GREATER_EQUAL BATCH_MATMUL PAD "
            "PADV2 CONCATENATION SOFTMAX MEAN MIRROR_PAD REDUCE_MAX REDUCE_MIN RELU6 RSQRT ARG_MAX ARG_MIN "
            "SELECT SPACE_TO_DEPTH SPLIT_V SUM LOG_SOFTMAX GREATER LESS_EQUAL SQUARED_DIFFERENCE "
            "DEPTH_TO_SPACE TOPK_V2 EXP LOG REDUCE_PROD GELU GATHER FLOOR_MOD L2_NORMALIZATION",
        ),
        **at_version(3, "CONV_2D DEPTHWISE_CONV_2D SVDF TILE REVERSE_V2 BROADCAST_TO FLOOR_DIV"),
        "FULLY_CONNECTED": 4,
    },
    "uint8": {"ABS": 2, "RELU": 2, "UNPACK": 2, "GELU": 2},
    "int16": {
        **at_version(2, "EXP LOG REDUCE_PROD FLOOR_MOD LEAKY_RELU"),
        **at_version(
            3,
            "AVERAGE_POOL_2D MAX_POOL_2D DEQUANTIZE ABS RELU PACK TANH LOGISTIC LESS GREATER_EQUAL "
            "BATCH_MATMUL PAD PADV2 CONCATENATION SOFTMAX MEAN MIRROR_PAD REDUCE_MAX REDUCE_MIN RELU6 RSQRT "
            "TOPK_V2 BROADCAST_TO FLOOR_DIV GATHER_ND",
        ),
        **at_version(
            4,
            "CONV_2D MUL SPLIT SLICE UNPACK RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR MAXIMUM MINIMUM "
            "SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND EQUAL GATHER",
        ),
        **at_version(5, "TRANSPOSE DEPTHWISE_CONV_2D UNIDIRECTIONAL_SEQUENCE_LSTM"),
        "FULLY_CONNECTED": 7,
    },
    "int32": {"SPLIT": 3, "ABS": 5},
    "int64": {"MUL": 5, "ADD": 4, "SUB": 4, "RANGE": 2},
    "bool": {"GATHER": 3, "TRANSPOSE": 3, "UNPACK": 3, "STRIDED_SLICE": 3, "REVERSE_V2": 2},
    "float32": {"FLOOR_DIV": 2},
    "float16": {"DEQUANTIZE": 3},
}
HIGH_RANK_VERSIONS = {"TRANSPOSE": 4, "SLICE": 5, "STRIDED_SLICE": 4, "PAD": 4, "PADV2": 4, "SELECT": 3}
BROADCAST_5D_VERSIONS = {"MAXIMUM": 3, "MINIMUM": 3, "SUB": 3, "DIV": 2}
DECIDING_INPUT = {"SPLIT": 1, "TRANSPOSE_CONV": 1, "FILL": 1}


def operator_version(
    operator: str, ins: list[str], outs: list[str], facts: dict[str, Any], options: dict[str, Any]
) -> int:
    """Version of `operator` for input and output dtypes; `facts` holds ranks, shapes and quantization of the inputs."""
    if not ins:
        return 1
    dtype = ins[DECIDING_INPUT.get(operator, 0)]
    version = DTYPE_VERSIONS.get(dtype, {}).get(operator, 1)
    rank = max(facts["ranks"], default=0)
    if rank > 4 and operator in HIGH_RANK_VERSIONS:
        version = max(version, HIGH_RANK_VERSIONS[operator])
    if rank > 4 and operator in BROADCAST_5D_VERSIONS and facts["shapes"][0] != facts["shapes"][1]:
        version = max(version, BROADCAST_5D_VERSIONS[operator])
    return max(version, special_version(operator, ins, outs, facts, options))


def special_version(
    operator: str, ins: list[str], outs: list[str], facts: dict[str, Any], options: dict[str, Any]
) -> int:
    """Versions that depend on more than the dtype of the first input and the rank."""
    hybrid = ins[0] == "float32" and len(ins) > 1 and ins[1] == "int8"
    if operator in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        return matrix_version(operator, ins, facts, options, hybrid)
    if operator == "TRANSPOSE_CONV":
        if options.get("quantizedBiasType"):
            return 5
        if options.get("act", "none") != "none":
            return 4
        return 3 if len(ins) == 4 else 1
    if operator in ("SVDF", "BATCH_MATMUL", "UNIDIRECTIONAL_SEQUENCE_LSTM"):
        return sequence_version(operator, ins, options, hybrid)
    if operator in ("ADD", "MUL") and ins[0] == "int16" and not facts["quantized"][0]:
        return 5 if operator == "ADD" else 7
    if operator == "MUL" and facts["quantized"][0]:
        one, two, out = facts["scales"][:3]
        return 3 if one * two / out >= 1 else 1
    if operator in ("ADD", "SUB") and ins[0] == "int16" and not options.get("potScaleInt16", True):
        return 3 if operator == "ADD" else 5
    if operator == "STRIDED_SLICE" and (options.get("ellipsisMask") or options.get("newAxisMask")):
        return 6
    if operator in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        nearest = operator == "RESIZE_NEAREST_NEIGHBOR"
        return 3 if options.get("halfPixelCenters") or (nearest and options.get("alignCorners")) else 1
    return small_version(operator, ins, outs, facts, options)


def small_version(
    operator: str, ins: list[str], outs: list[str], facts: dict[str, Any], options: dict[str, Any]
) -> int:
    """One rule per operator."""
    if operator == "GATHER" and options.get("batchDims"):
        return 5
    if operator == "BROADCAST_TO":
        return 2
    if operator == "GATHER_ND" and ins[0] == "bool":
        return 5
    if operator == "FILL":
        return {"bool": 2, "int8": 3, "int16": 3, "float16": 4}.get(ins[1], 1)
    if operator == "FAKE_QUANT" and options.get("narrowRange"):
        return 2
    if operator in ("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND") and facts["ranks"][0] != 4:
        return 3
    if operator == "DEQUANTIZE" and facts["per_channel"][0]:
        return 5
    if operator == "QUANTIZE" and outs[0] == "int16":
        return 2
    if operator == "CAST":
        wide = {"float64": 5, "float16": 5, "uint16": 4, "int8": 3, "uint32": 2}
        return max(wide.get(ins[0], 1), wide.get(outs[0], 1))
    return 1


def matrix_version(operator: str, ins: list[str], facts: dict[str, Any], options: dict[str, Any], hybrid: bool) -> int:
    """Convolutions and the fully connected layer."""
    per_channel = len(facts["per_channel"]) > 1 and facts["per_channel"][1]
    if operator == "CONV_2D":
        if options.get("quantizedBiasType"):
            return 8
        if facts["shapes"][0][-1] != facts["shapes"][1][-1]:
            return 6
        return (5 if per_channel else 2) if hybrid else 1
    if operator == "DEPTHWISE_CONV_2D":
        if hybrid:
            return 6 if per_channel else 4
        return 2 if max(options.get("dilationHFactor", 1), options.get("dilationWFactor", 1)) > 1 else 1
    if hybrid and per_channel:
        return 12
    if options.get("quantizedBiasType"):
        return 11
    if len(ins) == 2:
        return 6
    if options.get("keepNumDims"):
        return 5
    return (9 if options.get("asymmetricQuantizeInputs") else 3) if hybrid else 1


def sequence_version(operator: str, ins: list[str], options: dict[str, Any], hybrid: bool) -> int:
    """Recurrent layers and the batched matrix product: hybrid kernels raise the version."""
    asymmetric = options.get("asymmetricQuantizeInputs")
    if operator == "UNIDIRECTIONAL_SEQUENCE_LSTM":
        hybrid = ins[0] == "float32" and "int8" in ins[2:3]
        return (3 if asymmetric else 2) if hybrid else 1
    if operator == "SVDF":
        return (4 if asymmetric else 2) if hybrid else 1
    return 4 if hybrid and asymmetric else 1
