"""The archives that generate.py writes: models around one operator each, with MXNet's outputs."""

from __future__ import annotations

import io
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Golden:
    """A model, one input and MXNet's output; None where MXNet does not run it."""

    symbol: str
    params: bytes
    x: np.ndarray
    y: np.ndarray | None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"data": self.x.shape}


@cache
def load(archive: str) -> dict[str, Golden]:
    """The cases of an archive by name."""
    with np.load(io.BytesIO(lzma.decompress((DATA / f"{archive}.npz.xz").read_bytes()))) as arrays:
        values = {key: arrays[key] for key in arrays.files}
    names = [key.removesuffix("/symbol") for key in values if key.endswith("/symbol")]
    return {
        name: Golden(
            symbol=values[f"{name}/symbol"].tobytes().decode(),
            params=values[f"{name}/params"].tobytes(),
            x=values[f"{name}/x"],
            y=values.get(f"{name}/y"),
        )
        for name in names
    }


EMPTY_PARAMS = (0x112).to_bytes(8, "little") + bytes(24)  # a .params file without arrays
