"""What --input names, as calls of a model: images, arrays, sounds, raw bytes, folders of these, batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..files.reading import Npz, read_bytes, read_npy
from ..images import load_image
from ..module import TensorSpec, check_inputs, quantized
from ..running.engine import Engine
from ..sounds import load_sound

_NAMELESS = "arr_0"  # numpy.savez's name for an array that was given none
_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_FILES = {*_IMAGES, ".npy", ".npz", ".raw", ".wav"}


@dataclass(frozen=True)
class Call:
    """One call of the engine. by_sample: whether sample i of its batch is that of sources[i]."""

    sources: list[str]
    values: dict[str, np.ndarray]
    by_sample: bool = False


def calls_of(engine: Engine, inputs: Sequence[str], normalize: str) -> list[Call]:
    """The calls to make."""
    specs = {spec.name: spec for spec in engine.inputs}
    named = [(name, file) for name, _, file in (text.rpartition("=") for text in inputs) if name in specs]
    if len(named) == len(inputs):
        values = {name: _value(Path(file), specs[name], normalize) for name, file in named}
        return [Call([", ".join(file for _, file in named)], values)]
    if named:
        raise InputError("give NAME=FILE for every --input or for none")
    for text in inputs:
        name, equals, _ = text.rpartition("=")
        if equals and not Path(text).exists():
            known = ", ".join(map(repr, specs))
            raise InputError(f"--input {text}: there is no input {name!r} and no such file; this model takes {known}")
    files = [file for text in inputs for file in _files(Path(text))]
    if len(engine.inputs) == 1 and engine.inputs[0].shape and engine.inputs[0].shape[0] > 1:
        return _batches(files, engine.inputs[0], normalize)
    return [Call([str(file)], _values(file, engine.inputs, normalize)) for file in files]


def _files(path: Path) -> list[Path]:
    """A file itself; of a folder, what can be an input, by name."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in _FILES and file.is_file())
    if not found:
        raise InputError(f"{path}: in this folder are neither images nor .npy, .npz, .raw or .wav files")
    return found


def _batches(files: list[Path], spec: TensorSpec, normalize: str) -> list[Call]:
    """Calls of a model with one input for several samples: a file holds a whole batch, or one sample of it."""
    size = spec.shape[0]
    one = replace(spec, shape=(1, *spec.shape[1:]))
    calls: list[Call] = []
    samples: list[tuple[str, np.ndarray]] = []
    for file in files:
        values = _values(file, (one,), normalize, spec)
        if list(values) != [spec.name] or values[spec.name].shape == spec.shape:
            calls.append(Call([str(file)], values))
        else:
            samples += [(str(file), value) for value in check_inputs(values, [one])]
    for start in range(0, len(samples), size):
        group = samples[start : start + size]
        arrays = [value for _, value in group]
        filled = np.concatenate(arrays + arrays[-1:] * (size - len(arrays)))
        calls.append(Call([source for source, _ in group], {spec.name: filled}, by_sample=True))
    return calls


def of_samples(outputs: dict[str, np.ndarray], engine: Engine, count: int) -> dict[str, np.ndarray]:
    """The outputs of the first samples of a batch. Raises InputError if an output is not made of samples."""
    size = engine.inputs[0].shape[0]
    for name, value in outputs.items():
        if value.shape[:1] != (size,):
            raise InputError(
                f"output {name!r} of shape {value.shape} is not one result for each of the {size} samples: give the "
                "whole batch as one .npy array"
            )
    return {name: value[:count] for name, value in outputs.items()}


def _values(
    path: Path, specs: tuple[TensorSpec, ...], normalize: str, batch: TensorSpec | None = None
) -> dict[str, np.ndarray]:
    """All inputs of one call from one file. batch: what an array may hold instead of the input."""
    if path.suffix == ".npz":
        with Npz(path, InputError) as stored:
            arrays = {name: stored[name] for name in stored.names()}
        if len(specs) == 1 and list(arrays) == [_NAMELESS]:
            arrays = {specs[0].name: arrays[_NAMELESS]}
        by_name = {spec.name: spec for spec in specs}
        return {name: _fit(value, by_name[name], batch) if name in by_name else value for name, value in arrays.items()}
    if len(specs) != 1:
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InputError(f"this model takes {len(specs)} inputs ({names}): give --input NAME=FILE for each, or a .npz")
    return {specs[0].name: _value(path, specs[0], normalize, batch)}


def _value(path: Path, spec: TensorSpec, normalize: str, batch: TensorSpec | None = None) -> np.ndarray:
    """One input from an image, a .npy, a .wav or a .raw file."""
    if path.suffix == ".npy":
        return _fit(read_npy(path, InputError), spec, batch)
    if path.suffix == ".raw":
        return _raw(path, spec, batch)
    if path.suffix.lower() == ".wav":
        return load_sound(path, spec)
    return load_image(path, spec, normalize)


def _raw(path: Path, spec: TensorSpec, batch: TensorSpec | None) -> np.ndarray:
    """The bytes of a file as the input's values, row by row."""
    content = read_bytes(path, InputError)
    for one in (spec, batch):
        if one is not None and len(content) == np.dtype(one.dtype).itemsize * math.prod(one.shape):
            return np.frombuffer(content, one.dtype).reshape(one.shape)
    wanted = np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
    raise InputError(f"{path}: {len(content)} bytes, but input {spec.name!r} of {spec.dtype} has {wanted}")


def _fit(value: np.ndarray, spec: TensorSpec, batch: TensorSpec | None = None) -> np.ndarray:
    """An array as the input or as a whole batch: with a batch dimension of 1 where it has none, floats quantized."""
    if spec.shape[:1] == (1,) and value.shape == spec.shape[1:]:
        value = value[None]
    whole = spec if batch is None or value.shape != batch.shape else batch
    return quantized([value], [whole])[0]
