"""The right answers of a data set: from an array, a text file, the data itself or the names of sub-folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files.reading import Npz, read_npy, read_text
from ..quantize.dataset import plain_array


class Labels:
    """The label of each sample of a data set, as a number of a class where it is the name of one.

    labels:  an array with a label for each sample; the path of an .npy file, of an .npz file with one array, or of a
             text file with lines `file label`, or `label` for each sample in order (of files: sorted by path). None:
             those that come with the data, or the names of the first level of sub-folders
    classes: names of the classes in order, or the path of a text file with one in each line, of which the first word is
             enough, as in `n01440764 tench`. Without, names are numbered in alphabetical order if there are as many as
             the model has classes
    offset:  is added to labels that are numbers: 1 for a model whose class 0 is the background
    number:  how many classes the model has, if it is known to be a classifier
    """

    def __init__(
        self,
        labels: Any = None,
        classes: Sequence[str] | str | os.PathLike | None = None,
        offset: int = 0,
        number: int | None = None,
    ) -> None:
        self.path: Path | None = None
        self._list: Any = None
        self._by_file: dict[str, str] = {}
        self._offset, self._number = offset, number
        self._folder: Path | None = None
        self._names: dict[str, int | None] | None = None if classes is None else _numbers(_lines(classes))
        if isinstance(labels, (str, os.PathLike)):
            self.path = Path(labels)
            self._read(self.path)
        elif labels is not None:
            self._list = plain_array(labels)

    @property
    def count(self) -> int | None:
        """How many there are in a list."""
        return None if self._list is None else len(self._list)

    def in_folder(self, folder: Path, files: Sequence[Path]) -> None:
        """Note the folder that samples come from, and the classes that its sub-folders name."""
        self._folder = folder
        names = sorted({self._sub_folder(file) for file in files} - {""})
        if self._names is None and names and self._list is None and not self._by_file:
            self._number_names(names, f"{folder} has {len(names)} sub-folders")

    def at(self, position: int, given: Any, file: Path | None, where: str) -> Any:
        """The label of a sample; None if it has none.

        given: the one that the data have; file: that the sample comes from; where: its name in messages
        """
        if self._list is not None:
            if position >= len(self._list):
                raise InputError(f"{where}: there are only {len(self._list)} labels")
            return self._number_of(self._list[position], where)
        if self._by_file:
            return self._number_of(self._listed(file, where), where)
        if given is not None:
            return self._number_of(given, where)
        name = "" if file is None else self._sub_folder(file)
        return self._number_of(name, where) if name else None

    # ---- where they come from

    def _read(self, path: Path) -> None:
        if path.suffix.lower() == ".npy":
            self._list = read_npy(path, InputError)
        elif path.suffix.lower() == ".npz":
            with Npz(path, InputError) as archive:
                if len(archive.names()) != 1:
                    raise InputError(f"{path}: labels are one array, found {', '.join(archive.names())}")
                self._list = archive[archive.names()[0]]
        else:
            self._read_lines(path)

    def _read_lines(self, path: Path) -> None:
        rows = [_fields(line) for line in _lines(path)]
        if not rows:
            raise InputError(f"{path}: there are no labels in it")
        if len({len(row) for row in rows}) > 1:
            raise InputError(f"{path}: each line must be `file label`, or each line a label; found both")
        if len(rows[0]) == 1:
            self._list = [row[0] for row in rows]
        else:
            self._by_file = {row[0]: row[1] for row in rows}
            names = sorted(set(self._by_file.values()))
            if self._names is None and not all(map(_is_number, names)):
                self._number_names(names, f"{path} has {len(names)} different labels")

    def _listed(self, file: Path | None, where: str) -> str:
        if file is None:
            raise InputError(f"{self.path} has labels of files, but the data are no folder of files")
        inside = file.relative_to(self._folder).as_posix() if self._folder is not None else file.name
        for name in (inside, file.name, file.stem):
            if name in self._by_file:
                return self._by_file[name]
        raise InputError(f"{where}: {self.path} has no label for this file")

    def _sub_folder(self, file: Path) -> str:
        parts = () if self._folder is None else file.relative_to(self._folder).parts
        return parts[0] if len(parts) > 1 else ""

    # ---- names of classes

    def _number_names(self, names: Sequence[str], found: str) -> None:
        """Number the classes if nothing else does."""
        if all(map(_is_number, names)):
            return
        if self._number is not None and len(names) != self._number:
            raise InputError(
                f"{found}, but the model has {self._number} classes: give the names of all classes in order (--classes)"
            )
        self._names = {name: index for index, name in enumerate(names)}

    def _number_of(self, label: Any, where: str) -> Any:
        """A class by its number, whether it is given as a name or as a number; arrays stay as they are."""
        if isinstance(label, str) and self._names is not None and label in self._names:
            index = self._names[label]
            if index is None:
                raise InputError(f"{where}: several classes are named {label!r}: label it with a number")
            return index
        if isinstance(label, str):
            if not _is_number(label):
                hint = "" if self._names is not None else "; --classes gives the names of all classes in order"
                raise InputError(f"{where}: label {label!r} is neither a number nor the name of a class{hint}")
            label = int(label)
        if np.ndim(label) == 0 and np.asarray(label).dtype.kind in "iu":
            return int(label) + self._offset
        return label


def _lines(source: Sequence[str] | str | os.PathLike) -> list[str]:
    if isinstance(source, (str, os.PathLike)):
        source = read_text(source, InputError).splitlines()
    return [line.strip() for line in source if line.strip()]


def _numbers(lines: Sequence[str]) -> dict[str, int | None]:
    """The number of each class by its whole line and by its first word; None for what names several."""
    found: dict[str, int | None] = {}
    for key in (lambda line: line.split()[0], lambda line: line):
        taken: dict[str, int | None] = {}
        for index, line in enumerate(lines):
            taken[key(line)] = None if key(line) in taken else index
        found |= taken
    return found


def _fields(line: str) -> list[str]:
    """A line's file and label, or its only word."""
    for separator in ("\t", ","):
        if separator in line:
            return [part.strip() for part in line.rsplit(separator, 1)]
    return line.rsplit(None, 1)


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()
