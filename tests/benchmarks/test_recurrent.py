"""The benchmark's recurrent models: their results are ONNX Runtime's, and steps do not add kernels."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import qnn_ext
from benchmarks import recurrent
from tests.frontends.onnx.graphs import require_exact_products


@pytest.mark.parametrize("name", recurrent.MODELS)
def test_equals_onnxruntime(name):
    import onnxruntime

    if name == "lstm_dynamic":
        require_exact_products()
    proto = recurrent.model(name, hidden=8, steps=5)
    x = np.random.default_rng(1).normal(size=(5, 1, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = qnn_ext.Interpreter(qnn_ext.from_onnx(proto.SerializeToString()))(x)
    atol = 0.02 if name == "lstm_dynamic" else 1e-6  # a state that crosses a midpoint becomes another integer
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=0, atol=atol)


def test_files(tmp_path):
    paths = recurrent.write(tmp_path, hidden=8, steps=[3, 40])
    assert len(paths) == 2 * len(recurrent.MODELS) and all(path.exists() for path in paths)
    counts = {len(qnn_ext.build(qnn_ext.from_onnx(path)).kernels) for path in paths if path.stem.startswith("gru_scan")}
    assert len(counts) == 1
