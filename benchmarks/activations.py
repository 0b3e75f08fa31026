"""Networks with SiLU, hard-swish, GELU and others, quantized by qnn_ext and by ONNX Runtime: accuracy and speed.

    python -m benchmarks.activations [--functions relu silu ...] [--threads 1 2] [--size 96] [--rounds 40]

A residual network of convolutions with random weights, the same for each function, is quantized by both tools on the
same data. ONNX Runtime's QDQ file runs on qnn_ext's kernels and in ONNX Runtime. All three take turns; a time is the
least over the rounds. SQNR compares the results with those of the float network in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qnn_ext
from qnn_ext.module import QnnModule
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.pipeline import quantize

from . import onnxruntime_static

CHANNELS = (16, 32, 64, 128)
CALIBRATION, JUDGED = 8, 16
OPSET = 17

# the nodes of each function, from "x" to "y"; numbers are constants
FUNCTIONS: dict[str, tuple[tuple[str, tuple[str | float, ...], str], ...]] = {
    "relu": (("Relu", ("x",), "y"),),
    "leaky_relu": (("LeakyRelu", ("x",), "y"),),
    "silu": (("Sigmoid", ("x",), "s"), ("Mul", ("x", "s"), "y")),
    "hard_swish": (("HardSwish", ("x",), "y"),),
    "gelu": (
        ("Div", ("x", 2**0.5), "d"),
        ("Erf", ("d",), "e"),
        ("Add", ("e", 1.0), "a"),
        ("Mul", ("x", "a"), "m"),
        ("Mul", ("m", 0.5), "y"),
    ),
    "mish": (("Softplus", ("x",), "s"), ("Tanh", ("s",), "t"), ("Mul", ("x", "t"), "y")),
    "elu": (("Elu", ("x",), "y"),),
}


@dataclass(frozen=True)
class Row:
    """One function with one number of threads: milliseconds and decibels.

    ours: quantized by qnn_ext; theirs: ONNX Runtime's QDQ file on qnn_ext's kernels; peer: the same in ONNX Runtime
    """

    function: str
    threads: int
    ours: float
    theirs: float
    peer: float
    our_sqnr: float
    their_sqnr: float


class _Network:
    """An ONNX graph under construction."""

    def __init__(self, function: str, size: int) -> None:
        self._rng, self._function = np.random.default_rng(0), function
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        x = self._layer("image", 3, CHANNELS[0], 2)
        for before, channels in zip((CHANNELS[0], *CHANNELS), CHANNELS, strict=False):
            x = self._layer(x, before, channels, 1 if before == channels else 2)
            inner = self._layer(self._layer(x, channels, channels, 1), channels, channels, 1)
            x = self._node("Add", x, inner)
        pooled = self._node("Flatten", self._node("GlobalAveragePool", x))
        weight = self._constant(self._rng.normal(size=(CHANNELS[-1], 20)) / CHANNELS[-1] ** 0.5)
        self._nodes.append(helper.make_node("MatMul", [pooled, weight], ["result"]))
        shapes = {"image": (1, 3, size, size), "result": (1, 20)}
        image, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
        graph = helper.make_graph(self._nodes, function, [image], [result], self._constants)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def _constant(self, array: np.ndarray | np.generic | float) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def _layer(self, x: str, before: int, channels: int, stride: int) -> str:
        weight = self._constant(self._rng.normal(size=(channels, before, 3, 3)) * (2 / (9 * before)) ** 0.5)
        bias = self._constant(self._rng.normal(size=channels) * 0.3)
        names = {"x": self._node("Conv", x, weight, bias, strides=[stride, stride], pads=[1, 1, 1, 1])}
        for kind, inputs, output in FUNCTIONS[self._function]:
            operands = [names[i] if isinstance(i, str) else self._constant(i) for i in inputs]
            names[output] = self._node(kind, *operands)
        return names["y"]


def images(count: int, size: int, seed: int) -> list[np.ndarray]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(1, 3, size, size)).astype(np.float32) for _ in range(count)]


def session(path: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """A file in ONNX Runtime."""
    loaded = onnxruntime_static.session(path, threads)
    return lambda image: np.asarray(loaded.run(None, {"image": image})[0])


def measure(function: str, threads: Sequence[int], size: int, rounds: int) -> Iterator[Row]:
    """The rows of a function, one for each number of threads."""
    calibration, judged = images(CALIBRATION, size, 1), images(JUDGED, size, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        onnx.save(_Network(function, size).model, path)
        prepared = onnxruntime_static.prepared(path, path.with_name("prepared.onnx"))
        feeds = ({"image": image} for image in calibration)
        file = onnxruntime_static.quantized(prepared, path.with_name("quantized.onnx"), feeds)
        exact = _all(session(path, 1), judged)
        ours = quantize(qnn_ext.from_onnx(path), dataset=calibration, config=QConfig())
        theirs = qnn_ext.from_onnx(file)
        for count in threads:
            runs = [_built(ours, count), _built(theirs, count), session(file, count)]
            sqnr = [fidelity(exact, _all(run, judged)).sqnr for run in runs]
            times = _least(runs, judged[0], rounds)
            yield Row(function, count, times[0], times[1], times[2], sqnr[0], sqnr[2])


def _built(module: QnnModule, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    engine = qnn_ext.build(module, num_threads=threads)
    return lambda image: np.asarray(engine(image))


def _all(run: Callable[[np.ndarray], np.ndarray], judged: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([run(image) for image in judged])


def _least(runs: Sequence[Callable[[np.ndarray], np.ndarray]], image: np.ndarray, rounds: int) -> list[float]:
    """Milliseconds of each, the least over the rounds; the first call of a turn is not timed."""
    least = [float("inf")] * len(runs)
    for _ in range(rounds):
        for index, run in enumerate(runs):
            run(image)
            started = time.perf_counter()
            run(image)
            least[index] = min(least[index], 1e3 * (time.perf_counter() - started))
    return least


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    lines = [
        "| function | threads | qnn_ext ms | QDQ file on qnn_ext ms | ONNX Runtime ms | SQNR dB | QDQ file dB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = " | ".join(f"{value:.3f}" for value in (row.ours, row.theirs, row.peer))
        lines.append(f"| {row.function} | {row.threads} | {times} | {row.our_sqnr:.1f} | {row.their_sqnr:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rows = [row for name in options.functions for row in measure(name, options.threads, options.size, options.rounds)]
    print(markdown(rows))


if __name__ == "__main__":
    main()
