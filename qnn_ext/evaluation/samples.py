"""Labelled data: arrays, files and folders become single samples in the order of a model's inputs, each with its label.

What a sample must look like, and its conversion to the inputs' shapes, are those of `quantize.dataset`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, QuantizationError
from ..files.reading import Npz, read_npy
from ..images import load_image
from ..module import TensorSpec
from ..quantize.dataset import ARRAY_SUFFIXES, IMAGE_SUFFIXES, batches, files_below, plain_array
from .labels import Labels

_LABELS = ("labels", "label", "y")  # names of the array of labels in an .npz file
_READ = (*ARRAY_SUFFIXES, *IMAGE_SUFFIXES)


@dataclass(frozen=True)
class Sample:
    """Real values for each input, with the model's own batch dimension of 1, and the label; None if it has none.

    where: the file or position that it comes from, for messages
    """

    values: list[np.ndarray]
    label: Any
    where: str


class Samples:
    """The samples of a data set, for one model; can be iterated repeatedly if the data set can.

    data:      an .npz file (arrays by input name, and `labels`, `label` or `y`), an .npy file, a folder of such files
               or of photos, also in sub-folders that name their classes; arrays by input name; an array; or an iterable
               of dicts, arrays or tuples, whose element after the inputs is the label
    inputs:    of the model. Data are real values, but arrays of a quantized input's own dtype are its integers
    labels:    see `labels.Labels`
    normalize: how pixels become values, see `qnn_ext.images`
    limit:     how many samples to use; None: all

    `batch` is the number of samples that one call takes; `count` the number of samples, None if unknown. Iterating
    raises InputError for what does not fit, naming it.
    """

    def __init__(
        self,
        data: Any,
        inputs: Sequence[TensorSpec],
        labels: Labels,
        normalize: str = "auto",
        limit: int | None = None,
    ) -> None:
        sizes = {spec.shape[0] if spec.shape else 0 for spec in inputs}
        self.batch = max(sizes) if len(sizes) == 1 else 0
        self.inputs = [_single(spec) for spec in inputs] if self.batch else list(inputs)
        self.batch = self.batch or 1
        self._data, self._labels, self._normalize, self._limit = data, labels, normalize, limit
        self._files: list[Path] | None = None
        if isinstance(data, (str, os.PathLike)):
            self._files = self._listed(Path(data))

    @property
    def count(self) -> int | None:
        """The number of samples if it is known without reading them: of photos, and of labels in a list."""
        known = self._labels.count
        if known is None and self._files and all(file.suffix.lower() in IMAGE_SUFFIXES for file in self._files):
            known = len(self._files)
        return known if known is None or self._limit is None else min(known, self._limit)

    def __iter__(self) -> Iterator[Sample]:
        notes: deque[tuple[Any, str]] = deque()
        reals = [replace(spec, dtype="float32", qparams=None) if spec.qparams else spec for spec in self.inputs]
        found = 0
        try:
            for values in batches(lambda: self._items(notes), reals):
                if found == self._limit:
                    return
                label, where = notes.popleft()
                yield Sample(values, label, where)
                found += 1
        except QuantizationError as error:  # of `batches`, which is made for calibration
            raise InputError(str(error)) from error
        if found < (self._labels.count or 0) and self._limit is None:
            raise InputError(f"there are {self._labels.count} labels, but {found} samples")

    def _items(self, notes: deque[tuple[Any, str]]) -> Iterator[dict[str, Any]]:
        """The values of one or more samples at a time, by input name; adds label and origin of each to `notes`."""
        position = 0
        for item, given, file in self._given() if self._files is None else self._read():
            if set(item) != {spec.name for spec in self.inputs}:
                yield item  # `batches` says what is missing
                continue
            values = {spec.name: _real(item[spec.name], spec) for spec in self.inputs}
            count = _samples(values[self.inputs[0].name], self.inputs[0])
            if given is not None and count == 1 and np.ndim(given) == 0:
                given = [given]
            if given is not None and np.shape(given)[:1] != (count,):
                where = file or f"sample {position} of the data"
                raise InputError(f"{where} has {count} samples, but labels of shape {np.shape(given)}")
            for index in range(count):
                where = str(file) if file is not None and count == 1 else f"sample {position} of the data"
                notes.append((self._labels.at(position, None if given is None else given[index], file, where), where))
                position += 1
            yield values

    # ---- arrays

    def _given(self) -> Iterator[tuple[dict[str, Any], Any, Path | None]]:
        """Arrays by input name and labels of each item of data in memory."""
        names = [spec.name for spec in self.inputs]
        data = self._data
        if isinstance(data, Mapping) or hasattr(data, "__array__"):
            data = [data]
        elif callable(data) and not hasattr(data, "__iter__"):
            data = data()
        if not isinstance(data, Iterable):
            raise InputError(f"data must be arrays, an iterable of them or a path, found {type(data).__name__}")
        for item in data:
            if isinstance(item, Mapping):
                yield *_split(dict(item), names), None
            elif isinstance(item, (tuple, list)):
                label = plain_array(item[len(names)]) if len(item) > len(names) else None
                yield dict(zip(names, item, strict=False)), label, None
            else:
                yield {names[0]: item}, None, None

    # ---- files

    def _listed(self, path: Path) -> list[Path]:
        """The files to read, sorted. Raises InputError if there are none, or of both kinds."""
        if path.is_dir():
            files = [file for file in files_below(path, _READ) if file != self._labels.path]
            if not files:
                raise InputError(f"{path}: the folder has no .npy, .npz or image file, nor have its sub-folders")
            photos = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
            arrays = [file for file in files if file.suffix.lower() in ARRAY_SUFFIXES]
            if photos and arrays:
                raise InputError(f"{path}: the folder has both arrays ({arrays[0].name}) and photos: keep one kind")
            self._labels.in_folder(path, files)
            return files
        if not path.exists():
            raise InputError(f"{path}: no such file or folder of data")
        if path.suffix.lower() not in ARRAY_SUFFIXES:
            raise InputError(f"{path}: data must be an .npy or .npz file, or a folder of arrays or photos")
        return [path]

    def _read(self) -> Iterator[tuple[dict[str, Any], Any, Path | None]]:
        assert self._files is not None
        for file in self._files:
            yield *self._content(file), file

    def _content(self, file: Path) -> tuple[dict[str, Any], Any]:
        """A file's arrays by input name, and its labels."""
        names = [spec.name for spec in self.inputs]
        if file.suffix.lower() == ".npz":
            with Npz(file, InputError) as archive:
                return _split({name: archive[name] for name in archive.names()}, names)
        if len(names) != 1:
            raise InputError(f"{file} is one array, but this model takes {len(names)} inputs: {', '.join(names)}")
        if file.suffix.lower() == ".npy":
            return {names[0]: read_npy(file, InputError, mapped=True)}, None
        return {names[0]: load_image(file, self.inputs[0], self._normalize)}, None


def _single(spec: TensorSpec) -> TensorSpec:
    """The input of one sample."""
    return replace(spec, shape=(1, *spec.shape[1:]))


def _split(arrays: dict[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Inputs and labels; a single array besides the labels needs no name."""
    key = next((name for name in _LABELS if name in arrays and name not in names), None)
    labels = None if key is None else plain_array(arrays.pop(key))
    if len(names) == 1 and len(arrays) == 1:
        return {names[0]: next(iter(arrays.values()))}, labels
    known = {name: value for name, value in arrays.items() if name in names}
    return known if len(known) == len(names) else arrays, labels


def _real(value: Any, spec: TensorSpec) -> Any:
    """Real values of a quantized input's own integers; anything else as it is."""
    if spec.qparams is None or isinstance(value, (int, float, list)):
        return value
    array = plain_array(value)
    return spec.qparams.dequantize(array) if array.dtype == spec.dtype else array


def _samples(value: Any, spec: TensorSpec) -> int:
    """How many samples an array has."""
    shape = np.shape(value)
    return int(shape[0]) if spec.shape and len(shape) == len(spec.shape) else 1
