"""The column of MXNet, which runs in another interpreter: with one that has a stand-in for MXNet, and with MXNet."""

import os
import stat
import sys
import textwrap

import numpy as np
import pytest

import qnn_ext
from qnn_ext import evaluation
from qnn_ext.evaluation.mxnet import VARIABLE, Mxnet, MxnetError
from tests.cases.bundled import DATA

FILES = DATA / "digits_mxnet-symbol.json", DATA / "digits_mxnet-0000.params"
COUNT = 8
with np.load(DATA / "digits_test.npz") as stored:
    PIXELS, LABELS = stored["x"][:COUNT, None] / np.float32(16), stored["y"][:COUNT]

# what the server calls of MXNet, for a "model" whose output is its parameter w times the mean of its data
STAND_IN = """
    import json, os, runpy, sys, types
    import numpy as np

    class Array(np.ndarray):
        asnumpy = np.ndarray.copy

    def load_json(text):
        if not json.loads(text).get("nodes"):
            raise ValueError("no nodes")
        def bind(device, given, aux_states, grad_req):
            if float(given["data"].flat[0]) > 1e6:
                os._exit(3)
            scores = given["w"][None] * given["data"].mean() + given["label"]
            return types.SimpleNamespace(forward=lambda is_train: [scores.view(Array)])
        return types.SimpleNamespace(
            list_arguments=lambda: ["data", "w", "label"],
            infer_shape_partial=lambda **shapes: ([shapes["data"], shapes["w"], (1, 10)], None, None),
            bind=bind,
        )

    sys.modules["mxnet"] = types.SimpleNamespace(
        sym=types.SimpleNamespace(load_json=load_json),
        nd=types.SimpleNamespace(
            array=lambda value, dtype: np.asarray(value, dtype),
            zeros=np.zeros,
            load=lambda path: {"arg:w": np.arange(10, dtype=np.float32)},
        ),
        cpu=lambda: "cpu",
    )
    runpy.run_path(sys.argv[2])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(STAND_IN))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(VARIABLE, str(program))


def compared():
    model = qnn_ext.from_mxnet(*FILES, shapes={"data": (1, 1, 8, 8)})
    return evaluation.accuracy(model, PIXELS, LABELS, framework=evaluation.mxnet(*FILES), num_threads=1)


def test_without_an_interpreter(monkeypatch):
    """The column says what it needs."""
    monkeypatch.delenv(VARIABLE, raising=False)
    missing = compared()["framework"].missing
    assert VARIABLE in missing and "mxnet==1.9.1" in missing


def test_with_an_interpreter(stand_in):
    """Also that arguments without values are zeros, and that the model is sent once."""
    found = compared()["framework"]
    assert not found.missing
    assert found.metrics == {"top-1": np.mean(LABELS == 9), "top-5": np.mean(LABELS >= 5)}


def test_what_mxnet_refuses_and_dies_of(stand_in):
    server = Mxnet()
    ones = np.ones((1, 1, 8, 8), np.float32)
    model = {"symbol": np.array('{"nodes": [1]}'), "arg:w": np.arange(10, dtype=np.float32)}
    with pytest.raises(MxnetError, match="no nodes"):
        server.ask({"symbol": np.array("{}"), "0/data": ones})
    with pytest.raises(MxnetError, match="ended with 3"):
        server.ask({**model, "0/data": ones * 1e7})
    for message in (model, {}):
        np.testing.assert_array_equal(server.ask({**message, "0/data": ones})["0/0"], [np.arange(10)])
    server.end()


def test_mxnet():
    """It agrees with our integers."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs MXNet 1.9.1, in the interpreter that {VARIABLE} names")
    found = compared()
    assert not found["framework"].missing
    assert found["int8"].agreement.same == 1.0
