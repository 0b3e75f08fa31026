"""TFLite models: qnn_ext against LiteRT with XNNPACK, the same threads, measured in turns.

    python -m benchmarks.tflite_models [MODEL.tflite ...] [--threads 1] [--rounds 20] [--json FILE] [--markdown FILE]

Without models: the bundled one, and those in ../shared/models/tflite where that folder exists.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.host import default_threads
from qnn_ext.target import make_target

from .runners import litert_runner, measure, qnn_ext_runner

ROOT = Path(__file__).parents[1]


def default_models() -> list[Path]:
    """The bundled int8 model, then the real ones where they are at hand."""
    real = sorted((ROOT.parent / "shared" / "models" / "tflite").glob("*.tflite"))
    return [ROOT / "qnn_ext" / "data" / "digits_cnn_int8.tflite", *real]


def compare(path: Path, threads: int, rounds: int) -> dict[str, Any]:
    """One row: seconds of both, and how far the outputs are apart on one random input."""
    started = time.perf_counter()
    ours = qnn_ext_runner(path, threads)
    build_seconds = time.perf_counter() - started
    theirs = litert_runner(path, threads)
    specs = qnn_ext.from_tflite(path).inputs
    inputs = [_random_input(spec) for spec in specs]
    apart = [_difference(a, b) for a, b in zip(ours.outputs(inputs), theirs.outputs(inputs), strict=True)]
    seconds = measure([ours, theirs], rounds)
    return {
        "model": path.stem,
        "build_s": round(build_seconds, 2),
        "qnn_ext_ms": seconds[ours.name] * 1e3,
        "litert_ms": seconds[theirs.name] * 1e3,
        "speedup": seconds[theirs.name] / seconds[ours.name],
        "values": sum(size for size, _, _ in apart),
        "values_apart": sum(count for _, count, _ in apart),
        "largest_difference": max(largest for _, _, largest in apart),
    }


def _random_input(spec: qnn_ext.TensorSpec) -> np.ndarray:
    rng = np.random.default_rng(0)
    if spec.dtype.startswith("float"):
        return rng.random(spec.shape).astype(spec.dtype)
    info = np.iinfo(spec.dtype)
    return rng.integers(info.min, info.max, spec.shape, dtype=spec.dtype, endpoint=True)


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[int, int, float]:
    """How many values, how many of them differ, the largest difference."""
    distance = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return a.size, int((distance > 0).sum()), float(distance.max(initial=0.0))


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    import ai_edge_litert
    import tvm

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "llvm_cpu": str(make_target().attrs["mcpu"]),
        "cores": default_threads(),
        "threads": threads,
        "qnn_ext": qnn_ext.__version__,
        "tvm": tvm.__version__,
        "litert": getattr(ai_edge_litert, "__version__", "?"),
    }


def markdown(rows: list[dict[str, Any]], where: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    lines = [
        f"{where['cpu']} ({where['llvm_cpu']}), {where['threads']} of {where['cores']} cores. "
        f"qnn_ext {where['qnn_ext']} on TVM {where['tvm']}; LiteRT {where['litert']} with XNNPACK. "
        "Median of measurements in turns.",
        "",
        "| model | qnn_ext ms | LiteRT ms | LiteRT / qnn_ext | build s | values apart | largest |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['error']} | | | | | |")
            continue
        lines.append(
            f"| {row['model']} | {row['qnn_ext_ms']:.3f} | {row['litert_ms']:.3f} | {row['speedup']:.2f} "
            f"| {row['build_s']:.1f} | {row['values_apart']} of {row['values']} | {row['largest_difference']:.4g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print; a model that does not build gets a row that says so, and the exit code is 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in options.models or default_models():
        print(f"{path.stem} ...", file=sys.stderr)
        try:
            rows.append(compare(path, options.threads, options.rounds))
        except qnn_ext.QnnError as error:
            rows.append({"model": path.stem, "error": str(error)})
    where = machine(options.threads)
    table = markdown(rows, where)
    print(table)
    if options.markdown:
        options.markdown.write_text(table + "\n", encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps({"machine": where, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    sys.exit(any("error" in row for row in rows))


if __name__ == "__main__":
    main()
