"""Rotary embeddings and attention over a cache against ONNX Runtime, over their options, in float32 accuracy."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError, UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, run_ort, single_op

B, S, HEADS, GROUPS, SIZE, ROOM = 2, 3, 4, 2, 32, 9
HALF = SIZE // 2
CLOSE = 5e-6
F32 = np.float32


def normal(rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def tables(length: int, half: int):
    angles = np.outer(np.arange(length), 100.0 ** -(np.arange(half) / half))
    return [const(np.cos(angles)), const(np.sin(angles))]


# ---- rotary embeddings -------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [HALF, HALF // 2])
@pytest.mark.parametrize("form", ["rows", "heads", "first position"])
def test_microsoft_rotary_embedding(form, half, interleaved, rng):
    data = normal(rng, B, HEADS, S, SIZE) if form == "heads" else normal(rng, B, S, HEADS * SIZE)
    positions = np.array([4]) if form == "first position" else rng.integers(0, 12, (B, S))
    attributes = {"interleaved": interleaved}
    if half != HALF:
        attributes |= {"num_heads": HEADS, "rotary_embedding_dim": 2 * half}
    elif form != "heads":
        attributes |= {"num_heads": HEADS}
    compare("RotaryEmbedding", [data, positions, *tables(12, half)], [F32], domain=MICROSOFT, **attributes)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [HALF, HALF // 2])
@pytest.mark.parametrize("form", ["rows", "heads", "no positions"])
def test_rotary_embedding(form, half, interleaved, rng):
    data = normal(rng, B, S, HEADS * SIZE) if form == "rows" else normal(rng, B, HEADS, S, SIZE)
    given = [*tables(12, half), rng.integers(0, 12, (B, S))]
    if form == "no positions":
        given = [normal(rng, B, S, half), normal(rng, B, S, half)]
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": 2 * half if half != HALF else 0}
    attributes |= {"num_heads": HEADS} if form == "rows" else {}
    compare("RotaryEmbedding", [data, *given], [F32], opset=23, **attributes)


@pytest.mark.parametrize("attributes", [{"scale": 2.0}, {"is_packed_batching": 1}])
def test_what_onnx_runtime_does_not_read(attributes, rng):
    data, positions = normal(rng, B, HEADS, S, SIZE), rng.integers(0, 12, (B, S))
    compare("RotaryEmbedding", [data, positions, *tables(12, HALF)], [F32], CLOSE, domain=MICROSOFT, **attributes)


def test_positions_beyond_the_table(rng):
    inputs = [normal(rng, B, S, HEADS * SIZE), np.full((B, S), 3), *tables(12, HALF)]
    model, feed = single_op("RotaryEmbedding", inputs, [F32], domain=MICROSOFT, num_heads=HEADS)
    engine = qnn_ext.build(qnn_ext.from_onnx(model))
    for place in (12, -1, 2**40):
        with pytest.raises(InputError, match=rf"index {place} is out of range 0 … 11"):
            engine.run({**feed, "in1": np.full((B, S), place)})


# ---- GroupQueryAttention -----------------------------------------------------------------------------------------


def grouped(rng, lengths, total, room=ROOM, packed=False, step=S, extra=(), batch=B, **attributes):
    """Inputs and attributes of a step: sample b has lengths[b] tokens with the new ones, the batch `total`."""
    query = normal(rng, batch, step, HEADS * SIZE)
    key, value = normal(rng, batch, step, GROUPS * SIZE), normal(rng, batch, step, GROUPS * SIZE)
    rows = [np.concatenate([query, key, value], axis=2), None, None] if packed else [query, key, value]
    past = [normal(rng, batch, GROUPS, room, SIZE) for _ in range(2)]
    ends = [np.int32(lengths) - 1, np.int32([total]) if room else const([total], np.int32)]
    return [*rows, *past, *ends, *extra], {"num_heads": HEADS, "kv_num_heads": GROUPS, **attributes}


def check_grouped(inputs, attributes, lengths, room=ROOM):
    """The output, and of the caches the part that is filled: behind it they hold anything."""
    model, feed = single_op("GroupQueryAttention", inputs, [F32] * 3, domain=MICROSOFT, **attributes)
    expected = run_ort(model, feed)
    module = qnn_ext.from_onnx(model)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        found = list(runner.run(feed).values())
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=CLOSE * np.abs(expected[0]).max())
        for cache, wanted in zip(found[1:], expected[1:], strict=True):
            assert cache.shape == wanted.shape
            for sample, length in enumerate(lengths):
                np.testing.assert_allclose(cache[sample, :, :length], wanted[sample, :, :length], rtol=0, atol=CLOSE)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "window": {"local_window_size": 2},
    "smooth": {"smooth_softmax": 1},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
def test_group_query_attention(option, packed, rng):
    """One token behind caches of different lengths, as ONNX Runtime decodes."""
    lengths = [5, 8]
    given = grouped(rng, lengths, 8, packed=packed, step=1, **OPTIONS[option])
    check_grouped(*given, lengths)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [HALF, HALF // 2])
@pytest.mark.parametrize("packed", [False, True])
def test_rotated_inside(packed, half, interleaved, rng):
    lengths = [6, 6]
    extra = tables(16, half)
    attributes = {"do_rotary": 1, "rotary_interleaved": interleaved}
    check_grouped(*grouped(rng, lengths, 6, packed=packed, step=1, extra=extra, **attributes), lengths)


@pytest.mark.parametrize("do_rotary", [0, 1])
def test_float16(do_rotary, rng):
    """Computed in float32 over a cache of float16, bit for bit."""
    half = np.float16
    extra = tables(16, HALF) if do_rotary else ()
    inputs, attributes = grouped(rng, [5, 8], 8, step=1, extra=extra, do_rotary=do_rotary)
    inputs = [
        const(item.array, half) if hasattr(item, "array") else item.astype(half) if item.dtype == F32 else item
        for item in inputs
    ]
    model, feed = single_op("GroupQueryAttention", inputs, [half] * 3, domain=MICROSOFT, **attributes)
    found, expected = qnn_ext.Interpreter(qnn_ext.from_onnx(model)).run(feed), run_ort(model, feed)
    for ours, theirs in zip(found.values(), expected, strict=True):
        assert ours.dtype == half
        np.testing.assert_array_equal(ours[:, :, :5], theirs[:, :, :5])


@pytest.mark.parametrize("room", [0, ROOM])
def test_a_prompt(room, rng):
    """The first call, with and without a cache of fixed length; several new tokens behind others."""
    inputs, attributes = grouped(rng, [S, S], S, room=room, extra=tables(16, HALF), do_rotary=1)
    if not room:
        inputs[3] = inputs[4] = None
    check_grouped(inputs, attributes, [S, S])
    if room:
        given = grouped(rng, [7], 7, batch=1, extra=tables(16, HALF), do_rotary=1)
        check_grouped(*given, [7])


def test_a_bias_and_sinks(rng):
    bias, sinks = normal(rng, 1, 1, 1, ROOM), const(normal(rng, HEADS))
    inputs, attributes = grouped(rng, [ROOM, ROOM], ROOM, step=1, extra=[None, None, None, bias, sinks])
    check_grouped(inputs, attributes, [ROOM, ROOM])


def test_a_cache_that_the_engine_keeps(rng):
    """Step by step with past and present as a state, updated in its own memory, until it is full."""
    inputs, attributes = grouped(rng, [1], 1, batch=1, step=1, extra=tables(16, HALF), do_rotary=1)
    model, feed = single_op("GroupQueryAttention", inputs, [F32] * 3, domain=MICROSOFT, **attributes)
    names = [output.name for output in model.graph.output]
    states = {"in3": names[1], "in4": names[2]}
    engine = qnn_ext.build(qnn_ext.from_onnx(model, states=states), num_threads=1)
    layout = engine._variant.program
    assert [(0, offset) for offset in layout.inputs[-2:]] == list(layout.outputs[1:3])
    caches = {name: np.zeros_like(feed[name]) for name in states}
    for step in range(ROOM + 1):
        rows = {name: normal(rng, *feed[name].shape) for name in ("in0", "in1", "in2")}
        given = {**rows, "in5": np.int32([step]), "in6": np.int32([step + 1])}
        if step == ROOM:
            with pytest.raises(InputError, match=r"index 9 is out of range 0 … 8"):
                engine.run(given)
            break
        expected, *new = run_ort(model, {**given, **caches})
        caches = {
            name: np.where(np.arange(ROOM)[:, None] <= step, value, 0) for name, value in zip(states, new, strict=True)
        }
        np.testing.assert_allclose(engine.run(given)[names[0]], expected, rtol=0, atol=2e-6)
    for value, cache in zip(engine.state_values(), caches.values(), strict=True):
        np.testing.assert_allclose(value, cache, rtol=0, atol=CLOSE)


@pytest.mark.parametrize(
    "attributes, message",
    [({"k_quant_type": "PER_TENSOR"}, "k_quant_type"), ({"qk_output": 1}, "qk_output")],
)
def test_what_is_refused_is_named(attributes, message, rng):
    inputs, given = grouped(rng, [5, 5], 5, step=1, **attributes)
    model, _ = single_op("GroupQueryAttention", inputs, [F32] * 3, domain=MICROSOFT, **given)
    with pytest.raises(UnsupportedOperatorError, match=message):
        qnn_ext.from_onnx(model)


def test_heads_that_do_not_fit(rng):
    inputs, given = grouped(rng, [5, 5], 5, step=1)
    model, _ = single_op("GroupQueryAttention", inputs, [F32] * 3, domain=MICROSOFT, **{**given, "num_heads": 5})
    with pytest.raises(ModelFormatError, match="128 columns cannot be divided among 5 heads"):
        qnn_ext.from_onnx(model)


# ---- MultiHeadAttention ------------------------------------------------------------------------------------------


@pytest.mark.one_in(5)
@pytest.mark.parametrize("form", ["separate", "bias", "heads", "past"])
@pytest.mark.parametrize("mask", ["none", "lengths", "raw", "scores", "causal"])
def test_multi_head_attention(mask, form, rng):
    width, length = HEADS * SIZE, S if mask == "causal" else 5
    rows = [normal(rng, B, S, width), normal(rng, B, length, width), normal(rng, B, length, width)]
    past = [None, None]
    if form == "heads":
        rows[1:] = [normal(rng, B, HEADS, length, SIZE) for _ in range(2)]
    if form == "past":
        past = [normal(rng, B, HEADS, 4, SIZE) for _ in range(2)]
    total = length + (4 if form == "past" else 0)
    bias = const(normal(rng, 3 * width)) if form == "bias" else None
    padding = {"lengths": np.int32([2, total]), "raw": (rng.random((B, total)) > 0.4).astype(np.int32)}.get(mask)
    scores = normal(rng, B, HEADS, S, total) if mask == "scores" else None
    attributes = {"num_heads": HEADS, "unidirectional": int(mask == "causal")}
    outputs = [F32] * (3 if form == "past" else 1)
    compare("MultiHeadAttention", [*rows, bias, padding, scores, *past], outputs, CLOSE, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("packed", [2, 3])
def test_packed_heads(packed, rng):
    """ONNX Runtime computes these on GPUs only: what it computes from separate rows."""
    rows = [normal(rng, B, S, HEADS, SIZE) for _ in range(3)]
    separate = [array.reshape(B, S, -1) for array in rows]
    given = [np.stack(rows, axis=3)] if packed == 3 else [separate[0], np.stack(rows[1:], axis=3)]
    models = [
        single_op("MultiHeadAttention", inputs, [F32], domain=MICROSOFT, num_heads=HEADS)
        for inputs in (separate, given)
    ]
    (expected,), (model, feed) = run_ort(*models[0]), models[1]
    found = qnn_ext.Interpreter(qnn_ext.from_onnx(model))(*feed.values())
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


# ---- operator sets 23 and 24 -------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal", "softcap", "past", "past causal", "empty row"])
def test_attention(mask, flat, rng):
    length = 5
    before = 4 if "past" in mask else 0
    shapes = [(HEADS, S), (GROUPS, length), (GROUPS, length)]
    rows = [normal(rng, B, n, h * SIZE) if flat else normal(rng, B, h, n, SIZE) for h, n in shapes]
    given = {
        "bool": rng.random((B, 1, S, length)) > 0.4,
        "float": normal(rng, 1, HEADS, S, length),
        "empty row": np.arange(S)[:, None] * np.ones(length) > 0.5,
    }.get(mask)
    past = [normal(rng, B, GROUPS, before, SIZE) for _ in range(2)] if before else []
    attributes: dict = {"is_causal": int("causal" in mask), "softcap": 1.5 if mask == "softcap" else 0.0}
    attributes |= {"q_num_heads": HEADS, "kv_num_heads": GROUPS} if flat else {}
    outputs = [F32] * (3 if before else 1)
    compare("Attention", [*rows, given, *past], outputs, CLOSE, opset=23, **attributes)


@pytest.mark.parametrize("mask", ["none", "causal", "float", "empty row"])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_attention(mode, mask, rng):
    """Q·Kᵀ, capped, masked, and the softmax, in ONNX Runtime's order."""
    rows = [normal(rng, B, h, n, SIZE) for h, n in [(HEADS, S), (GROUPS, 5), (GROUPS, 5)]]
    given = {"float": normal(rng, S, 5), "empty row": np.arange(S)[:, None] * np.ones(5) > 0.5}.get(mask)
    attributes = {"is_causal": int(mask == "causal"), "softcap": 1.5, "qk_matmul_output_mode": mode}
    proto, feed = single_op("Attention", [*rows, given], [F32] * 4, opset=24, **attributes)
    proto.graph.node[0].output[1:3] = ["", ""]
    del proto.graph.output[1:3]
    expected = run_ort(proto, feed)
    module = qnn_ext.from_onnx(proto)
    for run in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for found, wanted in zip(run.run(feed).values(), expected, strict=True):
            hidden = wanted < -1e30
            np.testing.assert_array_equal(found[hidden], wanted[hidden])
            np.testing.assert_allclose(found[~hidden], wanted[~hidden], rtol=0, atol=CLOSE)


