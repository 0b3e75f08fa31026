"""No operator of a kind for which hostile values matter is forgotten: OPERATORS.md against the cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .cases import CASES

OPERATORS = Path(__file__).parents[2] / "OPERATORS.md"

# Parts of the names of operators that address memory, divide integers, shift, cast, look up or order floats by values
KINDS = re.compile(
    r"gather|scatter|index|(?<!nar)take|embed|one_?hot|div|mod|remainder|shift|(?<!broad)cast(?!_)|quantize(?!d)"
    r"|arg_?m|top_?k|softmax|unpool|roialign|to\.dtype|aten::to$",
    re.IGNORECASE,
)

# Reason -> operators that need no case of their own
WITHOUT = {
    "it shares its converter with an operator that has cases": {
        *("CastLike", "aten.to.dtype", "aten.to.dtype_layout", "aten::to", "aten::index_put_"),
        *("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.Scalar", "aten.softmax.int"),
        *(f"aten.{name}.{of}" for name in ("__lshift__", "__rshift__") for of in ("Scalar", "Tensor")),
        *("aten._softmax.default", "aten.special_softmax.int", "aten._log_softmax.default", "aten.log_softmax.int"),
        *(
            "aten.quantize_per_tensor.default",
            "aten.quantize_per_tensor.tensor_qparams",
            "Cast",
            "cast",
        ),
    },
    "positions known at import, which PyTorch checks at export": {
        *("aten.select_scatter.default", "aten.slice_scatter.default"),
    },
    "positions are checked with run_time.checked_indices: tests/frontends/onnx/test_cached_attention.py": {
        *("RotaryEmbedding", "TensorScatter"),
    },
    "R.nn.softmax of floats, like Softmax": {
        *("aten::softmax", "aten::_softmax", "aten::log_softmax", "aten::_log_softmax", "softmax", "log_softmax"),
        *("Softmax", "SoftmaxActivation", "SoftmaxOutput"),
    },
    "rows are looked up with run_time.checked_indices, as in aten::embedding": {
        *("quantized::embedding_byte", "quantized::embedding_4bit"),
        *("quantized::embedding_bag_byte", "quantized::embedding_bag_4bit"),
        *(f"quantized::embedding_bag_{name}_rowwise_offsets" for name in ("byte", "4bit", "2bit")),
        *(f"quantized.embedding_bag_{name}_rowwise_offsets.default" for name in ("byte", "4bit", "2bit")),
        *("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"),
    },
    "refused but for constants, which PyTorch computes": {
        *("quantized::embedding_bag_prepack", "quantized::embedding_bag_unpack"),
        *(f"quantized::embedding_bag_{x}_{kind}" for x in ("byte", "4bit", "2bit") for kind in ("prepack", "unpack")),
        *(
            f"quantized.embedding_bag_{x}_{kind}.default"
            for x in ("byte", "4bit", "2bit")
            for kind in ("prepack", "unpack")
        ),
    },
    "R.qnn.quantize and R.qnn.dequantize, like QuantizeLinear": {
        *("DEQUANTIZE", "DequantizeLinear", "aten.dequantize.self", "aten::dequantize", "_contrib_dequantize"),
        *("_contrib_quantize_v2", "_contrib_requantize", "torchao.dequantize_affine.default"),
        *("torchao.quantize_affine.default", "aten::quantize_per_tensor"),
        "quantized_decomposed.dequantize_per_channel_group.default",
        *(
            f"quantized_decomposed.{kind}quantize_per_{unit}"
            for kind in ("", "de")
            for unit in ("channel.default", "token.default", "tensor.default")
        ),
        *(
            f"quantized_decomposed.{kind}quantize_per_tensor.{overload}"
            for kind in ("", "de")
            for overload in ("tensor", "tensor2")
        ),
    },
    "divides floats, or is checked by run_time.checked_divisor like Div": {
        *("aten.div.Scalar", "aten.div.Tensor", "aten.true_divide.Tensor", "aten::div", "aten::div_", "_div"),
        *("_div_scalar", "_rdiv_scalar", "broadcast_div", "elemwise_div"),
    },
    "quantizes by a range found at run time, as DynamicQuantizeLinear does": {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
    },
    "a table with an entry for every 8-bit value": {"QLinearSoftmax", "quantized::softmax"},
    "indices are checked by run_time.checked_indices, as in GATHER_ND": {
        *("SCATTER_ND", "EMBEDDING_LOOKUP", "aten::max_unpool2d", "aten.max_unpool2d.default"),
    },
    "k is known at import and checked by run_time.check_count, as in TopK": {"aten::topk", "aten.topk.default"},
    "the bits to shift by are clipped": {"RIGHT_SHIFT"},
    "shifts by no fewer bits than there are give 0: tests/frontends/tflite/test_windows.py": {"STABLEHLO_SHIFT_LEFT"},
    "places outside are moved inside, or dropped, as StableHLO defines: tests/frontends/tflite/test_windows.py": {
        *("STABLEHLO_GATHER", "STABLEHLO_SCATTER"),
    },
    "reads bits as they are": {"BITCAST", "BitCast"},
    "counts positions within a window": {"MaxPoolingWithArgmax2D"},
    "compares positions with those of a window, and drops others": {"MaxUnpooling2D"},
    "no positions: `indexing` is the order of axes": {"aten.meshgrid.indexing"},
    "clips its indices, as MXNet does": {"Embedding", "_contrib_quantized_embedding"},
}


def operators() -> list[str]:
    """Every name of these kinds in OPERATORS.md."""
    names = re.findall(r"(?<![\w`.])[A-Za-z_][\w.:]*(?=[,\n])", OPERATORS.read_text(encoding="utf-8"))
    return sorted({name for name in names if KINDS.search(name)})


@pytest.mark.parametrize("name", operators())
def test_operator_has_a_case_or_a_reason(name):
    known = {part for case in CASES for part in case.split()}
    short = name.removeprefix("aten::").removeprefix("aten.").split(".")[0]
    reasons = [reason for reason, names in WITHOUT.items() if name in names]
    assert name in known or short in known or reasons, f"{name} has no case in tests/hostile"


def test_reasons_are_of_operators_that_exist():
    assert {name for names in WITHOUT.values() for name in names} <= set(operators())
