"""PyTorch's quantized engines, whose arithmetic an import follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....errors import QnnError
from ..common import import_torch

ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")


def resolve_engine(engine: str | None) -> str:
    """The engine whose numerics the import follows: the given one, or the one PyTorch would use in this process."""
    torch = import_torch()
    engine = engine or torch.backends.quantized.engine
    if engine == "none" or engine not in ENGINES:
        raise QnnError(f"engine must be one of {', '.join(ENGINES)}, found {engine!r}")
    if engine not in torch.backends.quantized.supported_engines:
        supported = ", ".join(torch.backends.quantized.supported_engines)
        raise QnnError(f"this PyTorch lacks the quantized engine {engine!r}; it has {supported}")
    return str(engine)


@contextmanager
def quantized_engine(engine: str) -> Iterator[None]:
    """Makes PyTorch pack weights and run quantized operators with this engine within."""
    torch = import_torch()
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
