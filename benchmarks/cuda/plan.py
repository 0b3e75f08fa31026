"""What a run measures, in which order, and how long it may take."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..models import FLOAT_TWIN, Model, find_models

NETWORKS = ("resnet50", "mobilenet_v2", "vit_b_32", "bert_base")
BATCHES = (1, 8, 64)
FORMAT = "onnx-static"
FLOAT = re.compile("float(16|32)$")

GEMMS = ((4096, 4096, 4096), (8192, 4096, 1024), (3136, 576, 64), (784, 512, 128), (1600, 768, 3072), (1, 4096, 4096))
"""m, k, n: large ones; two layers of ResNet-50; ViT-B/32's MLP at batch 32; one row of activations."""


@dataclass(frozen=True)
class Item:
    """A model file for some batch size. `missing`: the network must be made first (`scripts.networks`)."""

    model: Model
    network: str
    batch: int
    missing: bool = False

    @property
    def float_twin(self) -> Path | None:
        """The float32 file of the same network and batch."""
        twin = self.model.path.with_name(self.model.path.name.partition(".")[0] + FLOAT_TWIN)
        return twin if twin.exists() else None


def plan(models: Sequence[Path], networks: Path, names: Sequence[str], batches: Sequence[int]) -> list[Item]:
    """The small quantized models, then the networks at the smallest batch, then at the next.

    Networks whose files are not in the folder are planned too.
    """
    quantized = [model for model in find_models(list(models)) if not FLOAT.search(model.name)]
    items = [Item(model, model.name, 1) for model in quantized]
    for batch in sorted(batches):
        for name in names:
            path = networks / f"{file_stem(name, batch)}.{FORMAT}.onnx"
            items.append(Item(Model(path), name, batch, not path.exists()))
    return items


def file_stem(name: str, batch: int) -> str:
    """The file names that `scripts.networks` gives a network."""
    return name if batch == 1 else f"{name}_b{batch}"


class Budget:
    """The time left of a run, in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the end, never negative."""
        return max(0.0, self._end - self._clock())

    def limit(self, wanted: float) -> float:
        """The seconds a step may take: what it asks for, or what is left."""
        return min(wanted, self.left)

    def allows(self, least: float) -> bool:
        """Whether there is time for a step that takes at least `least` seconds."""
        return self.left >= least
