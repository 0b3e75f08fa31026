"""The single-operator models that the frontend is tested with, and the bundled network."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.frontends.mxnet.goldens import load

from ..formats import pack_mxnet
from . import DATA


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    symbol, params = DATA / "digits_mxnet-symbol.json", DATA / "digits_mxnet-0000.params"
    yield "digits.zip", pack_mxnet(symbol.read_text(), params.read_bytes(), {"data": (1, 1, 8, 8)})
    for archive in ("fused", "operators", "float", "uncalibrated"):
        for name, golden in load(archive).items():
            shapes = {name: tuple(map(int, shape)) for name, shape in golden.shapes.items()}
            yield f"{archive}/{name}.zip", pack_mxnet(json.dumps(json.loads(golden.symbol)), golden.params, shapes)
