"""TE stages of moves (permute_dims, reshape and the like): chains of them become one, with simple indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir import Range
from tvm.sym import Analyzer

Source = Callable[[Sequence[Any]], Sequence[Any]]


class Moves:
    """The stages of one kernel that only move elements, and the elements that each of them reads."""

    def __init__(self) -> None:
        self._read: dict[te.Tensor, tuple[te.Tensor, Source]] = {}  # stage -> tensor, indices of an element in that

    def permute(self, tensor: te.Tensor, axes: Sequence[int]) -> te.Tensor:
        """tensor.transpose(axes)"""
        shape = [int(tensor.shape[axis]) for axis in axes]
        return self._stage(tensor, shape, lambda i: [i[axes.index(axis)] for axis in range(len(axes))])

    def reshape(self, tensor: te.Tensor, shape: Sequence[int]) -> te.Tensor:
        """tensor.reshape(shape)"""
        sizes = [int(size) for size in tensor.shape]

        def source(indices: Sequence[Any]) -> list[Any]:
            flat = sum((i * math.prod(shape[axis + 1 :]) for axis, i in enumerate(indices)), tirx.const(0, "int32"))
            strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
            return [
                tirx.floormod(tirx.floordiv(flat, stride), size) for stride, size in zip(strides, sizes, strict=True)
            ]

        return self._stage(tensor, list(shape), source)

    def _stage(self, tensor: te.Tensor, shape: list[int], source: Source) -> te.Tensor:
        origin, before = self._read.get(tensor, (tensor, lambda indices: indices))

        def composed(indices: Sequence[Any]) -> list[Any]:
            analyzer = Analyzer()
            for index, size in zip(indices, shape, strict=True):
                if isinstance(index, tirx.Var):
                    analyzer.bind(index, Range(0, size))
            return [analyzer.simplify(index) for index in before(source(indices))]

        stage = te.compute(shape, lambda *indices: origin(*composed(indices)), name="moved")
        self._read[stage] = (origin, lambda indices: before(source(indices)))
        return stage
