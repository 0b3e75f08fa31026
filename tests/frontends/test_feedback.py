"""States that the engine feeds back: against the frameworks, to which a caller feeds them."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import LimitError, ShapeError
from qnn_ext.limits import Limits

HIDDEN = 3
STATES = {"h": "hn", "c": "cn"}


def lstm(batch=2):
    """An LSTM of four steps, its states inputs and outputs, as streaming networks are exported."""
    pytest.importorskip("onnx")
    from tests.frontends.onnx.graphs import model, node, value

    rng = np.random.default_rng(5)
    weights = {
        "w": rng.standard_normal((1, 4 * HIDDEN, 5)).astype(np.float32),
        "r": rng.standard_normal((1, 4 * HIDDEN, HIDDEN)).astype(np.float32),
    }
    state = (1, batch, HIDDEN)
    nodes = [node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "hn", "cn"], hidden_size=HIDDEN)]
    inputs = [value("h", state), value("x", (4, batch, 5)), value("c", state)]
    outputs = [value("hn", state), value("y", None), value("cn", state)]
    return model(nodes, inputs, outputs, weights)


def chunks(rng):
    return [rng.standard_normal((4, 2, 5)).astype(np.float32) for _ in range(3)]


@pytest.fixture
def stream(rng):
    """Three chunks of one sequence, and ONNX Runtime's answers with the states fed back."""
    from tests.frontends.onnx.graphs import run_ort

    given, expected = chunks(rng), []
    states = [np.zeros((1, 2, HIDDEN), np.float32)] * 2
    for chunk in given:
        hidden, y, memory = run_ort(lstm(), {"h": states[0], "x": chunk, "c": states[1]})
        states = [hidden, memory]
        expected.append(y)
    return given, expected


def check(runner, stream):
    for chunk, expected in zip(*stream, strict=True):
        np.testing.assert_allclose(runner(chunk), expected, rtol=0, atol=2e-6)


def test_onnx(stream, tmp_path):
    """Interpreter, engine and a loaded file go on from call to call, until they are reset."""
    module = qnn_ext.from_onnx(lstm(), states=STATES)
    assert [spec.name for spec in module.inputs] == ["x"]
    assert [spec.name for spec in module.outputs] == ["y"]
    assert [state.name for state in module.states] == ["h", "c"]
    check(qnn_ext.Interpreter(module), stream)
    engine = qnn_ext.build(module, num_threads=1)
    check(engine, stream)
    engine.reset_state()
    check(engine, stream)
    engine.save(tmp_path / "stream.qnn")
    check(qnn_ext.load(tmp_path / "stream.qnn"), stream)


def test_one_of_two_states(stream):
    """The other one stays an input and an output."""
    module = qnn_ext.from_onnx(lstm(), states={"c": "cn"})
    assert [spec.name for spec in module.inputs] == ["h", "x"]
    assert [spec.name for spec in module.outputs] == ["hn", "y"]
    runner, hidden = qnn_ext.Interpreter(module), np.zeros((1, 2, HIDDEN), np.float32)
    for chunk, expected in zip(*stream, strict=True):
        hidden, y = runner.run({"h": hidden, "x": chunk}).values()
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)


def test_pytorch(rng):
    torch = pytest.importorskip("torch")

    class Stream(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.GRU(5, HIDDEN)

        def forward(self, x, before):
            return self.layer(x, before)

    torch.manual_seed(0)
    network, state = Stream().eval(), torch.zeros(1, 2, HIDDEN)
    given = chunks(rng)
    program = torch.export.export(network, (torch.from_numpy(given[0]), state))
    names = [node.name for node in program.graph.nodes if node.op == "output" for node in node.args[0]]
    traced = torch.jit.trace(network, (torch.from_numpy(given[0]), state), check_trace=False)
    runners = [
        qnn_ext.Interpreter(qnn_ext.from_pytorch(program, states={"before": names[1]})),
        qnn_ext.Interpreter(
            qnn_ext.from_pytorch(traced, shapes=[(4, 2, 5), (1, 2, HIDDEN)], states={"before": "output_1"})
        ),
    ]
    for chunk in given:
        with torch.no_grad():
            y, state = network(torch.from_numpy(chunk), state)
        for runner in runners:
            np.testing.assert_allclose(runner(chunk), y.numpy(), rtol=0, atol=2e-6)


def test_quantized_state_begins_at_zero(rng):
    """A state of integers begins with the zero point, which stands for 0."""
    from dataclasses import replace

    from qnn_ext.frontends.feedback import with_states
    from qnn_ext.qparams import QParams
    from tests.frontends.onnx.graphs import model, node, value

    values = [value(name, (3,), np.int8) for name in "xayz"]
    nodes = [node("Add", ["x", "a"], ["y"]), node("Add", ["x", "y"], ["z"])]
    module = qnn_ext.from_onnx(model(nodes, values[:2], values[2:]))
    scales = [QParams(0.5, 7), QParams(0.5, -3), QParams(0.5, -3), QParams(0.5, 7)]
    specs = [replace(s, qparams=q) for s, q in zip((*module.inputs, *module.outputs), scales, strict=True)]
    module = replace(module, inputs=tuple(specs[:2]), outputs=tuple(specs[2:]))
    assert (with_states(module, {"a": "y"}).states[0].initial == -3).all()
    with pytest.raises(ShapeError, match="scale must be the same"):
        with_states(module, {"a": "z"})


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"g": "hn"}, "'g', but the inputs of the model are 'h', 'x', 'c'"),
        ({"h": "gn"}, "'gn', but the outputs of the model are 'hn', 'y', 'cn'"),
        ({"h": "y"}, "the state h: .* cannot become y"),
        ({"x": "y"}, "cannot become"),
    ],
)
def test_refusals(states, message):
    with pytest.raises(ShapeError, match=message):
        qnn_ext.from_onnx(lstm(), states=states)


def test_everything_a_state():
    from tests.frontends.onnx.graphs import model, node, value

    shape = (2, 3)
    proto = model([node("Neg", ["x"], ["y"])], [value("x", shape)], [value("y", shape)])
    with pytest.raises(ShapeError, match="one must stay"):
        qnn_ext.from_onnx(proto, states={"x": "y"})
    proto = model([node("Add", ["x", "a"], ["y"])], [value("x", shape), value("a", shape)], [value("y", shape)])
    with pytest.raises(ShapeError, match="every output"):
        qnn_ext.from_onnx(proto, states={"x": "y"})


def test_open_batch():
    from tests.frontends.onnx.graphs import model, node, value

    nodes = [node("Add", ["x", "a"], ["y"]), node("Neg", ["y"], ["z"])]
    values = [value(name, ("N", 3)) for name in "xayz"]
    with pytest.raises(ShapeError, match="batch size is open"):
        qnn_ext.from_onnx(model(nodes, values[:2], values[2:]), states={"a": "y"})
    module = qnn_ext.from_onnx(model(nodes, values[:2], values[2:]), states={"a": "y"}, shapes={"N": 2})
    runner = qnn_ext.Interpreter(module)
    for total in (1, 2, 3):
        np.testing.assert_array_equal(runner(np.ones((2, 3), np.float32)), np.full((2, 3), -total, np.float32))


def test_large_state():
    with pytest.raises(LimitError, match="constants"):
        qnn_ext.from_onnx(lstm(1 << 12), states=STATES, limits=Limits(constants=1 << 13))
