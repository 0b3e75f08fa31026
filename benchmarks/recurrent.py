"""Writes recurrent ONNX models with random weights, which `python -m benchmarks` compares.

    python -m benchmarks.recurrent FOLDER [--hidden 128] [--steps 10 100 1000]
    python -m benchmarks --models FOLDER --peers onnxruntime

LSTM, GRU and RNN of ONNX, a GRU written as the body of a Scan, and an LSTM whose weights are int8 and whose
activations are quantized at run time. One sample, as many inputs as hidden units.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
MICROSOFT = "com.microsoft"
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class _Weights:
    """Random constants; products of a row with one of these are about as large as the row."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden
        self.protos: list[Any] = []
        self._rng = np.random.default_rng(0)

    def matrix(self, name: str, *shape: int) -> str:
        values = self._rng.normal(size=shape) / np.sqrt(self.hidden)
        return self.add(name, values.astype(np.float32))

    def quantized(self, name: str, *shape: int) -> list[str]:
        """A matrix of int8, and its scale and zero point."""
        values = self._rng.integers(-127, 128, shape).astype(np.int8)
        scale = np.array([3 / 127 / np.sqrt(self.hidden)], np.float32)
        return [
            self.add(name, values),
            self.add(f"{name}_scale", scale),
            self.add(f"{name}_zero", np.zeros(1, np.int8)),
        ]

    def add(self, name: str, values: np.ndarray | np.generic) -> str:
        self.protos.append(numpy_helper.from_array(np.asarray(values), name))
        return name


def layer(kind: str) -> Callable[[_Weights], list[Any]]:
    """ONNX's LSTM, GRU or RNN."""

    def nodes(weights: _Weights) -> list[Any]:
        hidden, rows = weights.hidden, GATES[kind] * weights.hidden
        names = [weights.matrix("w", 1, rows, hidden), weights.matrix("r", 1, rows, hidden)]
        bias = weights.matrix("b", 1, 2 * rows)
        return [helper.make_node(kind, ["x", *names, bias], ["y"], hidden_size=hidden)]

    return nodes


def dynamic_lstm(weights: _Weights) -> list[Any]:
    """DynamicQuantizeLSTM of com.microsoft."""
    hidden = weights.hidden
    w, w_scale, w_zero = weights.quantized("w", 1, hidden, 4 * hidden)
    r, r_scale, r_zero = weights.quantized("r", 1, hidden, 4 * hidden)
    inputs = ["x", w, r, "", "", "", "", "", w_scale, w_zero, r_scale, r_zero]
    return [helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain=MICROSOFT, hidden_size=hidden)]


def scan(weights: _Weights) -> list[Any]:
    """A GRU, a step at a time: h' = (1 − z)·tanh(W x + r·(R h)) + z·h."""
    hidden = weights.hidden
    w, r = (weights.matrix(name, hidden, 3 * hidden) for name in ("w", "r"))
    zeros = weights.add("zeros", np.zeros((1, hidden), np.float32))
    one = weights.add("one", np.float32(1))
    parts = [[f"{side}{gate}" for gate in "zrh"] for side in "wr"]
    node = helper.make_node
    body = [
        node("MatMul", ["slice", w], ["wx"]),
        node("MatMul", ["h", r], ["rh"]),
        node("Split", ["wx"], parts[0], axis=1, num_outputs=3),
        node("Split", ["rh"], parts[1], axis=1, num_outputs=3),
        node("Add", ["wz", "rz"], ["sum_z"]),
        node("Sigmoid", ["sum_z"], ["z"]),
        node("Add", ["wr", "rr"], ["sum_r"]),
        node("Sigmoid", ["sum_r"], ["reset"]),
        node("Mul", ["reset", "rh_part"], ["kept"]),
        node("Add", ["wh", "kept"], ["sum_h"]),
        node("Tanh", ["sum_h"], ["candidate"]),
        node("Sub", [one, "z"], ["rest"]),
        node("Mul", ["rest", "candidate"], ["new"]),
        node("Mul", ["z", "h"], ["old"]),
        node("Add", ["new", "old"], ["next"]),
        node("Identity", ["next"], ["row"]),
    ]
    body[3].output[2] = "rh_part"
    row = [1, hidden]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, row) for name in names]
        for names in (("h", "slice"), ("next", "row"))
    )
    graph = helper.make_graph(body, "step", inputs, outputs)
    return [node("Scan", [zeros, "x"], ["last", "y"], body=graph, num_scan_inputs=1)]


MODELS: dict[str, Callable[[_Weights], list[Any]]] = {
    "lstm": layer("LSTM"),
    "gru": layer("GRU"),
    "rnn": layer("RNN"),
    "gru_scan": scan,
    "lstm_dynamic": dynamic_lstm,
}


def model(name: str, hidden: int, steps: int) -> onnx.ModelProto:
    """One of the models, for one sample of `steps` rows."""
    weights = _Weights(hidden)
    nodes = MODELS[name](weights)
    shape = [steps, 1, hidden]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape if name == "gru_scan" else [steps, 1, 1, hidden])
    graph = helper.make_graph(nodes, name, [x], [y], weights.protos)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write(folder: Path, hidden: int, steps: Sequence[int]) -> list[Path]:
    """The files NAME_STEPS.onnx."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in MODELS:
        for count in steps:
            paths.append(folder / f"{name}_{count}.onnx")
            onnx.save(model(name, hidden, count), paths[-1])
    return paths


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()
    for path in write(options.folder, options.hidden, options.steps):
        print(path)


if __name__ == "__main__":
    main()
