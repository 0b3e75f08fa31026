"""Models of which ONNX Runtime's tool left some layers in float, against the same network all in int8 and all in float.

    python -m benchmarks.mixed MODEL.onnx --float NODE ... [--threads 1]

MODEL is a float network. Calibration and inputs are random, which changes no kernel. Times are medians of turns in one
process. "sum of its parts" is what the mixed model takes if every layer takes as long as in the network of its kind:
float share × time in float + the rest × time in int8, by multiply-accumulates. What a mixed model takes beyond that are
conversions between its layers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext.compiling.coverage import coverage

from . import onnxruntime_static
from .runners import Runner, measure

CALIBRATED = 2


def _feeds(module: qnn_ext.QnnModule) -> list[dict[str, np.ndarray]]:
    """Normal values for inputs of floats, zeros for those of integers."""
    rng = np.random.default_rng(0)

    def values(spec: qnn_ext.TensorSpec) -> np.ndarray:
        if "float" in spec.dtype:
            return rng.standard_normal(spec.shape).astype(spec.dtype)
        return np.zeros(spec.shape, spec.dtype)

    return [{spec.name: values(spec) for spec in module.inputs} for _ in range(CALIBRATED)]


def _runner(name: str, module: qnn_ext.QnnModule, feeds: dict[str, np.ndarray], threads: int) -> Runner:
    engine = qnn_ext.build(module, num_threads=threads)

    def outputs(_: object) -> list[np.ndarray]:
        return list(engine.run(feeds).values())

    runner = Runner(name, outputs, lambda number: engine.time(number=number, repeat=1).median)
    runner.outputs([])
    return runner


def row(path: Path, in_float: list[str], threads: int) -> str:
    """One line of the table."""
    module = qnn_ext.from_onnx(path)
    feeds = _feeds(module)
    with tempfile.TemporaryDirectory() as folder:
        source = onnxruntime_static.prepared(path, Path(folder, "prepared.onnx"))
        modules = {"float": module}
        for kind, excluded in (("int8", []), ("mixed", in_float)):
            file = onnxruntime_static.quantized(source, Path(folder, f"{kind}.onnx"), feeds, excluded=excluded)
            modules[kind] = qnn_ext.from_onnx(file)
        times = measure([_runner(kind, one, feeds[0], threads) for kind, one in modules.items()])
    shares = {kind: 1 - (coverage(one).share or 0.0) for kind, one in modules.items()}
    if shares["float"] == shares["int8"]:
        raise SystemExit(f"{path.name} has no layers that the tool quantizes")
    part = (shares["mixed"] - shares["int8"]) / (shares["float"] - shares["int8"])
    parts = part * times["float"] + (1 - part) * times["int8"]
    cells = [path.name, str(threads), f"{100 * shares['mixed']:.1f} %"]
    cells += [f"{1e3 * seconds:.2f}" for seconds in (times["mixed"], times["int8"], times["float"], parts)]
    cells.append(f"{times['mixed'] / parts:.2f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--float", nargs="+", required=True, dest="in_float", help="nodes that stay in float")
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    options = parser.parse_args()
    print("| model | threads | MAC in float | mixed ms | int8 ms | float ms | sum of its parts ms | mixed / sum |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for threads in options.threads:
        print(row(options.model, options.in_float, threads), flush=True)


if __name__ == "__main__":
    main()
