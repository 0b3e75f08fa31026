"""Near-ties: the scales at which a result of LiteRT changes, to the last bit of a float32.

For a case of `cases.py`, an element of the output and the scale of an input or of the output there are two neighbouring
float32 scales, `bits` and `bits + 1`, between which LiteRT's result jumps, so that the real number is a midpoint for
one of the two to within rounding. Every rounding on the way shows there: of products of scales, of multipliers, of
intermediate results. `generate_ties.py` finds them by bisection and writes `data/near_ties.json.xz`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

PATH = Path(__file__).parent / "data" / "near_ties.json.xz"


@dataclass(frozen=True)
class NearTie:
    """One element of a case's last trial.

    offset:         of the scale in the .tflite file; the scale is a float32
    output:         index of the output, element: flat index into it
    bits:           the scale below, as an integer
    before, after:  the element with the scale `bits` and with `bits + 1`
    """

    offset: int
    output: int
    element: int
    bits: int
    before: int
    after: int

    def sides(self, model: bytes) -> Iterator[tuple[bytes, int]]:
        """The model with either scale, and the element's value."""
        for bits, expected in ((self.bits, self.before), (self.bits + 1, self.after)):
            yield with_scale(model, self.offset, bits), expected


@dataclass(frozen=True)
class Ties:
    """The near-ties of one case under LiteRT's reference kernels and under its default resolver."""

    reference: tuple[NearTie, ...]
    default: tuple[NearTie, ...]


def with_scale(model: bytes, offset: int, bits: int) -> bytes:
    """The file with another float32 at an offset."""
    return model[:offset] + bits.to_bytes(4, "little") + model[offset + 4 :]


@lru_cache(maxsize=1)
def load_ties() -> dict[str, Ties]:
    """Case name -> its near-ties."""
    packed = json.loads(lzma.decompress(PATH.read_bytes()))
    return {name: Ties(*(tuple(NearTie(*tie) for tie in ties) for ties in both)) for name, both in packed.items()}


def write_ties(found: dict[str, Ties]) -> None:
    """The file, one line a case."""
    lines = [f"{json.dumps(name)}: {_packed(ties)}" for name, ties in sorted(found.items())]
    PATH.write_bytes(lzma.compress(("{\n" + ",\n".join(lines) + "\n}\n").encode(), preset=9))


def _packed(ties: Ties) -> str:
    return json.dumps(
        [[astuple(tie) for tie in side] for side in (ties.reference, ties.default)], separators=(",", ":")
    )
