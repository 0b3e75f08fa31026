"""Small programs with huge results are refused by computing their sizes."""

import pytest
import torch

from qnn_ext import LimitError, Limits, from_pytorch


class _Filled(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros_like(x.expand(self.count, 8)) + torch.arange(self.count).reshape(-1, 1)


class _Edges(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, 1 << 25), mode="replicate")


def exported(module: torch.nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.ones(1, 8),))


def test_filled_tensors():
    with pytest.raises(LimitError, match="--limit folded="):
        from_pytorch(exported(_Filled(4)), limits=Limits(folded=16))
    assert from_pytorch(exported(_Filled(4))).outputs[0].shape == (4, 8)


def test_edges():
    with pytest.raises(LimitError, match="--limit folded=33554440"):
        from_pytorch(exported(_Edges()))
