"""TFLite: random files, LiteRT's reference kernels and its XNNPACK delegate."""

from __future__ import annotations

import numpy as np

import qnn_ext
from qnn_ext.frontends.tflite.importer import CONVERTERS
from qnn_ext.module import QnnModule
from tests.conformance.tflite_models.runner import invoke, isolated

from ..recipe import Case, FrameworkRefuses, Frontend, Oracle
from . import elementwise, moves, products, recurrent, windows  # noqa: F401  (they fill the registry)
from .builder import GENERATORS, make

_SEGMENTS = ("SUM", "PROD", "MAX", "MIN")
SIGNALS = """
Delay Energy FftAutoScale FilterBank FilterBankLog FilterBankSpectralSubtraction FilterBankSquareRoot Framer Irfft
OverlapAdd PCAN Rfft Stacker Window
"""
EXCLUDED = {
    "TFLite_Detection_PostProcess": "LiteRT does not sort equal scores stably; tests/conformance has cases for it",
    **dict.fromkeys(
        ("RFFT2D", "REAL", "IMAG", "COMPLEX_ABS"),
        "sums that cancel depend on their order; tests/frontends/tflite/test_fourier.py compares the others",
    ),
    **dict.fromkeys(
        ("AudioSpectrogram", "Mfcc"), "custom operators; tests/frontends/tflite/test_audio.py compares them"
    ),
    **dict.fromkeys(
        map("Signal{}".format, SIGNALS.split()),
        "only TensorFlow Lite Micro has them; tests/frontends/tflite/test_signal.py compares its answers",
    ),
    "Convolution2DTransposeBias": "only XNNPACK has it; tests/frontends/tflite/test_transpose_conv.py compares it",
    **dict.fromkeys(
        ("IF", "STABLEHLO_CASE", "WHILE"),
        "they run graphs of their own; tests/frontends/tflite/test_control_flow.py compares them",
    ),
    **dict.fromkeys(
        (
            f"{prefix}TensorList{name}"
            for prefix in ("", "Flex")
            for name in ("FromTensor", "GetItem", "Length", "Reserve", "Stack")
        ),
        "LiteRT has no kernels for them; tests/frontends/tflite/test_control_flow.py compares the same layer without",
    ),
    **dict.fromkeys(
        ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"), "float; tests/frontends/tflite/test_sequence_rnn.py compares them"
    ),
    "LSTM": "one step of a sequence; tests/frontends/tflite/test_lstm.py and test_sequence_rnn.py compare it",
    **dict.fromkeys(
        ("BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN"),
        "float; tests/frontends/tflite/test_bidirectional.py compares them",
    ),
    **dict.fromkeys(
        (
            *("BITWISE_XOR", "CALL", "DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "MATRIX_DIAG", "MATRIX_SET_DIAG"),
            *("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "REVERSE_SEQUENCE", "RIGHT_SHIFT", "SCATTER_ND"),
            *("BUCKETIZE", "CONV_3D", "CONV_3D_TRANSPOSE", "SPARSE_TO_DENSE"),
            *(f"UNSORTED_SEGMENT_{kind}" for kind in _SEGMENTS),
        ),
        "tests/frontends/tflite/test_updates.py compares them",
    ),
    **dict.fromkeys(
        (
            *("ATAN2", "BITCAST", "DILATE", "REDUCE_WINDOW", "SEGMENT_SUM", "STABLEHLO_AND", "STABLEHLO_GATHER"),
            *("STABLEHLO_PAD", "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SCATTER", "STABLEHLO_SHIFT_LEFT"),
            *(f"STABLEHLO_{name}" for name in ("ADD", "MAXIMUM", "MINIMUM", "MULTIPLY")),
        ),
        "tests/frontends/tflite/test_windows.py compares them",
    ),
    **dict.fromkeys(
        (
            *("Landmarks2TransformMatrix", "MaxPoolingWithArgmax2D", "MaxUnpooling2D", "TransformLandmarks"),
            "TransformTensorBilinear",
        ),
        "LiteRT has no kernels for them; tests/frontends/tflite/test_mediapipe.py compares them",
    ),
    **dict.fromkeys(("UNIQUE", "WHERE"), "tests/frontends/tflite/test_data_dependent.py compares them"),
    "STABLEHLO_COMPOSITE": "it runs a graph of its own; tests/frontends/tflite/test_state.py compares it",
    "DENSIFY": "its input is always a sparse constant; tests/frontends/tflite/test_sparsity.py compares these",
}
ROUND_OTHERWISE = {  # in LiteRT's builtin kernels
    "ADD", "CONV_2D", "DEPTHWISE_CONV_2D", "DEQUANTIZE", "DIV", "FULLY_CONNECTED", "LOGISTIC", "MEAN", "MUL",
    "QUANTIZE", "RESIZE_BILINEAR", "SOFTMAX", "SUB", "SUM", "TANH", "TRANSPOSE_CONV",
}  # fmt: skip


def load(case: Case, numerics: str = "tflite") -> QnnModule:
    return qnn_ext.from_tflite(case.content, numerics=numerics)


def run_litert(case: Case, kernels: str) -> list[list[np.ndarray]]:
    """LiteRT's outputs of every trial; in its own process where scales are extreme, which makes LiteRT abort."""
    if case.facts["scales"] == "extreme":
        outputs, error = isolated(case.content, case.trials, kernels, case.stateful)
        if outputs is None:
            raise FrameworkRefuses(error)
        return outputs
    try:
        return invoke(case.content, case.trials, kernels, case.stateful)
    except (RuntimeError, ValueError) as error:
        raise FrameworkRefuses(str(error)) from error


def run_reference(case: Case) -> list[list[np.ndarray]]:
    """The reference kernels, or, where there is none, the builtin ones without XNNPACK, unless the operators round
    differently there."""
    try:
        return run_litert(case, "reference")
    except FrameworkRefuses as error:
        if "Didn't find op" not in str(error) or case.operators.keys() & ROUND_OTHERWISE:
            raise
        return run_litert(case, "builtin")


# Operators that XNNPACK has for 8 bits, and those that only move values, in whichever kernel: LiteRT runs the others in
# its builtin kernels, whose rounding numerics="float32" does not reproduce
XNNPACK = {
    "ADD", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "EXPAND_DIMS", "FULLY_CONNECTED", "MAX_POOL_2D", "MUL",
    "PACK", "PAD", "RESHAPE", "SLICE", "SPLIT", "SQUEEZE", "STRIDED_SLICE", "SUB", "TRANSPOSE", "UNPACK",
}  # fmt: skip


def load_float32(case: Case) -> QnnModule:
    return load(case, "float32")


def run_xnnpack(case: Case) -> list[list[np.ndarray]]:
    return run_litert(case, "default")


def of_xnnpack(case: Case) -> bool:
    """Whether XNNPACK computes everything that rounds. It limits scales, and beyond its limits builtin kernels stand
    in, as they do for some uint8 depthwise convolutions, which then equal numerics="tflite" bit for bit."""
    dtypes = {array.dtype.name for array in case.trials[0]}
    operators = XNNPACK - {"DEPTHWISE_CONV_2D"} if "uint8" in dtypes else XNNPACK
    return case.operators.keys() <= operators and dtypes <= {"int8", "uint8"} and case.facts["scales"] != "extreme"


FRONTEND = Frontend(
    name="tflite",
    operators=tuple(GENERATORS),
    dtypes=("int8", "int8", "uint8", "int16"),
    make=make,
    load=load,
    supported=tuple(CONVERTERS),
    excluded=EXCLUDED,
    oracles=(
        Oracle("LiteRT reference", load, run_reference),
        Oracle("LiteRT with XNNPACK", load_float32, run_xnnpack, of_xnnpack),
    ),
)
