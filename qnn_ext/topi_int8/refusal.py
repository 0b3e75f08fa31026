"""Reasons for which implementations refuse a workload, in a few words for `inspect` and `profile`; None for no reason.

An implementation's `refuses` asks for them one after the other: first for what no CPU would change, such as a dtype,
then for what the target lacks, and last for what costs time to find out.
"""

from __future__ import annotations

from collections.abc import Collection

from tvm.target import Target

from ..targets.backend import Product
from ..targets.features import offers
from .workload import Workload


def other_dtypes(
    workload: Workload, data: Collection[str] | None = None, weights: Collection[str] | None = None, sums: str = "int32"
) -> str | None:
    """The operand, or sum, whose dtype is not among those given: any of the operands if None, and `sums` for sums."""
    for kind, dtype, taken in (
        ("sums", workload.out_dtype, (sums,)),
        ("weights", workload.weight_dtype, weights),
        ("activations", workload.data_dtype, data),
    ):
        if taken is not None and dtype not in taken:
            return f"{dtype} {kind}"
    return None


def lacking(target: Target, product: Product) -> str | None:
    """The features that a CPU must have for the product, if the target's has not."""
    if offers(target, product):
        return None
    return "needs " + " or ".join(" with ".join(together) for together in product.features)
