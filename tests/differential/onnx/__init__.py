"""ONNX: random models, against ONNX Runtime's CPU kernels without graph optimizations."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.frontends.onnx import converters  # noqa: F401  (they fill the registry)
from qnn_ext.frontends.onnx.registry import CONVERTERS
from qnn_ext.module import QnnModule

from ..recipe import Case, FrameworkRefuses, Frontend, Oracle
from . import islands, quantized  # noqa: F401  (they fill the registry)
from .builder import GENERATORS, make

FLOAT = "a float operator: tests/frontends/onnx/test_float_nodes.py and test_attention.py compare it with ONNX Runtime"
FUNCTION = "a float function: tests/frontends/onnx/test_float_functions.py compares it with ONNX Runtime"
FLOATS = """
Attention BatchNormalization BiasGelu CastLike Celu Einsum EmbedLayerNormalization EyeLike FastGelu FusedMatMul Gelu
IsInf LayerNormalization Mod Pow QuickGelu RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization
SkipSimplifiedLayerNormalization Swish TransposeMatMul Upsample
"""
GROUPS = "ONNX Runtime subtracts squares of sums, which cancel: tests/frontends/onnx/test_group_norm.py bounds the data"
QONNX = "ONNX Runtime does not have it: tests/frontends/onnx/test_qonnx.py computes its formula"
OLD = "tests/frontends/onnx/test_old_versions.py compares it with ONNX Runtime in its operator sets"
OLDS = "Concat PRelu ReduceL1 ReduceL2 ReduceLogSum ReduceSumSquare Slice"
PLAIN = "an operator of Relax: tests/frontends/onnx/test_plain.py and test_float_nodes.py compare it with its framework"
PLAINS = """
And Ceil Div Equal Greater GreaterOrEqual Less LessOrEqual Log Max Mean Min Not Or Sqrt Squeeze Unsqueeze Xor
"""
SIGNAL = "tests/frontends/onnx/test_signal.py compares it with ONNX Runtime"
SIGNALS = """
BlackmanWindow Col2Im DFT FusedConv FusedGemm HammingWindow HannWindow LpNormalization MelWeightMatrix ReverseSequence
STFT
"""
RECURRENT = "tests/frontends/onnx/test_recurrent.py draws its options and compares it with ONNX Runtime, with bounds"
CACHED = (
    "tests/frontends/onnx/test_cached_attention.py draws its options and compares it with ONNX Runtime, with bounds"
)
PACKED = "tests/frontends/onnx/test_microsoft_nbits.py compares it with ONNX Runtime"
DEPENDENT = "tests/frontends/onnx/test_data_dependent.py compares it, and what follows it, with ONNX Runtime"
EXCLUDED = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "Range", "Unique"), DEPENDENT),
    **dict.fromkeys(("GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "TensorScatter"), CACHED),
    **dict.fromkeys(("ArrayFeatureExtractor", "Scaler"), "tests/frontends/onnx/test_classical.py compares them"),
    "BitCast": "tests/frontends/onnx/test_plain.py compares it with ONNX Runtime",
    **dict.fromkeys(("CDist", "ExpandDims"), "tests/frontends/onnx/test_microsoft.py compares them with ONNX Runtime"),
    "AffineGrid": "tests/frontends/onnx/test_affine_grid.py compares it with ONNX Runtime",
    **dict.fromkeys(("Det", "Inverse"), "tests/frontends/onnx/test_matrices.py compares them with ONNX Runtime"),
    "GatherBlockQuantized": PACKED,
    **dict.fromkeys(("MoE", "QMoE"), "tests/frontends/onnx/test_mixture_of_experts.py compares it with ONNX Runtime"),
    "MatMulBnb4": "tests/frontends/onnx/test_microsoft_bnb4.py compares it with ONNX Runtime",
    **dict.fromkeys(("LSTM", "GRU", "RNN"), RECURRENT),
    **dict.fromkeys(FLOATS.split(), FLOAT),
    **dict.fromkeys(("Cos", "Mish", "ReduceSum", "Selu", "Sin", "Softplus", "Softsign"), FUNCTION),
    **dict.fromkeys(OLDS.split(), OLD),
    **dict.fromkeys(PLAINS.split(), PLAIN),
    **dict.fromkeys(SIGNALS.split(), SIGNAL),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), GROUPS),
    "LRN": "squares overflow: tests/frontends/onnx/test_local_response.py compares it with ONNX Runtime, with bounds",
    **dict.fromkeys(("BipolarQuant", "IntQuant", "Quant", "Trunc"), QONNX),
}


def load(case: Case) -> QnnModule:
    return qnn_ext.from_onnx(case.content)


@cache
def options() -> Any:
    """Runs the file as written: no fusion, one thread, no messages."""
    import onnxruntime as ort

    made = ort.SessionOptions()
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made.intra_op_num_threads = 1
    made.log_severity_level = 4
    return made


def run_ort(case: Case) -> list[list[np.ndarray]]:
    """ONNX Runtime's outputs of every trial."""
    import onnxruntime as ort

    try:
        session = ort.InferenceSession(case.content, options(), providers=["CPUExecutionProvider"])
        return [session.run(None, dict(zip(case.facts["names"], values, strict=True))) for values in case.trials]
    except Exception as error:  # its exceptions have no common base
        raise FrameworkRefuses(str(error)) from error


FRONTEND = Frontend(
    name="onnx",
    operators=tuple(GENERATORS),
    dtypes=("int8", "uint8"),
    make=make,
    load=load,
    supported=tuple(name for _, name in CONVERTERS),
    excluded=EXCLUDED,
    oracles=(Oracle("ONNX Runtime", load, run_ort),),
)
