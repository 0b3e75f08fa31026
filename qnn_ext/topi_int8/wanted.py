"""What a target's integer kernels want: the one place that legalization, quantization and file order ask."""

from __future__ import annotations

from tvm.target import Target

from .features import has_feature, is_arm, is_cuda, is_x86
from .x86.intrin import INSTRUCTIONS

_ARM_SETS = ("i8mm", "dotprod", "neon")  # smmla, sdot, smlal: each some twice as fast as the next


def operand_dtypes(target: Target) -> tuple[str, str] | None:
    """The dtypes of activations and weights that the target's products take; None where they widen any 8-bit ones.

    x86's vpdpbusd multiplies uint8 × int8. ARM's sdot and smmla, and CUDA's dp4a and tensor cores, take signed operands
    on both sides; ARM without sdot widens to int16, from int8 so that its kernels know one dtype.
    """
    if is_arm(target) or is_cuda(target):
        return "int8", "int8"
    if is_x86(target):
        best = next((instruction for instruction in INSTRUCTIONS if instruction.available(target)), None)
        if best is not None and best.data_dtype != "int16":
            return best.data_dtype, best.weight_dtype
    return None


def speed_rank(target: Target) -> int:
    """How fast the target multiplies among those of its architecture, from 0 for the fastest; a GPU is before all."""
    if is_cuda(target):
        return -1
    if is_x86(target):
        available = [instruction.available(target) for instruction in INSTRUCTIONS]
    else:
        available = [has_feature(target, feature) for feature in _ARM_SETS]
    return available.index(True) if True in available else len(available)
