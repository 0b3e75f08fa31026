"""The main use case on bundled data: compile the int8 digit classifier, classify the held-out digits, compare and time.

    make demo        or, from the repository root:   python -m scripts.demo

Compared on one thread: qnn_ext, LiteRT (XNNPACK), and TVM's own TFLite frontend on the same file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import qnn_ext
from benchmarks.runners import Runner, litert_runner, measure, qnn_ext_runner, tvm_runner

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = DATA / "digits_cnn_int8.tflite"
THREADS = 1


def main() -> None:
    """Print the table."""
    console = Console(highlight=False, width=110)
    images, labels = _held_out_digits()
    console.print(f"{MODEL.name}: {len(labels)} held-out digits, {THREADS} thread\n")

    runners: list[Runner] = []
    failures: dict[str, str] = {}
    setup_seconds: dict[str, float] = {}
    for name, make in _makers().items():
        started = time.perf_counter()
        try:
            runner = make()
            runner.outputs([images[0]])
        except Exception as error:
            if name == "qnn_ext":
                raise
            failures[name] = str(error).strip().splitlines()[-1]
            continue
        setup_seconds[name] = time.perf_counter() - started
        runners.append(runner)

    predictions = {runner.name: _classify(runner, images) for runner in runners}
    seconds = measure(runners)
    table = Table()
    table.add_column("runtime", no_wrap=True)
    for name in ("accuracy", "as LiteRT", "latency µs", "speed", "set-up s"):
        table.add_column(name, justify="right")
    reference = predictions.get("LiteRT")
    for name, found in predictions.items():
        table.add_row(
            name,
            f"{100 * np.mean(found == labels):.2f} %",
            "" if reference is None else f"{100 * np.mean(found == reference):.2f} %",
            f"{seconds[name] * 1e6:.1f}",
            f"{seconds['LiteRT'] / seconds[name]:.2f} ×" if "LiteRT" in seconds else "",
            f"{setup_seconds[name]:.2f}",
        )
    for name, problem in failures.items():
        table.add_row(name, f"failed: {problem}", "", "", "", "")
    console.print(table)
    console.print(
        "as LiteRT: images that get the same class from LiteRT. latency: one image, median, measured in turns.\n"
        "speed: against LiteRT's. set-up: import, compile, first call."
    )


def _makers() -> dict[str, Callable[[], Runner]]:
    return {
        "qnn_ext": lambda: qnn_ext_runner(MODEL, THREADS),
        "LiteRT": lambda: litert_runner(MODEL, THREADS),
        "TVM's frontend": lambda: tvm_runner(MODEL, THREADS),
    }


def _held_out_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images as the model's int8 inputs, each a batch of 1, and their labels."""
    with np.load(DATA / "digits_test.npz", allow_pickle=False) as stored:
        pixels, labels = stored["x"], stored["y"]
    qparams = qnn_ext.from_tflite(MODEL).inputs[0].qparams
    assert qparams is not None
    return qparams.quantize(pixels[:, None, :, :, None] / np.float32(16)), labels


def _classify(runner: Runner, images: np.ndarray) -> np.ndarray:
    return np.array([runner.outputs([image])[0].argmax() for image in images])


if __name__ == "__main__":
    main()
