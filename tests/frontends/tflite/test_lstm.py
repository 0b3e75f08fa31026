"""UNIDIRECTIONAL_SEQUENCE_LSTM: against LiteRT, on real models, and 16x8 against a float computation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of

NAME = "UNIDIRECTIONAL_SEQUENCE_LSTM"
BUNDLED = Path(qnn_ext.__file__).parent / "data"


@pytest.mark.parametrize("case", cases_of(NAME))
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("mode", ["float32", "hybrid", "int8"])
@pytest.mark.parametrize("variant", ["plain", "batch3", "peephole_projection_layer_norm", "cifg_peephole"])
def test_a_single_step_equals_litert(mode, variant, rng):
    """The operator LSTM: over calls it keeps its states, as a sequence does over its steps."""
    pytest.importorskip("ai_edge_litert.interpreter")
    from tests.conformance.tflite_models.recurrent import LSTM_VARIANTS, LstmBuilder
    from tests.conformance.tflite_models.runner import invoke

    layer = LSTM_VARIANTS[variant]
    made = LstmBuilder(f"LSTM/{mode}/{variant}", mode, layer)
    x = made.graph.input((layer.batch, layer.depth), made.dtype, made.input_q, step=1 / 64)
    operands = made.operands(x)
    y = made.graph.output((layer.batch, layer.outputs or layer.cells), made.dtype, made.output_q())
    clips = {"cellClip": layer.cell_clip, "projClip": layer.projection_clip}
    made.graph.op("LSTM", operands, [y], act="tanh", intermediates=made.intermediates(), **clips)
    content = made.graph.build()
    module = from_tflite(content, numerics="tflite")
    draw = (lambda shape: rng.uniform(-1, 1, shape)) if made.dtype == "float32" else lambda s: rng.integers(-99, 99, s)
    trials = [[draw((layer.batch, layer.depth)).astype(made.dtype)] for _ in range(3)]
    expected = invoke(content, trials, "reference", True)
    for runner in (Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if variant == "batch3" else [])):
        for (data,), (wanted,) in zip(trials, expected, strict=True):
            if mode == "float32":
                np.testing.assert_allclose(runner(data), wanted, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(runner(data), wanted)


def test_bundled_model_equals_litert():
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    path = BUNDLED / "digits_lstm_int8.tflite"
    kernels = litert.OpResolverType.BUILTIN_REF
    expected = litert.Interpreter(str(path), experimental_op_resolver_type=kernels)
    expected.allocate_tensors()
    interpreter = Interpreter(from_tflite(path, numerics="tflite"))
    for image in np.load(BUNDLED / "digits_test.npz")["x"][:20]:
        q = (image.astype(np.float32) / 16 * 255 - 128).astype("int8").reshape(interpreter.module.inputs[0].shape)
        interpreter.reset_state()
        expected.reset_all_variables()
        expected.set_tensor(expected.get_input_details()[0]["index"], q)
        expected.invoke()
        np.testing.assert_array_equal(interpreter(q), expected.get_tensor(expected.get_output_details()[0]["index"]))


@pytest.mark.parametrize("numerics", ["tflite", "float32"])
def test_real_model_equals_litert(models, numerics):
    path = models / "tflite" / "keras_lstm_mnist_ptq.tflite"
    golden = np.load(path.with_suffix(".npz"))
    interpreter = Interpreter(from_tflite(path, numerics=numerics))
    for n in range(2):
        interpreter.reset_state()
        np.testing.assert_array_equal(interpreter(golden[f"input{n}_0"]), golden[f"ref{n}_0"])


def test_batch_size_can_change():
    case = next(case for case in load_cases(NAME) if case.name == f"{NAME}/int8/plain")
    single = Interpreter(from_tflite(case.model, numerics="tflite"))
    (spec,) = single.module.inputs
    both = Interpreter(from_tflite(case.model, numerics="tflite", shapes={spec.name: (2, *spec.shape[1:])}))
    sequences = [trial[0] for trial in case.inputs[:2]]
    expected = []
    for sequence in sequences:
        single.reset_state()
        expected.append(single(sequence))
    np.testing.assert_array_equal(both(np.concatenate(sequences)), np.concatenate(expected))


def test_steps_add_no_kernels():
    case = next(case for case in load_cases(NAME) if case.name == f"{NAME}/int8/plain")
    (spec,) = from_tflite(case.model).inputs
    counts = {
        len(qnn_ext.build(from_tflite(case.model, shapes={spec.name: (1, steps, spec.shape[2])})).kernels)
        for steps in (2, 9, 20_000)
    }
    assert len(counts) == 1


# ---- int16 activations: LiteRT has no kernel for them ------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def float_lstm(graph, node, x):
    """The same layer in float64 from the dequantized operands: x (1, time, depth) -> (time, cells)."""

    def real(index):
        tensor = graph.tensors[node.inputs[index]]
        return tensor.data * float(tensor.qparams.scale)

    hidden = cell = np.zeros(graph.tensors[node.inputs[19]].shape[1])
    outputs = []
    for row in x[0]:
        i, f, g, o = (real(1 + k) @ row + real(5 + k) @ hidden + real(12 + k) for k in range(4))
        cell = np.clip(sigmoid(f) * cell + sigmoid(i) * np.tanh(g), -10, 10)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


def test_16x8_is_near_the_float_layer():
    recurrent = pytest.importorskip("conformance.tflite_models.recurrent", exc_type=ImportError)
    from qnn_ext.frontends.tflite.reader import read_model

    model = recurrent.lstm("int16", "plain", recurrent.LSTM_VARIANTS["plain"]).graph.build()
    graph = read_model(model).subgraphs[0]
    (spec,) = from_tflite(model).inputs
    data = np.random.default_rng(0).integers(-20000, 20001, spec.shape).astype("int16")
    (result,) = Interpreter(from_tflite(model, numerics="tflite")).run([data]).values()
    expected = float_lstm(graph, graph.operators[0], data * float(spec.qparams.scale))
    np.testing.assert_allclose(result[0] / 32768, expected, atol=2e-3)


# ---- refusals ----------------------------------------------------------------------------------------------------


def edited(case_name, change):
    """The case's model with its operator's options changed."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import Builder

    case = next(case for case in load_cases(NAME) if case.name == case_name)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(case.model, 0))
    change(model.subgraphs[0])
    builder = Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_another_activation_is_refused():
    def relu(graph):
        graph.operators[0].builtinOptions.fusedActivationFunction = 1

    with pytest.raises(UnsupportedOperatorError, match="activation RELU"):
        from_tflite(edited(f"{NAME}/int8/plain", relu))


