"""Whole networks of every format: imported, built, run, and compared with their framework's results.

    python -m benchmarks.networks FOLDER ... [--only NAME ...] [--threads 1] [--json FILE]

A model lies beside an archive of the framework's inputs and outputs: MODEL.npz or MODEL_io.npz with input_0, input_1
and so on (or x) and KIND_0, KIND_1 ... (or y) for every way in which the framework ran it. `scripts/networks.py` writes
such folders.

Columns: share of the multiply-accumulates that run as integers; and per kind of golden: how many output values differ,
the largest difference in steps of the output's scale where the output is quantized (else as a share of its range), the
signal-to-noise ratio of ours against it, and whether the argmax agrees. "itself" is the signal-to-noise ratio between
the framework's own two ways.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.files.storage import write_text

from .compiling import import_model
from .models import archive_of, is_model, read_archive


def models_in(folder: Path) -> list[Path]:
    """The models of a folder that have an archive beside them, by name."""
    return sorted(path for path in folder.iterdir() if is_model(path) and archive_of(path) is not None)


def compare(path: Path, threads: int) -> dict[str, Any]:
    """One row of the table."""
    archive = archive_of(path)
    assert archive is not None
    inputs, goldens = read_archive(archive)
    started = time.perf_counter()
    module = import_model(path, inputs)
    imported = time.perf_counter()
    engine = qnn_ext.build(module, num_threads=threads)
    built = time.perf_counter()
    outputs = list(engine.run(inputs).values())
    found = coverage(module)
    return {
        "model": path.name,
        "import_s": imported - started,
        "build_s": built - imported,
        "run_ms": engine.time(repeat=5).median * 1e3,
        "macs": found.macs,
        "coverage": found.share,
        "products_in_float": dict(Counter(product.operator for product in found.in_float)),
        "notes": [f"{note.operator} '{note.node}': {note.reason}" for note in module.notes],
        "goldens": {kind: [difference(*pair) for pair in _pairs(outputs, golden)] for kind, golden in goldens.items()},
        "framework_apart": framework_apart(list(goldens.values())),
    }


def framework_apart(goldens: list[list[np.ndarray]]) -> list[dict[str, Any]]:
    """How far apart the framework's two ways to run the model are; empty where there is only one."""
    return [difference(*pair) for pair in _pairs(goldens[0], goldens[1])] if len(goldens) > 1 else []


def _pairs(ours: list[np.ndarray], theirs: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for mine, golden in zip(ours, theirs, strict=True):
        if mine.shape != golden.shape:
            raise ValueError(f"output of shape {mine.shape}, but the framework's is {golden.shape}")
        yield mine, golden


def difference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """How far an output is from the framework's: see the module's docstring."""
    a, b = ours.astype(np.float64).reshape(-1), theirs.astype(np.float64).reshape(-1)
    largest = float(np.abs(a - b).max(initial=0.0))
    noise, signal = float(((a - b) ** 2).sum()), float((b**2).sum())
    step = quantization_step(theirs)
    return {
        "values": a.size,
        "apart": int((a != b).sum()),
        "largest": largest,
        "steps": largest / step if step else None,
        "of_range": largest / float(np.ptp(b)) if np.ptp(b) else 0.0,
        "sqnr_db": float(10 * np.log10(signal / noise)) if noise and signal else None,
        "cosine": float(a @ b / np.sqrt((a @ a) * (b @ b))) if (a @ a) * (b @ b) else 1.0,
        "argmax_equal": bool(a.argmax() == b.argmax()) if a.size else True,
    }


def quantization_step(values: np.ndarray) -> float | None:
    """The step between the values of a dequantized tensor, None where they are not on a grid."""
    if values.dtype.kind in "iub":
        return 1.0
    distinct = np.unique(values.astype(np.float64))
    if not 2 <= len(distinct) <= 1 << 12:
        return None
    step = float(np.diff(distinct).min())
    multiples = (distinct - distinct[0]) / step
    return step if np.abs(multiples - np.rint(multiples)).max() < 0.01 else None


# ---- output ------------------------------------------------------------------------------------------------------

HEADER = """\
| model | import s | build s | run ms | integer MAC | against | apart | largest | SQNR dB | itself | argmax | float |
|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---|---|"""


def _lines(row: dict[str, Any]) -> Iterator[str]:
    if "error" in row:
        yield f"| {row['model']} | {row['error']} | | | | | | | | | | |"
        return
    head = [row["model"], f"{row['import_s']:.1f}", f"{row['build_s']:.1f}", f"{row['run_ms']:.2f}"]
    head.append(f"{100 * row['coverage']:.2f} %")
    products = ", ".join(f"{count} {operator}" for operator, count in row["products_in_float"].items())
    notes = f"{len(row['notes'])} notes" if row["notes"] else ""
    in_float = "; ".join(filter(None, (products, notes)))
    for kind, outputs in row["goldens"].items():
        for index, found in enumerate(outputs):
            against = kind if len(outputs) == 1 else f"{kind} {index}"
            itself = _decibels(row["framework_apart"][index]) if row["framework_apart"] else ""
            cells = [*head, against, *_cells(found, itself), in_float]
            yield f"| {' | '.join(cells)} |"
            head, in_float = [""] * len(head), ""


def _cells(found: dict[str, Any], itself: str) -> list[str]:
    steps = f"{found['steps']:.3g} LSB" if found["steps"] is not None else f"{100 * found['of_range']:.2g} % of range"
    return [
        f"{found['apart']} of {found['values']}",
        steps if found["apart"] else "0",
        _decibels(found),
        itself,
        "equal" if found["argmax_equal"] else "differs",
    ]


def _decibels(found: dict[str, Any]) -> str:
    return f"{found['sqnr_db']:.1f}" if found["sqnr_db"] is not None else "∞"


def main() -> None:
    """Compare and print; a model that fails to import, build or run gets a row that says so, and the exit code is 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="only models whose name contains one of these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    print(f"qnn_ext {qnn_ext.__version__}, {options.threads} thread{'s' if options.threads > 1 else ''}.\n\n{HEADER}")
    rows = []
    for path in (path for folder in options.folders for path in models_in(folder)):
        if any(part in path.name for part in options.only):
            rows.append(_row(path, options.threads))
            print("\n".join(_lines(rows[-1])), flush=True)
            if options.json:
                write_text(options.json, json.dumps(rows, indent=2) + "\n")
    sys.exit(any("error" in row for row in rows))


def _row(path: Path, threads: int) -> dict[str, Any]:
    """A model's failure becomes a row and does not end the table."""
    try:
        return compare(path, threads)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
        return {"model": path.name, "error": text[:300]}


if __name__ == "__main__":
    main()
