"""Data sets for calibration: whatever yields samples becomes a checked stream of the model's own batches.

Only the current batch is held in memory: arrays in `.npy` files are mapped, folders are read file by file, and
generators, which can be read only once, are kept in a temporary file for further passes.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import InputError, QuantizationError, QuantizationWarning
from ..files.reading import Npz, read_npy
from ..images import load_image
from ..module import TensorSpec
from .shards import Shards, shard_named

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
ARRAY_SUFFIXES = (".npy", ".npz")

Item = Mapping[str, Any]  # input name -> array


@dataclass(frozen=True)
class ImageFolder:
    """Photos as a data set: resized to the model's input and normalized as `qnn_ext.images` says.

    normalize: "0..1", "-1..1", "imagenet", "raw", or "auto": derived from the input's QParams, else 0..1
    limit:     how many files to use, sorted by name; None: all
    """

    path: str | os.PathLike
    normalize: str = "auto"
    limit: int | None = None


class Batches:
    """The samples of a data set in batches of the model's own size; can be iterated repeatedly.

    Each element is a list of arrays in the order of the model's inputs, with their shapes and dtypes, all finite.
    `count` is the number of elements if known: from the start for arrays and lists, else after the first pass.
    Iterating raises QuantizationError for a sample that does not fit, naming it. Warns with QuantizationWarning, once,
    if each input has the same value everywhere: from such data no ranges follow.
    """

    def __init__(self, source: Callable[[], Iterable[Any]], inputs: Sequence[TensorSpec], count: int | None) -> None:
        self.inputs = tuple(inputs)
        self.count = count
        self._source = source
        self._warned = False

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        count, rest = 0, None
        first: list[np.ndarray] | None = None  # while all values of each input are those of the first sample's
        for index, item in enumerate(self._source()):
            arrays = [
                _checked(value, spec, index)
                for value, spec in zip(_in_order(item, self.inputs, index), self.inputs, strict=True)
            ]
            if index == 0 or first is not None:
                first = _constant(arrays, first or arrays)
            pieces, rest = _cut(arrays, rest, self.inputs, index)
            count += len(pieces)
            yield from pieces
        if not count:
            self._nothing(rest)
        self.count = count
        if first is not None and not self._warned and any(array.size > 1 for array in first):
            self._warned = True
            shown = ", ".join(
                f"{spec.name!r} is {array.flat[0]} everywhere"
                for array, spec in zip(first, self.inputs, strict=True)
                if array.size
            )
            warnings.warn(
                f"the data set is constant: {shown}. Ranges follow from what a model sees: give samples as in use",
                QuantizationWarning,
                stacklevel=2,
            )

    def _nothing(self, rest: list[np.ndarray] | None) -> None:
        if rest is None:
            raise QuantizationError("the data set is empty: calibration needs at least one sample")
        found, needed = next(
            (len(array), spec.shape[0]) for array, spec in zip(rest, self.inputs, strict=True) if spec.shape
        )
        raise QuantizationError(f"the data set has {found} samples, but one batch of this model needs {needed}")


class ShardedBatches(Batches):
    """The batches of all shards, one shard after another. A shard is looked at when its turn comes: its files may be on
    another machine."""

    def __init__(self, dataset: Shards, inputs: Sequence[TensorSpec]) -> None:
        super().__init__(tuple, inputs, None)
        self.dataset = dataset
        self._parts: dict[int, Batches] = {}  # what can be read only once is kept

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        count = 0
        for index, shard in enumerate(self.dataset.shards):
            with shard_named(index):
                if index not in self._parts:
                    self._parts[index] = batches(shard, self.inputs)
                for batch in self._parts[index]:
                    yield batch
                    count += 1
        self.count = count


def batch_size_of(inputs: Sequence[TensorSpec]) -> int:
    """Samples in each batch."""
    return max(1, inputs[0].shape[0]) if inputs and inputs[0].shape else 1


def batches(dataset: Any, inputs: Sequence[TensorSpec]) -> Batches:
    """The data set as a checked stream of the model's batches.

    dataset: one of
             an array (N, …), or a dict name → array (N, …), for the whole set
             an iterable of samples or batches: dicts name → array, arrays, or tuples of arrays in input order (further
             elements, such as a loader's labels, are ignored). Torch tensors count as arrays
             a callable that returns such an iterable, called once per pass
             the path of an .npy or .npz file (arrays by input name), or of a folder of such files or of photos, or
             of folders of these
             an ImageFolder
             Shards: several of these
    inputs:  of the model; larger batches are cut to theirs, a sample without batch dimension gets one, and a further
             dimension in front counts batches. For a scalar there is one value, or one for each batch

    Raises QuantizationError at once for anything that is no data set, and while iterating for samples that do not fit.
    """
    if isinstance(dataset, Batches):
        return dataset
    if isinstance(dataset, Shards):
        return ShardedBatches(dataset, inputs)
    if dataset is None:
        raise QuantizationError("calibration needs a data set: pass dataset=..., or a calibration table")
    if isinstance(dataset, (str, os.PathLike)):
        return _from_path(Path(dataset), inputs)
    if isinstance(dataset, ImageFolder):
        return _from_images(dataset, inputs)
    if isinstance(dataset, np.ndarray) or _is_tensor(dataset):
        dataset = {_only(inputs, "one array").name: plain_array(dataset)}
    if isinstance(dataset, Mapping):
        return Batches(lambda: [dataset], inputs, _count([dataset], inputs))
    if isinstance(dataset, (list, tuple)):
        return Batches(lambda: dataset, inputs, _count(dataset, inputs))
    if callable(dataset) and not hasattr(dataset, "__iter__"):
        return Batches(dataset, inputs, None)
    if not isinstance(dataset, Iterable) and not hasattr(dataset, "__getitem__"):
        raise QuantizationError(
            f"a data set must be arrays, an iterable of them, a callable or a path, found {type(dataset).__name__}"
        )
    iterator = iter(dataset)
    if iterator is dataset:
        return Batches(_Spool(iterator, [spec.name for spec in inputs]), inputs, None)
    return Batches(lambda: dataset, inputs, None)


def _constant(arrays: list[np.ndarray], first: list[np.ndarray]) -> list[np.ndarray] | None:
    """`first` if all values of each array are the first of `first`'s."""
    pairs = zip(arrays, first, strict=True)
    return first if all(other.size and (array == other.flat[0]).all() for array, other in pairs) else None


# ---- one item ----------------------------------------------------------------------------------------------------


def _in_order(item: Any, inputs: Sequence[TensorSpec], index: int) -> list[Any]:
    """An item's value for each input."""
    names = [spec.name for spec in inputs]
    if isinstance(item, Mapping):
        missing = [name for name in names if name not in item]
        unknown = [name for name in item if name not in names]
        if missing:
            found = f"; found {', '.join(map(repr, unknown))}" if unknown else ""
            raise QuantizationError(f"sample {index} of the data set has no input {missing[0]!r}{found}")
        return [item[name] for name in names]
    if _is_row(item):
        if len(item) < len(inputs):
            raise QuantizationError(
                f"sample {index} of the data set has {len(item)} arrays, but this model takes {len(inputs)}: "
                f"{', '.join(map(repr, names))}"
            )
        return list(item[: len(inputs)])
    _only(inputs, f"sample {index} of the data set is one array")
    return [item]


def _only(inputs: Sequence[TensorSpec], what: str) -> TensorSpec:
    if len(inputs) != 1:
        raise QuantizationError(
            f"{what}, but this model takes {len(inputs)} inputs: {', '.join(repr(spec.name) for spec in inputs)}; "
            "give dicts with their names"
        )
    return inputs[0]


def _is_row(item: Any) -> bool:
    """Whether an item is a row of arrays, one for each input; a list of numbers is one array."""
    return isinstance(item, (tuple, list)) and not (item and all(np.isscalar(value) for value in item))


def _is_tensor(value: Any) -> bool:
    """Whether this is an array of another library: PyTorch, TensorFlow, JAX."""
    return hasattr(value, "__array__") and hasattr(value, "shape")


def plain_array(value: Any) -> np.ndarray:
    """A NumPy array of what may be a tensor of another library."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _checked(value: Any, spec: TensorSpec, index: int) -> np.ndarray:
    """An array for the input, of its dtype and rank, with any batch size; for a scalar one value, or one for each
    batch."""
    where = f"sample {index} of the data set, input {spec.name!r}"
    try:
        array = plain_array(value)
    except (TypeError, ValueError) as error:
        raise QuantizationError(f"{where}: not an array: {error}") from None
    if spec.shape and array.shape == spec.shape[1:]:
        array = array[None]
    elif spec.shape and array.ndim == 1 + len(spec.shape) and array.shape[1:] == spec.shape:
        array = array.reshape(-1, *spec.shape[1:])
    right = array.ndim == len(spec.shape) and array.shape[1:] == spec.shape[1:] if spec.shape else array.ndim < 2
    if not right:
        raise QuantizationError(f"{where} must have shape {_expected(spec)}, found {array.shape}{_order(array, spec)}")
    if array.dtype != spec.dtype:
        array = _converted(array, spec, where)
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            wrong, first = array.size - np.count_nonzero(finite), np.argwhere(~finite)[0].tolist()
            raise QuantizationError(
                f"{where} holds {wrong} values that are NaN or infinite, which cannot be quantized, the first at "
                f"{first}: clean the data"
            )
    return array


def _order(array: np.ndarray, spec: TensorSpec) -> str:
    """How to transpose an array whose dimensions are in another order, such as images with channels first."""
    if not 2 < array.ndim == len(spec.shape) < 6:
        return ""
    orders = ((0, *order) for order in itertools.permutations(range(1, array.ndim)))
    order = next((one for one in orders if tuple(array.shape[i] for i in one[1:]) == spec.shape[1:]), None)
    return "" if order is None else f": transpose its axes to {order}"


def _expected(spec: TensorSpec) -> str:
    return f"({', '.join(('N', *map(str, spec.shape[1:])))})" if spec.shape else "() or (N,)"


def _converted(array: np.ndarray, spec: TensorSpec, where: str) -> np.ndarray:
    """The array in the input's dtype, if that loses nothing but float precision."""
    wanted = np.dtype(spec.dtype)
    if array.dtype.kind == "f" and wanted.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    if array.dtype.kind in "iub" and wanted.kind in "iub":
        converted = array.astype(wanted)
        if np.array_equal(converted, array):
            return converted
    hint = "; normalize images first, or use an ImageFolder" if wanted.kind == "f" else ""
    raise QuantizationError(f"{where} must be {spec.dtype}, found {array.dtype}{hint}")


def _cut(
    arrays: list[np.ndarray], rest: list[np.ndarray] | None, inputs: Sequence[TensorSpec], index: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray] | None]:
    """Batches of the model's size, and the rest, left over for the next item."""
    if any(spec.shape and not spec.shape[0] for spec in inputs):
        return [arrays], None
    pairs = list(zip(arrays, inputs, strict=True))
    sizes = {len(array) // (spec.shape[0] if spec.shape else 1) for array, spec in pairs if array.ndim}
    if len(sizes) > 1:
        found = ", ".join(f"{spec.name!r}: {len(array)}" for array, spec in pairs if array.ndim)
        raise QuantizationError(f"sample {index} of the data set: the inputs have different batch sizes ({found})")
    if rest is not None:
        arrays = [
            np.concatenate([left, array]) if spec.shape else array
            for left, (array, spec) in zip(rest, pairs, strict=True)
        ]
        pairs = list(zip(arrays, inputs, strict=True))
    counts = [len(array) // spec.shape[0] for array, spec in pairs if spec.shape]
    whole = min(counts) if counts else max(sizes, default=1)
    pieces = [[_piece(array, spec, i) for array, spec in pairs] for i in range(whole)]
    left = [array[whole * spec.shape[0] :] if spec.shape else array for array, spec in pairs]
    more = any(len(array) for array, spec in zip(left, inputs, strict=True) if spec.shape)
    return pieces, left if more else None


def _piece(array: np.ndarray, spec: TensorSpec, index: int) -> np.ndarray:
    """The part of an array for one batch."""
    if spec.shape:
        size = spec.shape[0]
        return np.ascontiguousarray(array[index * size : (index + 1) * size])
    return np.asarray(array[min(index, array.size - 1)]) if array.ndim else array


def _count(items: Sequence[Any], inputs: Sequence[TensorSpec]) -> int | None:
    """How many of the model's batches the items in memory make; None if that is not obvious."""
    spec, samples = inputs[0], 0
    for item in items:
        first = item[0] if isinstance(item, tuple) and item else item
        value = item.get(spec.name) if isinstance(item, Mapping) else first
        shape = getattr(value, "shape", None)
        if shape is None or not spec.shape or not spec.shape[0]:
            return None
        samples += math.prod(map(int, shape[: max(0, 1 + len(shape) - len(spec.shape))]))
    return samples // spec.shape[0]


# ---- files -------------------------------------------------------------------------------------------------------


def files_below(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files in a folder and its sub-folders, such as one for each class, sorted; hidden ones are left out."""
    found = (file for file in folder.rglob("*") if file.suffix.lower() in suffixes)
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts))


def _from_path(path: Path, inputs: Sequence[TensorSpec]) -> Batches:
    if path.is_dir():
        files, photos = (files_below(path, suffixes) for suffixes in (ARRAY_SUFFIXES, IMAGE_SUFFIXES))
        if files and photos:
            raise QuantizationError(f"{path}: the folder has both arrays and photos: keep only one kind in a folder")
        if photos:
            return _from_images(ImageFolder(path), inputs)
        if not files:
            raise QuantizationError(f"{path}: the folder has no .npy, .npz or image file, nor have its sub-folders")
        return Batches(lambda: (_read(file, inputs) for file in files), inputs, None)
    if not path.exists():
        raise QuantizationError(f"{path}: no such data set")
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise QuantizationError(f"{path}: a data set must be an .npy or .npz file, or a folder of arrays or photos")
    whole = _read(path, inputs)
    return Batches(lambda: [whole], inputs, _count([whole], inputs))


def _read(path: Path, inputs: Sequence[TensorSpec]) -> Item:
    """The arrays of a file by input name; a single array needs no name. `.npy` files are mapped, not read."""
    if path.suffix.lower() == ".npy":
        name = _only(inputs, f"{path} is one array").name
        return {name: read_npy(path, QuantizationError, mapped=True)}
    with Npz(path, QuantizationError) as archive:
        names = archive.names()
        if len(inputs) == 1 and len(names) == 1:
            return {inputs[0].name: archive[names[0]]}
        missing = [spec.name for spec in inputs if spec.name not in names]
        if missing:
            found = ", ".join(map(repr, names))
            raise QuantizationError(f"{path}: there is no array {missing[0]!r}; found {found}")
        return {spec.name: archive[spec.name] for spec in inputs}


def _from_images(folder: ImageFolder, inputs: Sequence[TensorSpec]) -> Batches:
    path, spec = Path(folder.path), _only(inputs, "a folder of photos is one input")
    if not path.is_dir():
        raise QuantizationError(f"{path}: no such folder")
    files = files_below(path, IMAGE_SUFFIXES)[: folder.limit]
    if not files:
        raise QuantizationError(f"{path}: the folder has no photo ({', '.join(IMAGE_SUFFIXES)})")

    def photos() -> Iterator[np.ndarray]:
        one = TensorSpec(spec.name, (1, *spec.shape[1:]), spec.dtype, spec.qparams)
        for file in files:
            try:
                yield load_image(file, one, folder.normalize)
            except InputError as error:
                raise QuantizationError(f"data set: {error}") from error

    return Batches(photos, inputs, len(files) // max(spec.shape[0], 1))


class _Spool:
    """Lets an iterator be read several times by keeping what it yields in a temporary file."""

    def __init__(self, source: Iterator[Any], names: Sequence[str]) -> None:
        self._source = source
        self._names = names
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="qnn_ext_samples_")  # noqa: SIM115 (lives as long as this)
        weakref.finalize(self, self._file.close)
        self._offsets: list[tuple[int, list[str] | int]] = []

    def __call__(self) -> Iterator[Any]:
        index = 0
        while True:
            if index == len(self._offsets) and not self._pull():
                return
            yield self._replay(index)
            index += 1

    def _pull(self) -> bool:
        """Keep the next item of the source; False when there is none."""
        try:
            item = next(self._source)
        except StopIteration:
            return False
        keys: list[str] | int
        if isinstance(item, Mapping):
            keys = [name for name in item if name in self._names] or list(item)
            values = [item[name] for name in keys]
        elif _is_row(item):
            values = list(item[: len(self._names)])
            keys = len(values)
        else:
            keys, values = 0, [item]
        self._file.seek(0, os.SEEK_END)
        start = self._file.tell()
        try:
            for value in values:
                np.save(self._file, plain_array(value), allow_pickle=False)
        except (TypeError, ValueError) as error:
            index = len(self._offsets)
            raise QuantizationError(f"sample {index} of the data set is not made of arrays: {error}") from None
        self._offsets.append((start, keys))
        return True

    def _replay(self, index: int) -> Any:
        offset, keys = self._offsets[index]
        self._file.seek(offset)
        count = len(keys) if isinstance(keys, list) else max(keys, 1)
        arrays = [np.load(self._file, allow_pickle=False) for _ in range(count)]
        if isinstance(keys, list):
            return dict(zip(keys, arrays, strict=True))
        return tuple(arrays) if keys else arrays[0]