def test_missing_intermediates_are_refused():
    def drop(graph):
        graph.operators[0].intermediates = None

    with pytest.raises(UnsupportedOperatorError, match="intermediate tensors"):
        from_tflite(edited(f"{NAME}/int8/plain", drop))


def test_contradicting_sizes_are_refused():
    def swap(graph):
        inputs = list(graph.operators[0].inputs)
        inputs[2], inputs[6] = inputs[6], inputs[2]
        graph.operators[0].inputs = inputs

    with pytest.raises(ModelFormatError, match="must have shape"):
        from_tflite(edited(f"{NAME}/int8/plain", swap))


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("changes", [{}, {"cifg": True, "peephole": True}, {"layer_norm": True, "cells": 10}])
def test_products_quantized_at_run_time_have_the_bits_of_litert(changes, time_major, rng):
    """Gates whose elements in memory fill vectors, and others that leave some before and behind them."""
    pytest.importorskip("ai_edge_litert.interpreter")
    from tests.conformance.tflite_models.recurrent import Lstm, LstmBuilder
    from tests.conformance.tflite_models.runner import invoke

    layer = replace(Lstm(batch=3, time=2, depth=5, cells=11, time_major=time_major), **changes)
    made = LstmBuilder("hybrid", "hybrid", layer)
    order = (2, 3) if time_major else (3, 2)
    operands = made.operands(made.graph.input((*order, layer.depth), "float32"))
    y = made.graph.output((*order, layer.cells), "float32")
    options = {"act": "tanh", "timeMajor": time_major, "cellClip": 0.0, "projClip": 0.0}
    made.graph.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [y], **options)
    content = made.graph.build()
    trials = [[rng.normal(0, 2, (*order, layer.depth)).astype(np.float32)] for _ in range(2)]
    module = from_tflite(content)
    for runner in (Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if not changes else [])):
        for (x,), (wanted,) in zip(trials, invoke(content, trials, "default", True), strict=True):
            np.testing.assert_array_equal(runner(x), wanted)