def test_scores_of_an_unknown_mode(rng):
    rows = [normal(rng, B, HEADS, S, SIZE) for _ in range(3)]
    proto, _ = single_op("Attention", rows, [F32] * 4, opset=24, qk_matmul_output_mode=4)
    with pytest.raises(ModelFormatError, match="qk_matmul_output_mode must be from 0 to 3, found 4"):
        qnn_ext.from_onnx(proto)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_over_a_cache(causal, rng):
    """nonpad_kv_seqlen: how many keys of each sample's cache count, with what TensorScatter put there."""
    cache = [normal(rng, B, GROUPS, ROOM, SIZE) for _ in range(2)]
    inputs = [normal(rng, B, HEADS, S, SIZE), *cache, None, None, None, np.array([5, 8])]
    compare("Attention", inputs, [F32], CLOSE, opset=24, is_causal=causal)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("left, right, is_causal", [(1, -1, 0), (-1, 0, 0), (2, 1, 0), (0, 3, 1)])
def test_windows_of_attention(left, right, is_causal, lengths, rng):
    """Of operator set 25: as with a mask of the keys beside each query."""
    cache = [normal(rng, B, GROUPS, ROOM, SIZE) for _ in range(2)]
    counts = np.array([5, 8])
    rows = [normal(rng, B, HEADS, S, SIZE), *cache]
    before = (counts - S if lengths else np.zeros(B, np.int64)).reshape(B, 1, 1, 1)
    place, key = before + np.arange(S)[:, None], np.arange(ROOM)
    seen = (key >= place - left) | (left < 0)
    seen &= (key <= place + right) | (right < 0)
    seen &= (key <= place) | (not is_causal)
    count = counts if lengths else None
    plain, feed = single_op("Attention", [*rows, seen, None, None, count], [F32], opset=24)
    (expected,) = run_ort(plain, feed)
    window = {"left_window_size": left, "right_window_size": right, "is_causal": is_causal}
    proto, feed = single_op("Attention", [*rows, None, None, None, count], [F32], opset=25, **window)
    (found,) = qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run(feed).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("axis, mode", [(-2, "linear"), (1, "circular"), (2, "linear")])
