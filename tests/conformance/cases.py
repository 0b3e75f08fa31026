"""Single-operator conformance cases: models, inputs and LiteRT's outputs, read from `data/`.

`load_cases()` reads only the small indexes; a family's arrays are unpacked at the first access to one of its cases.
"""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=4)
def family_arrays(family: str) -> zipfile.ZipFile:
    """The unpacked archive of one family."""
    return zipfile.ZipFile(io.BytesIO(lzma.decompress((DATA / f"{family}.npz.xz").read_bytes())))


@dataclass(frozen=True)
class Case:
    """One model with the inputs of every trial and LiteRT's outputs.

    name:     OPERATOR/dtype/variant
    operator: the TFLite operator the case is about, as BuiltinOperator spells it, or the custom operator's name
    dtype:    int8, uint8, int16, int32, int64, bool, float32, float16, or hybrid (float activations, int8 weights)
    stateful: the trials are consecutive invocations that begin with reset variables; otherwise they are independent
    counted_by: index of the output that counts the defined rows (dimension 1) of the other outputs; LiteRT leaves the
              rows after them undefined, here they are zero
    reference_kernels: "reference", or "builtin" where the reference resolver lacks the operator or its version
    default_error: why the default resolver refuses the model, "" where it does not; `default` is then empty
    """

    name: str
    operator: str
    dtype: str
    family: str
    trials: int
    input_count: int
    output_count: int
    stateful: bool = False
    counted_by: int | None = None
    reference_kernels: str = "reference"
    default_error: str = ""
    default_differs: tuple[int, ...] = ()

    def array(self, key: str) -> np.ndarray:
        """One array of this case from its family's archive."""
        with family_arrays(self.family).open(f"{self.name}/{key}.npy") as stream:
            return np.lib.format.read_array(stream)

    def per_trial(self, keys: list[str]) -> list[list[np.ndarray]]:
        """Arrays stacked over the trials, regrouped as one list of tensors per trial."""
        stacks = [self.array(key) for key in keys]
        return [[np.asarray(stack[t]) for stack in stacks] for t in range(self.trials)]

    @property
    def model(self) -> bytes:
        """The .tflite file."""
        return self.array("model").tobytes()

    @property
    def inputs(self) -> list[list[np.ndarray]]:
        """The inputs of every trial, in model order."""
        return self.per_trial([f"in{i}" for i in range(self.input_count)])

    @property
    def reference(self) -> list[list[np.ndarray]]:
        """The outputs of LiteRT's reference kernels for every trial, in model order."""
        return self.per_trial([f"ref{o}" for o in range(self.output_count)])

    @property
    def default(self) -> list[list[np.ndarray]]:
        """The outputs of LiteRT's default resolver with XNNPACK for every trial, in model order."""
        if self.default_error:
            return []
        names = ["def" if o in self.default_differs else "ref" for o in range(self.output_count)]
        return self.per_trial([f"{name}{o}" for o, name in enumerate(names)])


def read_index(path: Path) -> dict:
    """One family's index: `cases` and `not_allowed`."""
    return json.loads(path.read_text())


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """Every case of every family, in a fixed order."""
    found = []
    for path in sorted(DATA.glob("*.json")):
        for entry in read_index(path)["cases"]:
            entry["default_differs"] = tuple(entry.get("default_differs", ()))
            operator, dtype, _ = entry["name"].split("/", 2)
            found.append(Case(operator=operator, dtype=dtype, family=path.stem, **entry))
    return tuple(found)


def load_cases(operator: str | None = None, dtype: str | None = None) -> list[Case]:
    """All cases, or those of one operator or dtype."""
    return [c for c in all_cases() if operator in (None, c.operator) and dtype in (None, c.dtype)]


def load_not_allowed() -> dict[str, str]:
    """Combinations that LiteRT's reference kernels refuse: case name to LiteRT's message."""
    refused: dict[str, str] = {}
    for path in sorted(DATA.glob("*.json")):
        refused.update(read_index(path)["not_allowed"])
    return refused
