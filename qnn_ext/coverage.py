"""Integer coverage: how many of a module's multiply-accumulates run as integers, and which layers stay float.

Counted are convolutions, dense layers and matrix products of a module as a frontend yields it, before any pass of the
build; elementwise work is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from .module import QnnModule
from .passes.inline import inlined
from .passes.rewrite import bindings_of, op_name

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_MATRIX_PRODUCTS = ("qnn.dense", "qnn.contrib_dense_pack", "qnn.batch_matmul", "matmul")


@dataclass(frozen=True)
class Product:
    """One convolution or matrix product. `macs` is for a batch of one where the batch is open."""

    layer: str
    operator: str
    macs: int
    is_integer: bool


@dataclass(frozen=True)
class Coverage:
    """The products of a module in the order they run."""

    products: tuple[Product, ...]

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return sum(product.macs for product in self.products)

    @property
    def integer_macs(self) -> int:
        """Those of products of integers."""
        return sum(product.macs for product in self.products if product.is_integer)

    @property
    def share(self) -> float:
        """integer_macs / macs; 1 where there is nothing to multiply."""
        return self.integer_macs / self.macs if self.macs else 1.0

    @property
    def in_float(self) -> tuple[Product, ...]:
        """The products that stay float."""
        return tuple(product for product in self.products if not product.is_integer)


def coverage(module: QnnModule) -> Coverage:
    """The products of `module`'s main function."""
    found = []
    for binding in bindings_of(inlined(module.ir)["main"]):
        name = op_name(binding.value)
        count = _macs(name, binding.value)
        if count is not None:
            found.append(Product(binding.var.name, name, count, _is_integer(binding.value)))
    return Coverage(tuple(found))


def _macs(name: str, call: Any) -> int | None:
    """Multiply-accumulates of a call, None when it is no product."""
    if name in _MATRIX_PRODUCTS:
        return _size(call) * _dims(call.args[0])[-1]
    kind = name.removeprefix("qnn.").removeprefix("nn.")
    if kind in _CONVOLUTIONS:
        return _size(call) * _size(call.args[1]) // _channels(call, call)
    if kind.removesuffix("_transpose") in _CONVOLUTIONS:  # every input value meets every tap
        return _size(call.args[0]) * _size(call.args[1]) // _channels(call, call.args[0])
    return None


def _is_integer(call: Any) -> bool:
    return all("int" in str(operand.ty.dtype) for operand in call.args[:2])


def _channels(call: relax.Call, data: Any) -> int:
    return _dims(data)[str(call.attrs["data_layout"]).index("C")]


def _dims(expr: Any) -> tuple[int, ...]:
    """The shape, an open dimension counted as one."""
    return tuple(int(dim) if isinstance(dim, (int, tirx.IntImm)) else 1 for dim in expr.ty.shape)


def _size(expr: Any) -> int:
    return math.prod(_dims(expr))
