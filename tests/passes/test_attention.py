"""Attention over a cache, as frontends write it, becomes one kernel; any other stays as it is."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import qnn_ext

ROOM, HEADS, GROUPS, SIZE = 24, 4, 2, 16


def group_query(count, **attributes):
    """GroupQueryAttention over a cache that is a state."""
    value, floats = helper.make_tensor_value_info, TensorProto.FLOAT
    angles = np.outer(np.arange(ROOM), 0.5 ** np.arange(SIZE // 2))
    constants = {"cos": np.cos(angles), "sin": np.sin(angles)}
    protos = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    protos.append(numpy_helper.from_array(np.array(ROOM, np.int32), "total"))
    names = ["qkv", "", "", "past.key", "past.value", "last", "total", "cos", "sin"]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1, **attributes}
    outputs = ["y", "present.key", "present.value"]
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes)
    cache = [1, GROUPS, ROOM, SIZE]
    inputs = [value("qkv", floats, [1, count, (HEADS + 2 * GROUPS) * SIZE])]
    inputs += [value(name, floats, cache) for name in names[3:5]] + [value("last", TensorProto.INT32, [1])]
    results = [value("y", floats, [1, count, HEADS * SIZE]), *(value(name, floats, cache) for name in outputs[1:])]
    graph = helper.make_graph([node], "attention", inputs, results, protos)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def kernels(engine):
    return [kernel.operators for kernel in engine.kernels]


@pytest.mark.parametrize("count", [1, 5])
def test_group_query_attention(count, rng):
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = group_query(count)
    engine = qnn_ext.build(qnn_ext.from_onnx(proto, states={"past.*": "present.*"}), num_threads=1)
    assert "attention" in kernels(engine) and not any("matmul" in name for name in kernels(engine))
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    cache = {f"past.{name}": rng.normal(size=(1, GROUPS, ROOM, SIZE)).astype(np.float32) for name in ("key", "value")}
    for before in (0, 3, ROOM - count):
        qkv = rng.normal(size=(1, count, (HEADS + 2 * GROUPS) * SIZE)).astype(np.float32)
        last = np.array([before + count - 1], np.int32)
        engine.set_states(list(cache.values()))
        expected = session.run(None, {"qkv": qkv, "last": last, **cache})
        np.testing.assert_allclose(engine(qkv, last), expected[0], rtol=0, atol=1e-5)
        for found, wanted in zip(engine.state_values(), expected[1:], strict=True):
            filled = slice(before + count)  # ONNX Runtime clears the rest
            np.testing.assert_allclose(found[:, :, filled], wanted[:, :, filled], rtol=0, atol=1e-6)


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"local_window_size": 3}, {"smooth_softmax": 1}])
def test_other_attention(attributes, rng):
    """Scores or masks of another form stay in steps."""
    engine = qnn_ext.build(qnn_ext.from_onnx(group_query(2, **attributes), states={"past.*": "present.*"}))
    assert "attention" not in kernels(engine)


def test_targets_without_a_multiply_add():
    module = qnn_ext.from_onnx(group_query(1), states={"past.*": "present.*"})
    assert "attention" not in kernels(qnn_ext.build(module, "x86-64", code=False))
    assert "attention" in kernels(qnn_ext.build(module, "rpi4", code=False))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_pytorch(dtype, rng):
    """A static cache in buffers of any dtype, read through a mask that is computed from the positions."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("keys", "values"):
                self.register_buffer(name, torch.zeros(1, GROUPS, ROOM, SIZE, dtype=kind))

        def forward(self, query, key, value, positions):
            mask = torch.arange(ROOM) <= positions[:, None]
            cache = []
            for held, new in ((self.keys, key), (self.values, value)):
                held.index_copy_(2, positions, (torch.round(new * 32) if dtype == "int8" else new).to(kind))
                cache.append(held.float() / 32 if dtype == "int8" else held.float())
            return torch.nn.functional.scaled_dot_product_attention(query, *cache, attn_mask=mask, enable_gqa=True)

    model = Attention()
    shapes = (1, HEADS, 3, SIZE), (1, GROUPS, 3, SIZE), (1, GROUPS, 3, SIZE)
    positions = torch.tensor([4, 5, 6])
    inputs = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
    module = qnn_ext.from_pytorch(torch.export.export(model, (*inputs, positions)))
    assert [str(state.initial.dtype) for state in module.states] == [dtype] * 2
    engine = qnn_ext.build(module, num_threads=1)
    assert "attention" in kernels(engine)
    for _ in range(3):
        found = engine(*(value.numpy() for value in inputs), positions.numpy())
        np.testing.assert_allclose(found, model(*inputs, positions).numpy(), rtol=0, atol=1e-5)
        for state, buffer in zip(engine.state_values(), model.buffers(), strict=True):
            np.testing.assert_array_equal(state, buffer.numpy())
        inputs = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
        positions = positions + 3
