"""Integer coverage: how many of a module's multiply-accumulates run as integers, and which layers stay float.

It counts the convolutions, dense layers and matrix products of a module as a frontend returns it, before any pass of
the build; elementwise work is not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..module import QnnModule
from ..op.relax_table import traits_of
from ..op.traits import Product as Products
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


def macs_of(call: Any) -> int | None:
    """Multiply-accumulates of a call, None if it is not a product."""
    product = traits_of(call).product
    if product is None:
        return None
    data, weight = traits_of(call).operands(call)
    if product is Products.MATRIX:
        return _size(call) * _dims(data)[-1]
    if product is Products.CONVOLUTION:
        return _size(call) * _size(weight) // _channels(call, call)
    return _size(data) * _size(weight) // _channels(call, data)  # every input value is multiplied by every tap


def _is_integer(call: Any) -> bool:
    return all("int" in str(operand.ty.dtype) for operand in traits_of(call).operands(call))


def _bits(call: Any) -> int:
    return max(np.dtype(str(operand.ty.dtype)).itemsize * 8 for operand in traits_of(call).operands(call))


def _channels(call: relax.Call, data: Any) -> int:
    return _dims(data)[str(call.attrs["data_layout"]).index("C")]


def _dims(expr: Any) -> tuple[int, ...]:
    """The shape, with dynamic dimensions counted as 1."""
    return tuple(int(dim) if isinstance(dim, (int, tirx.IntImm)) else 1 for dim in expr.ty.shape)


def _size(expr: Any) -> int:
    return math.prod(_dims(expr))