def test_tensor_scatter(axis, mode, rng):
    cache, places = normal(rng, B, 6, 6, SIZE), np.array([0, 4 if mode == "linear" else 5])
    update = normal(rng, B, 2, 6, SIZE) if axis == 1 else normal(rng, B, 6, 2, SIZE)
    compare("TensorScatter", [cache, update, places], [F32], opset=24, axis=axis, mode=mode)


def test_positions_beyond_the_cache(rng):
    inputs = [normal(rng, B, GROUPS, ROOM, SIZE), normal(rng, B, GROUPS, 2, SIZE), np.array([0, 0])]
    model, feed = single_op("TensorScatter", inputs, [F32], opset=24)
    engine = qnn_ext.build(qnn_ext.from_onnx(model))
    for place in (8, -1, 2**62):
        with pytest.raises(InputError, match="is out of range 0 … 8"):
            engine.run({**feed, "in2": np.array([0, place])})


@pytest.mark.parametrize("name, domain", [("SimplifiedLayerNormalization", ""), ("RMSNormalization", "")])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis, name, domain, rng):
    scale = normal(rng, SIZE) if axis == -1 else normal(rng, S, SIZE)
    opset = 23 if name == "RMSNormalization" else 21
    inputs = [normal(rng, B, S, SIZE), const(scale)]
    compare(name, inputs, [F32], CLOSE, domain=domain, opset=opset, axis=axis, epsilon=1e-3)


@pytest.mark.parametrize("name", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
@pytest.mark.parametrize("bias", [False, True])
def test_sums_before_normalization(bias, name, rng):
    scales = [const(normal(rng, SIZE))] + ([const(normal(rng, SIZE))] if name == "SkipLayerNormalization" else [])
    inputs = [normal(rng, B, S, SIZE), normal(rng, B, S, SIZE), *scales, *([const(normal(rng, SIZE))] if bias else [])]
    model, feed = single_op(name, inputs, [F32] * 4, domain=MICROSOFT)
    del model.graph.output[1:3]
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    expected = run_ort(model, feed)
    for found, wanted in zip(qnn_ext.build(qnn_ext.from_onnx(model))(*feed.values()), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
