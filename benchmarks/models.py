"""Model files: their format by suffix, the inputs stored beside them, their float twins, and where to look for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FORMATS = {
    ".tflite": "tflite",
    ".onnx": "onnx",
    ".pt2": "pt2",
    ".pt": "torchscript",
    "-symbol.json": "mxnet",
}
FLOAT_TWIN = ".float32.onnx"
ENGINES = ("fbgemm", "qnnpack", "onednn", "x86")

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "qnn_ext" / "data"
AT_HAND = ROOT.parent / "shared" / "models"


@dataclass(frozen=True)
class Model:
    """A model file."""

    path: Path

    @property
    def name(self) -> str:
        """The file's name without its format."""
        return self.path.name.removesuffix(self._suffix)

    @property
    def format(self) -> str:
        """tflite, onnx, pt2, torchscript or mxnet."""
        return FORMATS[self._suffix]

    @property
    def bytes(self) -> int:
        """Size of the model on disk, including a separate parameter file."""
        beside = self.path.parent.glob(f"{self.name}-[0-9]*.params") if self.format == "mxnet" else ()
        return sum(path.stat().st_size for path in (self.path, *beside))

    @property
    def engine(self) -> str | None:
        """PyTorch's quantized engine, taken from the file name, as TorchScript files do not record it."""
        return next((engine for engine in ENGINES if engine in self.name), None)

    @property
    def float_twin(self) -> Model | None:
        """The float32 file of the same network: NETWORK.float32.onnx for NETWORK.*, NAME_float32 for NAME_int8."""
        network = self.path.name.partition(".")[0]
        names = [f"{network}{FLOAT_TWIN}", self.path.name.replace("_int8", "_float32")]
        paths = [self.path.with_name(name) for name in names if name != self.path.name]
        return next((Model(path) for path in paths if path.exists()), None)

    @property
    def _suffix(self) -> str:
        return next(suffix for suffix in FORMATS if self.path.name.endswith(suffix))

    def stored_inputs(self) -> list[np.ndarray] | None:
        """Inputs from the archive beside the model, None where there is none."""
        if self.path.parent == BUNDLED:
            return _bundled_inputs(self.format)
        archive = archive_of(self.path)
        return read_archive(archive)[0] if archive else None


def is_model(path: Path) -> bool:
    """Whether a file name is that of a model."""
    return path.name.endswith(tuple(FORMATS))


def default_models() -> list[Model]:
    """The bundled models, then the real ones where available."""
    return find_models([BUNDLED, *(AT_HAND / folder for folder in ("tflite", "onnx", "pytorch", "mxnet"))])


def find_models(places: Sequence[Path]) -> list[Model]:
    """The models among files and folders, sorted by name within a folder. Folders that do not exist are skipped.

    NETWORK.float32.onnx is not listed: it is measured beside the models quantized from it.
    """
    found: dict[Path, Model] = {}
    for place in places:
        paths = sorted(place.iterdir()) if place.is_dir() else [place] if place.exists() else []
        paths = [path for path in paths if path == place or not path.name.endswith(FLOAT_TWIN)]
        found.update({path.resolve(): Model(path.resolve()) for path in paths if is_model(path)})
    return list(found.values())


# ---- archives of inputs and outputs ------------------------------------------------------------------------------


def archive_of(model: Path) -> Path | None:
    """The archive beside a model, None where there is none."""
    stem = Model(model).name
    candidates = (model.with_name(f"{stem}{ending}") for ending in (".npz", "_io.npz"))
    return next((path for path in candidates if path.exists()), None)


def read_archive(path: Path) -> tuple[list[np.ndarray], dict[str, list[np.ndarray]]]:
    """The inputs, and the outputs by kind."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    inputs = _numbered(arrays, "input") or _numbered(arrays, "input0") or [arrays["x"]]
    found = dict.fromkeys(name.rpartition("_")[0] for name in arrays if name.rpartition("_")[2].isdigit())
    kinds = [kind for kind in found if not kind.startswith("input") and not kind.endswith("1")]
    outputs = {kind.removesuffix("0"): _numbered(arrays, kind) for kind in kinds}
    return inputs, outputs or {"framework": [arrays["y"]]}


def _numbered(arrays: dict[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    while f"{prefix}_{len(found)}" in arrays:
        found.append(arrays[f"{prefix}_{len(found)}"])
    return found


def _bundled_inputs(form: str) -> list[np.ndarray] | None:
    """One held-out digit for the models that take float images; TFLite models state their inputs themselves."""
    if form == "tflite":
        return None
    with np.load(BUNDLED / "digits_frameworks.npz", allow_pickle=False) as stored:
        return [stored["x"][0]]
