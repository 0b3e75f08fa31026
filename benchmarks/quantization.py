"""Accuracy of quantization on real data: every calibrator, against float and ONNX Runtime's quantize_static.

    python -m benchmarks.quantization [--networks cnn transformer] [--modes minmax mse ...]
                                      [--json FILE] [--markdown FILE]

Networks: the bundled float CNN and vision transformer for digits, calibrated on 400 training images, judged on 450
held-out ones. SQNR compares the logits with the float network's. Our rows are computed by the interpreter, which
compiled models equal bit for bit; ONNX Runtime runs with default settings. All rows take about ten minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.errors import QnnError
from qnn_ext.files.storage import write_text
from qnn_ext.module import QnnModule
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.pipeline import quantize

from . import onnxruntime_static

DATA = Path(qnn_ext.__file__).parent / "data"
NETWORKS = ("cnn", "transformer")
MODES = ("global_scale", "minmax", "moving_average", "percentile", "kl_divergence", "entropy", "mse")
BATCH = 50

Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Row:
    """One way to quantize a network, and the accuracy that remains.

    accuracy: share of held-out images classified correctly; agreement: share classified as by the float network
    sqnr:     SQNR of the logits, in dB
    """

    network: str
    tool: str
    mode: str
    per_channel: bool | None
    symmetric: bool | None
    accuracy: float
    agreement: float
    sqnr: float
    problem: str = ""


@dataclass(frozen=True)
class Case:
    """A float network with its data. `exact`: its logits on the held-out images."""

    name: str
    path: Path
    module: QnnModule
    calibration: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    exact: np.ndarray

    def row(self, tool: str, mode: str, per_channel: bool | None, symmetric: bool | None, run: Run | None) -> Row:
        """The row of a quantized network; `run` takes a batch."""
        found = self.exact if run is None else in_batches(run, self.images)
        answers, exact = found.argmax(1), self.exact.argmax(1)
        accuracy, agreement = float(np.mean(answers == self.labels)), float(np.mean(answers == exact))
        sqnr = fidelity(self.exact, found).sqnr
        return Row(self.name, tool, mode, per_channel, symmetric, accuracy, agreement, sqnr)


def in_batches(run: Run, images: np.ndarray) -> np.ndarray:
    """The results of all images, BATCH at a time."""
    return np.concatenate([run(images[start : start + BATCH]) for start in range(0, len(images), BATCH)])


def load_case(name: str) -> Case:
    """A bundled network."""
    path = DATA / f"digits_{name}_float32.onnx"
    module = qnn_ext.from_onnx(path, shapes={"image": (BATCH, 1, 8, 8)})
    with np.load(DATA / "digits_calibration.npz", allow_pickle=False) as stored:
        calibration = stored["image"]
    with np.load(DATA / "digits_test.npz", allow_pickle=False) as stored:
        images, labels = stored["x"][:, None].astype(np.float32) / 16, stored["y"]
    return Case(name, path, module, calibration, images, labels, in_batches(interpreted(module), images))


def interpreted(module: QnnModule) -> Run:
    """The module as a function of one batch."""
    interpreter = qnn_ext.Interpreter(module)
    return lambda images: np.asarray(interpreter(images))


# ---- ours --------------------------------------------------------------------------------------------------------


def our_rows(case: Case, modes: Sequence[str]) -> Iterator[Row]:
    """Each calibrator, per channel and per tensor, with and without zero points; then corrections and dynamic."""
    for mode in modes:
        for per_channel in (True, False):
            for symmetric in (False, True):
                yield our_row(case, mode, per_channel, symmetric, calibrate_mode=mode)
    best = {"calibrate_mode": "mse" if "mse" in modes else modes[-1]}
    yield our_row(case, f"{best['calibrate_mode']} + bias correction", True, False, bias_correction=True, **best)
    yield our_row(case, f"{best['calibrate_mode']} + equalization", False, False, equalize=True, **best)
    yield our_row(case, "dynamic", True, False, dynamic=True)


def our_row(case: Case, mode: str, per_channel: bool, symmetric: bool, **settings: Any) -> Row:
    """One configuration; if it is refused, its row says why."""
    dtype = "int8" if symmetric else "uint8"
    try:
        config = QConfig(per_channel=per_channel, symmetric=symmetric, dtype_input=dtype, **settings)
        run = interpreted(quantize(case.module, dataset=case.calibration, config=config))
        return case.row("qnn_ext", mode, per_channel, symmetric, run)
    except QnnError as error:
        return Row(case.name, "qnn_ext", mode, per_channel, symmetric, 0.0, 0.0, float("nan"), str(error))


# ---- ONNX Runtime ------------------------------------------------------------------------------------------------


def onnxruntime_rows(case: Case) -> Iterator[Row]:
    """quantize_static with each of its calibrators, QDQ, on the same float network and data."""
    from onnxruntime.quantization import CalibrationMethod

    with tempfile.TemporaryDirectory() as folder:
        prepared = onnxruntime_static.prepared(case.path, Path(folder) / "prepared.onnx")
        for method in (CalibrationMethod.MinMax, CalibrationMethod.Percentile, CalibrationMethod.Entropy):
            for per_channel in (True, False):
                for symmetric in (False, True):
                    run = quantized_by_onnxruntime(case, prepared, method, per_channel, symmetric)
                    yield case.row("ONNX Runtime", method.name.lower(), per_channel, symmetric, run)


def quantized_by_onnxruntime(case: Case, prepared: Path, method: Any, per_channel: bool, symmetric: bool) -> Run:
    """The network quantized by quantize_static, as a function of one batch."""
    starts = range(0, len(case.calibration), BATCH)
    feeds = ({"image": case.calibration[start : start + BATCH]} for start in starts)
    target = prepared.with_name("quantized.onnx")
    onnxruntime_static.quantized(prepared, target, feeds, method=method, per_channel=per_channel, symmetric=symmetric)
    session = onnxruntime_static.session(target, threads=1)
    return lambda images: np.asarray(session.run(None, {"image": images})[0])


# ---- the table ---------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """One table per network, the best SQNR of each tool in bold."""
    parts = []
    for name in dict.fromkeys(row.network for row in rows):
        mine = [row for row in rows if row.network == name]
        parts.append(f"### {name}\n")
        parts.append("| tool | ranges | weights | activations | accuracy | as float | SQNR |")
        parts.append("|---|---|---|---|---|---|---|")
        tools = {row.tool for row in mine}
        best = {tool: max(row.sqnr for row in mine if row.tool == tool and not row.problem) for tool in tools}
        parts += [_line(row, row.sqnr == best[row.tool] and row.tool != "float") for row in mine]
        parts.append("")
    return "\n".join(parts)


def _line(row: Row, best: bool) -> str:
    if row.tool == "float":
        return f"| float | | | | {100 * row.accuracy:.2f} % | | |"
    weights = "per channel" if row.per_channel else "per tensor"
    activations = "symmetric" if row.symmetric else "asymmetric"
    if row.problem:
        return f"| {row.tool} | {row.mode} | {weights} | {activations} | {row.problem} | | |"
    sqnr = f"**{row.sqnr:.1f} dB**" if best else f"{row.sqnr:.1f} dB"
    figures = f"{100 * row.accuracy:.2f} % | {100 * row.agreement:.2f} % | {sqnr}"
    return f"| {row.tool} | {row.mode} | {weights} | {activations} | {figures} |"


def measure(networks: Sequence[str], modes: Sequence[str], peers: bool = True) -> Iterator[Row]:
    """All rows, one by one. Without onnxruntime, its rows are left out."""
    for name in networks:
        case = load_case(name)
        yield case.row("float", "", None, None, None)
        yield from our_rows(case, modes)
        if peers:
            try:
                yield from onnxruntime_rows(case)
            except ImportError as error:
                warnings.warn(f"no rows for ONNX Runtime: {error}; install the extra 'bench'", stacklevel=2)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    rows = []
    for row in measure(options.networks, options.modes):
        rows.append(row)
        print(_line(row, False), flush=True)
    table = markdown(rows)
    print(f"\n{table}")
    if options.markdown:
        write_text(options.markdown, table)
    if options.json:
        write_text(options.json, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
