"""CalibrationTable: the range of every site of a model, saved as JSON that can be read and edited by hand."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import QuantizationError
from ..files.reading import read_text
from ..files.storage import write_text
from ..module import QnnModule
from ..op.base import constant_value
from ..passes.rewrite import bindings_of, op_name, operands
from .ranges import Range

FORMAT, VERSION = "qnn_ext calibration table", 1


@dataclass(frozen=True)
class CalibrationTable(Mapping[str, Range]):
    """Site → Range.

    ranges: vectors for a weight with per-channel scales, numbers for everything else
    model:  `fingerprint` of the float model that it was made for, "" for any
    scales: what channels are divided by before, where `balance`, `equalize` and `smooth` are "auto": number of a group
            of tensors (see `scales.groups_of`) → factors
    factored: the tensors that get factors of their own for that (see `balance.with_factors`)
    biases: what bias correction subtracts: number of a product with a quantized weight → mean error of each channel
    roundings: where `weight_rounding` is "auto", weights that are not rounded to the nearest integers: site → by how
            many steps these differ (see `learned.encoded`)
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    model: str = ""
    scales: Mapping[int, Sequence[float]] = field(default_factory=dict)
    biases: Mapping[int, Sequence[float]] = field(default_factory=dict)
    factored: Sequence[str] = ()
    roundings: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, site: str) -> Range:
        return self.ranges[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __str__(self) -> str:
        width = max(map(len, self.ranges), default=0)
        return "\n".join(f"{site:{width}}  {found}  {found.method}".rstrip() for site, found in self.ranges.items())

    def with_ranges(self, ranges: Mapping[str, Range]) -> CalibrationTable:
        """The table with some ranges replaced or added."""
        return replace(self, ranges={**self.ranges, **ranges})

    def check(self, sites: Iterable[str], model: str = "") -> None:
        """Raises QuantizationError unless the table was made for this model and has exactly these sites."""
        if self.model and model and self.model != model:
            raise QuantizationError(
                f"the calibration table was made for another model (fingerprint {self.model}, this one has {model}): "
                'calibrate again, or delete "model" in the file to use it anyway'
            )
        wanted = list(sites)
        missing = [site for site in wanted if site not in self.ranges]
        unknown = sorted(set(self.ranges) - set(wanted))
        if missing or unknown:
            problem = "has no range for" if missing else "has ranges for unknown sites"
            raise QuantizationError(
                f"the calibration table {problem} {_listed(missing or unknown)}; it must match the model and the "
                "qconfig it was made with: calibrate again, or edit the table"
            )

    def save(self, path: str | os.PathLike) -> None:
        """Write the table as JSON, one line per site, sorted. Raises QuantizationError if it cannot be written."""
        header: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": self.model}
        for name, numbered in (("scales", self.scales), ("biases", self.biases)):
            if numbered:
                header[name] = {str(number): list(values) for number, values in numbered.items()}
        if self.factored:
            header["factored"] = list(self.factored)
        if self.roundings:
            header["roundings"] = dict(self.roundings)
        lines = [f"  {_dumps(site)}: {_dumps(_to_json(self.ranges[site]))}" for site in sorted(self.ranges)]
        fields = [f" {_dumps(key)}: {_dumps(value)}" for key, value in header.items()]
        content = ",\n".join([*fields, ' "ranges": {\n' + ",\n".join(lines) + "\n }"])
        write_text(path, "{\n" + content + "\n}\n", QuantizationError)

    @classmethod
    def load(cls, path: str | os.PathLike) -> CalibrationTable:
        """Read a table that `save` wrote. Raises QuantizationError naming the file and what is wrong with it."""
        try:
            content = json.loads(read_text(path, QuantizationError))
        except (ValueError, RecursionError) as error:
            raise QuantizationError(f"{path}: not a calibration table: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise QuantizationError(f'{path}: not a calibration table: "format" must be {FORMAT!r}')
        if content.get("version") != VERSION:
            raise QuantizationError(
                f"{path}: calibration table of version {content.get('version')!r}, but this qnn_ext reads version "
                f"{VERSION}"
            )
        ranges, model = content.get("ranges"), content.get("model", "")
        if not isinstance(ranges, dict) or not isinstance(model, str):
            raise QuantizationError(f'{path}: "ranges" must map sites to ranges, and "model" must be a string')
        scales = _numbered_from_json(content.get("scales", {}), f'{path}: "scales" must map numbers of groups', 0)
        biases = _numbered_from_json(content.get("biases", {}), f'{path}: "biases" must map numbers of products')
        factored = content.get("factored", [])
        if not isinstance(factored, list) or not all(isinstance(name, str) for name in factored):
            raise QuantizationError(f'{path}: "factored" must list names of tensors')
        roundings = content.get("roundings", {})
        if not isinstance(roundings, dict) or not all(isinstance(text, str) for text in roundings.values()):
            raise QuantizationError(f'{path}: "roundings" must map weights to text')
        found = {site: _from_json(value, f"{path}: {site}") for site, value in ranges.items()}
        return cls(found, model, scales, biases, tuple(factored), roundings)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _to_json(value: Range) -> dict[str, Any]:
    low, high = np.asarray(value.low).tolist(), np.asarray(value.high).tolist()
    return {
        "low": low,
        "high": high,
        **({"method": value.method} if value.method else {}),
        **({"extra": dict(value.extra)} if value.extra else {}),
    }


def _from_json(value: Any, where: str) -> Range:
    if not isinstance(value, dict) or not {"low", "high"} <= set(value) <= {"low", "high", "method", "extra"}:
        raise QuantizationError(f'{where}: a range must have "low" and "high", and may have "method" and "extra"')
    method, extra = value.get("method", ""), value.get("extra", {})
    if not isinstance(method, str) or not isinstance(extra, dict):
        raise QuantizationError(f'{where}: "method" must be a string and "extra" an object')
    try:
        return Range(value["low"], value["high"], method, extra)
    except QuantizationError as error:
        raise QuantizationError(f"{where}: {error}") from None


def _numbered_from_json(value: Any, problem: str, above: float = -np.inf) -> dict[int, list[float]]:
    """Lists of finite numbers above a bound, by number."""

    def right(number: str, values: Any) -> bool:
        numbers = isinstance(values, list) and all(type(one) in (int, float) for one in values)
        return number.isdecimal() and numbers and all(above < one < np.inf for one in values)

    if not isinstance(value, dict) or not all(right(number, values) for number, values in value.items()):
        kind = "positive factors" if above == 0 else "finite numbers"
        raise QuantizationError(f"{problem} to lists of {kind}")
    return {int(number): [float(one) for one in values] for number, values in value.items()}


def _listed(sites: list[str]) -> str:
    return ", ".join(map(repr, sites[:5])) + (f" and {len(sites) - 5} more" if len(sites) > 5 else "")


def fingerprint(module: QnnModule) -> str:
    """16 hexadecimal digits that identify a model by operators, types and constants, but not by variable names."""
    digest = hashlib.sha256()
    function = module.ir["main"]
    for param in function.params:
        digest.update(str(param.ty).encode())
    for binding in bindings_of(function):
        digest.update(f"{op_name(binding.value)} {binding.var.ty}".encode())
        for operand in operands(binding.value):
            value = constant_value(operand)
            if value is not None:
                digest.update(value.tobytes())
    return digest.hexdigest()[:16]
