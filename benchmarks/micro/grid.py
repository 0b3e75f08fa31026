"""Every model as a C library on every kind of processor: one table of what equals its oracle, bit for bit.

    python -m benchmarks.micro.grid [--models NAME ...] [--targets NAME ...] [--json FILE]

Cortex-M boards run the real models of ../shared/models/tflite against LiteRT's reference kernels, whose outputs lie
beside them, and the bundled ones against the interpreter. Linux targets are built and run as a user does it: export,
`make`, `./example INPUT.bin OUTPUT.bin`, emulated where they are not this machine's, against the interpreter; models
with float layers are within 1e-5 of it. All of it takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

import qnn_ext
from qnn_ext import Interpreter, QnnModule
from qnn_ext.errors import QnnError
from qnn_ext.files.storage import write_text
from qnn_ext.targets.architectures import host_architecture
from tests.arm.test_models import digits
from tests.cases.bundled import DATA, module_of
from tests.export_c.libraries import example_outputs
from tests.micro import boards
from tests.micro.boards import BOARDS

SHARED = Path(__file__).parents[3] / "shared" / "models" / "tflite"
CORES = ("m0plus", "m3", "m4", "m7", "m33", "m55")
LINUX = {"native": host_architecture(), "rpi3": "aarch64", "armv7": "arm", "riscv64": "riscv64"}
FIRST = ("kws_ref_model", "vww_96_int8", "pretrainedResnet_quant", "ad01_int8", "micro_speech_quantized")
"""The models that microcontrollers are compared by; the other real ones follow."""

TOLERANCE = 1e-5
Result = str
"""What a cell of the table says."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="their names; by default all")
    parser.add_argument("--targets", nargs="+", default=[*CORES, *LINUX], choices=[*CORES, *LINUX])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out, cells = Console(), {}
    for model in options.models or models():
        for target in options.targets:
            cells[model, target] = cell(model, target)
            out.print(model, target, cells[model, target])
    out.print(table(cells, options.targets))
    if options.json:
        write_text(options.json, json.dumps([[*key, value] for key, value in cells.items()], indent=1))


def models() -> list[str]:
    """The models of ../shared/models by their names, bundled ones by their files'."""
    real = [path.stem for path in sorted(SHARED.glob("*.tflite"))]
    files = [path.name for path in sorted(DATA.iterdir()) if path.suffix in (".tflite", ".onnx", ".pt", ".pt2")]
    ordered = sorted(real, key=lambda name: (name not in FIRST, name))
    return [*ordered, *files, "digits_mxnet-symbol.json"]


def cell(model: str, target: str) -> Result:
    """One model on one target."""
    with TemporaryDirectory(prefix="qnn-ext-grid-") as folder:
        try:
            return (_on_board if target in CORES else _on_linux)(model, target, Path(folder))
        except QnnError as error:
            return f"refused: {error}"
        except Exception as error:  # the others go on
            said = str(error)
            return "too large" if "overflowed by" in said or "will not fit" in said else f"failed: {said[-300:]}"


def _on_board(model: str, target: str, folder: Path) -> Result:
    module, inputs, expected = _case(model, "tflite")
    found = boards.firmware(module, BOARDS[target], folder).run(*inputs)
    return _compared(module, found, expected)


def _on_linux(model: str, target: str, folder: Path) -> Result:
    module, inputs, expected = _case(model, None)
    exported = qnn_ext.build(module, target, num_threads=1, code=False).export_c(folder, weights="embedded")
    return _compared(module, example_outputs(exported, inputs), expected)


def _case(model: str, numerics: str | None) -> tuple[QnnModule, list[np.ndarray], list[np.ndarray]]:
    """A model with inputs and the outputs that it must have. numerics: whose rounding TFLite models take."""
    chosen = {"numerics": numerics} if numerics else {}
    path = SHARED / f"{model}.tflite"
    if path.exists():
        module = qnn_ext.from_tflite(path, **chosen)
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            inputs = [arrays[f"input0_{index}"] for index in range(len(module.inputs))]
            if numerics:
                return module, inputs, [arrays[f"ref0_{index}"] for index in range(len(module.outputs))]
    else:
        is_tflite = model.endswith(".tflite")
        module = qnn_ext.from_tflite(DATA / model, **chosen) if is_tflite else module_of(model)
        inputs = digits(module, 1)
    outputs = Interpreter(module)(*inputs)
    return module, inputs, outputs if isinstance(outputs, list) else [outputs]


def _compared(module: QnnModule, found: list[np.ndarray], expected: list[np.ndarray]) -> Result:
    pairs = list(zip(found, expected, strict=True))
    if all(np.array_equal(one, other) for one, other in pairs):
        return "exact"
    worst = max(float(np.abs(one.astype(np.float64) - other).max()) for one, other in pairs)
    floats = all(one.dtype.kind == "f" for one, _ in pairs)
    return f"within {worst:.1e}" if floats and worst <= TOLERANCE else f"differs by {worst:.3g}"


def table(cells: dict[tuple[str, str], Result], targets: list[str]) -> Table:
    """The grid: models × targets."""
    made = Table("model", *targets)
    for model in dict.fromkeys(model for model, _ in cells):
        made.add_row(model, *(cells[model, target].split(":")[0] for target in targets))
    return made


if __name__ == "__main__":
    main()
