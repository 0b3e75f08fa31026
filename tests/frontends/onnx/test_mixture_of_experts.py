"""MoE and QMoE against ONNX Runtime: routing is exact, floats differ where they are added in another order."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.numerics.packed import WIDTHS, pack
from tests.cases.loops import loops_of

from .graphs import model, node, run_ort, value
from .single_op import MICROSOFT

TOKENS, HIDDEN, INNER, EXPERTS = 5, 64, 32, 4


def operator(kind, constants, names, router=False, tokens=TOKENS, hidden=HIDDEN, **attributes):
    given = {"x", "p", *constants, *(["router"] if router else [])}
    names = [name if name in given else "" for name in names]
    while not names[-1]:
        names.pop()
    inputs = [value("x", (tokens, hidden)), value("p", (tokens, EXPERTS))]
    inputs += [value("router", (tokens, EXPERTS))] if router else []
    return model(
        [node(kind, names, ["y"], "experts", domain=MICROSOFT, **attributes)], inputs, [value("y", None)], constants
    )


def floats(rng, activation="relu", bias=True, fused=False, hidden=HIDDEN, **attributes):
    rows = INNER * (2 if fused else 1)
    shapes = {"w1": (EXPERTS, rows, hidden), "w2": (EXPERTS, hidden, INNER)}
    shapes |= {"b1": (EXPERTS, rows), "b2": (EXPERTS, hidden)} if bias else {}
    constants = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    attributes |= {"swiglu_fusion": 1} if fused else {}
    names = ["x", "p", "w1", "b1", "w2", "b2"]
    return operator("MoE", constants, names, hidden=hidden, activation_type=activation, k=2, **attributes)


def integers(rng, bits, block=0, zeros=False, activation="silu", bias=True, fused=False, router=False, tokens=TOKENS,
             **attributes):  # fmt: skip
    dtype = {bits: dtype for dtype, bits in WIDTHS.items() if dtype.startswith("u")}[bits]
    constants = {}
    for name, rows, depth in (("1", INNER * (2 if fused else 1), HIDDEN), ("2", HIDDEN, INNER)):
        groups = depth // block if block else 1
        constants[f"w{name}"] = pack(rng.integers(0, 1 << bits, (EXPERTS, rows, depth)), dtype)
        scales = rng.uniform(0.2, 0.4, (EXPERTS, rows, groups)).astype(np.float32) / (1 << (bits - 1))
        points = rng.integers(0, 1 << bits, (EXPERTS, rows, groups))
        constants[f"s{name}"] = scales if block else scales[..., 0]
        if zeros:
            constants[f"z{name}"] = pack(points if block else points[..., 0], dtype)
        if bias:
            constants[f"b{name}"] = rng.normal(0, 0.3, (EXPERTS, rows)).astype(np.float32)
    names = ["x", "p", "w1", "s1", "b1", "w2", "s2", "b2", "", "", "", "z1", "z2", "", "router"]
    attributes |= {"block_size": block} if block else {}
    attributes |= {"swiglu_fusion": 1} if fused else {}
    attributes |= {"expert_weight_bits": bits, "activation_type": activation}
    return operator("QMoE", constants, names, router, tokens, **{"k": 2, **attributes})


def check(proto, rng, build=False, scores=None):
    """Interpreter, and perhaps engine, against ONNX Runtime."""
    module = qnn_ext.from_onnx(proto)
    runners = [qnn_ext.Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])]
    shapes = {spec.name: spec.shape for spec in module.inputs}
    feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if "router" in feed:
        feed["router"] = np.abs(feed["router"])
    if scores is not None:
        feed["p"] = scores
    (wanted,) = run_ort(proto, feed)
    for runner in runners:
        (found,) = runner.run(feed).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    return module


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_experts_of_floats(activation, normalize, rng):
    check(floats(rng, activation, normalize_routing_weights=normalize), rng)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"activation_alpha": 1.702, "activation_beta": 1.0}, {"swiglu_limit": 0.3, "activation_beta": 1.0}],
)
def test_swiglu(attributes, rng):
    check(floats(rng, "swiglu", fused=True, normalize_routing_weights=1, **attributes), rng)


@pytest.mark.parametrize("scores", [[0, 0, 0, 0], [1, 1, 0, 1], [2, 0, 0, 2]])
def test_equal_scores(scores, rng):
    """ONNX Runtime takes the last of the experts with equal scores."""
    proto = floats(rng, bias=False, hidden=8)
    check(proto, rng, scores=np.tile(np.float32(scores), (TOKENS, 1)))


def test_one_loop_for_each_expert_built(rng):
    """A loop of at most one round: experts that no token has chosen are not computed."""
    module = check(floats(rng, hidden=16), rng, build=True, scores=np.tile(np.float32([1, 0, 2, -1]), (TOKENS, 1)))
    assert len(loops_of(module)) == EXPERTS


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "bits,block,level", [(8, 0, 0), (8, 32, 0), (4, 0, 0), (4, 16, 0), (4, 32, 4), (2, 0, 4), (2, 32, 4)]
)
def test_experts_of_integers(bits, block, level, zeros, rng):
    module = check(integers(rng, bits, block, zeros, accuracy_level=level, normalize_routing_weights=1), rng)
    of_int8 = bool(block) and (bits == 8 or (bits == 4 and level == 4))
    assert [note.operator for note in module.notes] == ([] if of_int8 else ["QMoE", "QMoE"])


@pytest.mark.parametrize("normalize", [0, 1])
def test_weights_of_the_router(normalize, rng):
    """Experts are chosen by one tensor, and weighted by another."""
    check(integers(rng, 8, router=True, k=3, bias=False, normalize_routing_weights=normalize), rng)
    check(integers(rng, 8, activation="gelu", normalize_routing_weights=normalize), rng)


def test_swiglu_of_one_token_built(rng):
    check(integers(rng, 4, 16, activation="swiglu", fused=True, tokens=1), rng, build=True)


@pytest.mark.parametrize(
    "attributes,message",
    [
        ({"quant_type": "fp8"}, "quant_type = 'fp8'"),
        ({"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ({"activation_type": "relu2"}, "activation_type 'relu2'; known are relu"),
        ({"weights_prepacked": 1}, "weights_prepacked"),
        ({"expert_weight_bits": 3}, "weights of 3 bits"),
    ],
)
def test_refusals(attributes, message, rng):
    proto = integers(rng, 8)
    for name, given in attributes.items():
        keep = [one for one in proto.graph.node[0].attribute if one.name != name]
        del proto.graph.node[0].attribute[:]
        proto.graph.node[0].attribute.extend([*keep, *node("QMoE", [], [], **{name: given}).attribute])
    with pytest.raises(UnsupportedOperatorError, match=rf"QMoE 'experts'.*{message}"):
        qnn_ext.from_onnx(proto)


def test_damage(rng):
    proto = integers(rng, 8)
    del proto.graph.node[0].attribute[:]
    proto.graph.node[0].attribute.extend(node("QMoE", [], [], k=9, expert_weight_bits=8).attribute)
    with pytest.raises(ModelFormatError, match="k = 9"):
        qnn_ext.from_onnx(proto)
    proto = integers(rng, 4)
    proto.graph.node[0].attribute.append(node("QMoE", [], [], block_size=16).attribute[0])
    with pytest.raises(ModelFormatError, match=r"must have scales for 4 × 32 rows of 4 blocks"):
        qnn_ext.from_onnx(proto)
