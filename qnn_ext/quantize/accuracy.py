"""How good a quantized model is: its outputs against those of the float model, and how much of it has 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..compiling.build import compile_module
from ..compiling.coverage import coverage
from ..files.cache import Cache
from ..module import QnnModule
from ..running.engine import Engine
from .analysis import Fidelity
from .choose import affordable
from .compare import compare
from .dataset import Batches, ShardedBatches
from .report import decibel, plain

_SAMPLES = 16, 64  # batches, of large and of small models


@dataclass(frozen=True)
class QuantizedAccuracy:
    """A quantized model against the float one, on the first batches of the data that it was quantized with.

    outputs: model output → Fidelity of what the integers compute; samples: batches
    share_in_8_bits: of the multiply-accumulates whose operands both have at most 8 bits
    """

    outputs: Mapping[str, Fidelity]
    samples: int
    share_in_8_bits: float

    @property
    def summary(self) -> str:
        """Everything in one line."""
        found = ", ".join(f"{name} {decibel(one.sqnr)}" for name, one in self.outputs.items())
        where = f"{self.samples} batch{'' if self.samples == 1 else 'es'}"
        return f"SQNR on {where}: {found}; {100 * self.share_in_8_bits:.1f} % of the multiply-accumulates in 8 bits"

    def to_json(self) -> dict[str, Any]:
        """As JSON values; infinite SQNR, of equal outputs, is null."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def measured(
    exact: QnnModule, quantized: QnnModule, data: Batches | None, engine: Engine | None = None
) -> QuantizedAccuracy | None:
    """The accuracy of a quantized model; None without data, with data that other machines read, and of outputs whose
    size is known only at run time, which cannot be compared value by value.

    exact: the float model; engine: what runs the quantized one, if it is built
    """
    remote = isinstance(data, ShardedBatches) and data.dataset.map is not None
    if data is None or remote or any(spec.bounded for spec in exact.outputs):
        return None
    cache = Cache.of_user()
    reference = compile_module(exact, cache=cache)
    found = compare(reference, engine or compile_module(quantized, cache=cache), data, affordable(exact, *_SAMPLES))
    outputs = {name: output.fidelity for name, output in found.outputs.items()}
    return QuantizedAccuracy(outputs, found.samples, coverage(quantized).share_in_8_bits)
