"""Integer coverage: how many of a module's multiply-accumulates run as integers, and which layers stay float.

It counts the convolutions, dense layers and matrix products of a module as a frontend returns it, before any pass of
the build; elementwise work is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..module import QnnModule
from ..op.macs import macs_of
from ..op.relax_table import traits_of
from ..passes.bodies import every_binding
from ..passes.inline import inlined
from ..passes.rewrite import op_name


@dataclass(frozen=True)
class Product:
    """One convolution or matrix product.

    macs: for a batch of one if the batch size is dynamic, and for all rounds of a loop; of a loop with a condition, for
          one
    bits: of its wider operand if it is an integer product, else 32
    """

    layer: str
    operator: str
    macs: int
    is_integer: bool
    bits: int = 32


@dataclass(frozen=True)
class Coverage:
    """The products of a module, in execution order."""

    products: tuple[Product, ...]

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return sum(product.macs for product in self.products)

    @property
    def integer_macs(self) -> int:
        """The multiply-accumulates of integer products."""
        return sum(product.macs for product in self.products if product.is_integer)

    @property
    def share(self) -> float:
        """integer_macs / macs; 1 if there are no products."""
        return self.integer_macs / self.macs if self.macs else 1.0

    @property
    def share_in_8_bits(self) -> float:
        """The share of products of operands of at most 8 bits; 1 if there are no products."""
        narrow = sum(product.macs for product in self.products if product.bits <= 8)
        return narrow / self.macs if self.macs else 1.0

    @property
    def in_float(self) -> tuple[Product, ...]:
        """The products that stay float."""
        return tuple(product for product in self.products if not product.is_integer)


def coverage(module: QnnModule) -> Coverage:
    """The products of `module`'s main function."""
    found = []
    for binding, rounds in every_binding(inlined(module.ir)):
        count = macs_of(binding.value)
        if count is not None:
            is_integer = _is_integer(binding.value)
            bits = _bits(binding.value) if is_integer else 32
            found.append(Product(binding.var.name, op_name(binding.value), count * rounds, is_integer, bits))
    return Coverage(tuple(found))


def _is_integer(call: Any) -> bool:
    return all("int" in str(operand.ty.dtype) for operand in traits_of(call).operands(call))


def _bits(call: Any) -> int:
    return max(np.dtype(str(operand.ty.dtype)).itemsize * 8 for operand in traits_of(call).operands(call))
