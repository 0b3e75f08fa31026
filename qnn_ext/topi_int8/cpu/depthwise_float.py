"""Depthwise conv2d of float32: the kernel of `depthwise_conv2d`, whose products and sums LLVM makes one instruction."""

from __future__ import annotations

from functools import partial

from tvm.target import Target

from ...targets.backend import Product
from ...targets.families import CPUS, backends_with
from ..refusal import lacking, other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload
from .depthwise_conv2d import Registers, compute, initial, pack_weight, schedule

COLUMNS = (4, 3, 5, 6, 7)


def _refuses(workload: Conv2dWorkload, target: Target, product: Product) -> str | None:
    return other_dtypes(workload, ("float32",), ("float32",), "float32") or lacking(target, product)


def _implementation(product: Product, priority: int) -> Implementation:
    registers = Registers(lanes=max(8, product.registers.lanes(32)), columns=COLUMNS)
    return Implementation(
        name=f"depthwise_conv2d_nhwc_{product.name}.cpu",
        priority=priority,
        backends=backends_with(product),
        depthwise=True,
        floats=True,
        accumulator="depthwise",
        refuses=partial(_refuses, product=product),
        compute=partial(compute, registers=registers),
        schedule=partial(schedule, registers=registers),
        pack_weight=partial(pack_weight, registers=registers),
        initial=partial(initial, registers=registers),
    )


for _backend in CPUS:
    for _priority, _product in enumerate(reversed(_backend.float_products), 10):
        register(Conv2dWorkload, _implementation(_product, _priority))
