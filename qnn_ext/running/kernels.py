"""Kernel: what a compiled model records about each function it calls; UnreadKernels: those in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload


@dataclass(frozen=True)
class Kernel:
    """One call of a compiled function.

    symbol:         name of the function in the library
    layer:          the model's name for the tensor it computes
    operators:      what was fused, "conv2d_accumulate+add+requantize"
    implementation: the chosen implementation; "generic", or "relax" for kernels of TVM's own operators
    macs:           multiply-accumulates, 0 where there are none
    weight_bytes:   constants it reads
    data_bytes:     activations it reads and writes
    workload:       the product: "type" ("Conv2dWorkload", ...) and that workload's fields; empty where there is none
    reason:         why no faster implementation computes it: which were passed over, or why they refuse the product;
                    empty for kernels that run as intended
    sources:        the model's names for the tensors it computes, those that never reach memory too
    reads:          the kernels whose results it reads, by their place in execution order; -1 - i for the model's input
                    i, where states follow the inputs
    results:        "shape" and "dtype" of each tensor it writes; in a loop, of one round
    live_bytes:     feature maps and scratch buffers in memory while it runs
    """

    symbol: str
    layer: str
    operators: str
    implementation: str
    macs: int
    weight_bytes: int
    data_bytes: int
    workload: dict[str, Any] = field(default_factory=dict, hash=False)
    reason: str = ""
    sources: list[str] = field(default_factory=list, hash=False)
    reads: list[int] = field(default_factory=list, hash=False)
    results: list[dict[str, Any]] = field(default_factory=list, hash=False)
    live_bytes: int = 0


class UnreadKernels(Sequence[Kernel]):
    """The kernels of a file, not read until somebody looks at them: running a model takes none of them, and those of a
    language model fill 5 MB. Everything may raise ArtifactError."""

    def __init__(self, read: Callable[[], list[dict[str, Any]]]) -> None:
        """read: returns them as JSON, checked"""
        self._read = read

    @cached_property
    def _kernels(self) -> list[Kernel]:
        return [Kernel(**kernel) for kernel in self._read()]

    def __len__(self) -> int:
        return len(self._kernels)

    @overload
    def __getitem__(self, index: int) -> Kernel: ...

    @overload
    def __getitem__(self, index: slice) -> list[Kernel]: ...

    def __getitem__(self, index: int | slice) -> Kernel | list[Kernel]:
        return self._kernels[index]

    def __eq__(self, other: object) -> bool:
        return self._kernels == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(self._kernels)
