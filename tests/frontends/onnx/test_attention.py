"""Attention, QAttention, embeddings and activations of com.microsoft against ONNX Runtime, in float32 accuracy.

The products of QAttention with its weights are integers; attention itself is float in ONNX Runtime too, and sums in
another order.
"""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, ends, full_range, single_op

B, S, D, HEADS, PAST = 2, 5, 12, 3, 4
CLOSE = 5e-6


def masks(rng, total: int) -> dict[str, np.ndarray | None]:
    return {
        "none": None,
        "lengths": np.int32([3, 5]),
        "ends and starts": np.int32([4, 5, 1, 2]),
        "raw": (rng.random((B, total)) > 0.4).astype(np.int32),
        "raw by query": (rng.random((B, S, total)) > 0.4).astype(np.int32),
        "dummy": np.ones((B, 1), np.int32),
    }


MASKS = list(masks(np.random.default_rng(0), S))


def normal(rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_qattention(mask, unidirectional, rng):
    inputs = [
        full_range(rng, np.uint8, B, S, D),
        const(full_range(rng, np.int8, D, 3 * D), np.int8),
        const(normal(rng, 3 * D)),
        const(0.02),
        const(np.linspace(0.01, 0.02, 3 * D)),
        masks(rng, S)[mask],
        const(100, np.uint8),
        const(full_range(rng, np.int8, 3 * D), np.int8),
    ]
    attributes = {"num_heads": HEADS, "unidirectional": unidirectional}
    module = compare("QAttention", inputs, [np.float32], CLOSE, domain=MICROSOFT, **attributes)
    assert "R.qnn.dense" in module.script()


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", ["none", "lengths", "raw"])
def test_qattention_with_past(mask, unidirectional, rng):
    inputs = [
        full_range(rng, np.uint8, B, S, D),
        const(full_range(rng, np.uint8, D, 3 * D), np.uint8),
        const(normal(rng, 3 * D)),
        const(0.02),
        const(0.01),
        masks(rng, S + PAST)[mask],
        const(100, np.uint8),
        const(110, np.uint8),
        normal(rng, 2, B, HEADS, PAST, D // HEADS),
    ]
    attributes = {"num_heads": HEADS, "unidirectional": unidirectional}
    compare("QAttention", inputs, [np.float32] * 2, CLOSE, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask, rng):
    inputs = [normal(rng, B, S, D), const(normal(rng, D, 3 * D)), const(normal(rng, 3 * D)), masks(rng, S)[mask]]
    compare("Attention", inputs, [np.float32], CLOSE, domain=MICROSOFT, num_heads=HEADS, mask_filter_value=-50.0)


def test_attention_with_other_sizes_bias_and_scale(rng):
    weights = const(normal(rng, D, 2 * D + 6)), const(normal(rng, 2 * D + 6))
    inputs = [normal(rng, B, S, D), *weights, None, None, normal(rng, 1, HEADS, S, S)]
    attributes = {"num_heads": HEADS, "qkv_hidden_sizes": [D, D, 6], "scale": 0.2}
    compare("Attention", inputs, [np.float32], CLOSE, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_in_float16(unidirectional, rng):
    """As the tool that fuses attention writes it for float16: computed in float32, then rounded."""

    def half(*shape: int) -> np.ndarray:
        return normal(rng, *shape).astype(np.float16)

    weights = const(half(D, 3 * D), np.float16), const(half(3 * D), np.float16)
    past, bias = half(2, B, HEADS, PAST, D // HEADS), half(1, HEADS, S, S)
    attributes = {"num_heads": HEADS, "unidirectional": unidirectional, "domain": MICROSOFT}
    with_past = [half(B, S, D), *weights, masks(rng, S + PAST)["raw"], past]
    compare("Attention", with_past, [np.float16] * 2, 2.0**-11, **attributes)
    compare("Attention", [half(B, S, D), *weights, None, None, bias], [np.float16], 2.0**-11, **attributes)


def test_attention_refusals_name_the_reason(rng):
    inputs = [normal(rng, B, S, D), const(normal(rng, D, 3 * D)), const(normal(rng, 3 * D))]
    wrong = np.ones((B, 1, S, S), np.int32)
    for extra, attributes, message in (
        ([], {"do_rotary": 1}, "do_rotary"),
        ([wrong], {}, "mask_index of shape"),
        ([], {"past_present_share_buffer": 1}, "past_present_share_buffer"),
    ):
        model, _ = single_op(
            "Attention", [*inputs, *extra], [np.float32], domain=MICROSOFT, num_heads=HEADS, **attributes
        )
        with pytest.raises(UnsupportedOperatorError, match=message):
            qnn_ext.from_onnx(model)


# ---- embeddings --------------------------------------------------------------------------------------------------

WORDS, POSITIONS, SEGMENTS, WIDTH = 30, 9, 2, 16


def ids(rng):
    return [rng.integers(0, n, (B, S)).astype(np.int32) for n in (WORDS, SEGMENTS)]


MASK = np.int32([[1, 1, 1, 0, 0], [1] * S])


def test_embed_layer_normalization(rng):
    tables = [const(normal(rng, n, WIDTH)) for n in (WORDS, POSITIONS, SEGMENTS)]
    weights = const(normal(rng, WIDTH)), const(normal(rng, WIDTH))
    outputs = [np.float32, np.int32, np.float32]
    compare("EmbedLayerNormalization", [*ids(rng), *tables, *weights, MASK], outputs, domain=MICROSOFT)
    positions = rng.integers(0, POSITIONS, (B, S)).astype(np.int32)
    inputs = [ids(rng)[0], None, *tables[:2], None, *weights, None, positions]
    compare("EmbedLayerNormalization", inputs, outputs[:2], domain=MICROSOFT)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [True, False])
def test_qembed_layer_normalization(segments, dtype, rng):
    words, kinds = ids(rng)
    tables = [const(full_range(rng, dtype, n, WIDTH), dtype) for n in (WORDS, POSITIONS, SEGMENTS)]
    weights = [const(full_range(rng, dtype, WIDTH), dtype) for _ in range(2)]
    scales = [const(scale) for scale in (0.1, 0.2, 0.05, 0.01, 0.02)]
    zeros = [const(zero, dtype) for zero in (*ends(dtype), 3, 9)]
    if not segments:
        kinds = tables[2] = scales[2] = zeros[2] = None
    inputs = [words, kinds, *tables, *weights, MASK, *scales, *zeros]
    module = compare("QEmbedLayerNormalization", inputs, [np.float32, np.int32], domain=MICROSOFT)
    assert f'dtype="{np.dtype(dtype)}"' in module.script()


# ---- float kin ---------------------------------------------------------------------------------------------------


def test_skip_layer_normalization(rng):
    data = [normal(rng, B, S, WIDTH) for _ in range(2)]
    weights = [const(normal(rng, WIDTH)) for _ in range(3)]
    compare("SkipLayerNormalization", [*data, *weights], [np.float32], CLOSE, domain=MICROSOFT, epsilon=1e-5)
    compare("SkipSimplifiedLayerNormalization", [*data, *weights[:2]], [np.float32], CLOSE, domain=MICROSOFT)


@pytest.mark.parametrize("op,bias", [("Gelu", 0), ("BiasGelu", 1), ("FastGelu", 0), ("FastGelu", 1), ("QuickGelu", 0)])
def test_activations(op, bias, rng):
    data = 3 * normal(rng, B, S, WIDTH)
    compare(op, [data, const(normal(rng, WIDTH))][: 1 + bias], [np.float32], CLOSE, domain=MICROSOFT)
