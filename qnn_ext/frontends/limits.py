"""How much an import may compute and keep: a damaged or hostile file is refused before it exhausts the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ModelFormatError

MAX_ELEMENTS = 2**31 - 1  # of a tensor without data in the file; constants are bounded by the file's size
MAX_FOLDED_ELEMENTS = 2**24  # of a constant made at import: more is a corrupt file, not a model
MAX_CONSTANT_ELEMENTS = 2**27  # of all constants and states together that are made at import
MAX_UNROLLED = 1024  # time steps, each of which becomes some twenty expressions
MAX_WINDOW_PADDING = 2**16  # rows or columns that a window may reach beyond the image
_SMALL_RESULT = 2**22  # elements that folding may make out of little


def check_elements(shape: Sequence[int], what: str = "the result", limit: int = MAX_ELEMENTS) -> tuple[int, ...]:
    """`shape` as a tuple. Raises ModelFormatError when a dimension is negative or it has more than `limit` elements."""
    if any(dim < 0 for dim in shape) or math.prod(shape) > limit:
        raise ModelFormatError(
            f"{what} would have shape {tuple(shape)}, which is beyond {limit} elements: the file is damaged"
        )
    return tuple(int(dim) for dim in shape)


class Budget:
    """Counts the elements of the constants and states that one import makes.

    in_file: elements of the file's own constants; weights may be converted a few times
    """

    def __init__(self, in_file: int) -> None:
        self.left = MAX_CONSTANT_ELEMENTS + 4 * in_file

    def charge(self, shape: Sequence[int]) -> None:
        """Count a tensor. Raises ModelFormatError when all together are too many."""
        self.left -= math.prod(check_elements(shape))
        if self.left < 0:
            raise ModelFormatError(
                f"constants and states of the model have over {MAX_CONSTANT_ELEMENTS} elements: the file is damaged"
            )

    def can_fold(self, result: Any, operands: Sequence[np.ndarray]) -> bool:
        """Whether a result is small enough to compute it at import: small at all, or about as big as its operands."""
        if not isinstance(result, relax.TensorType):
            return False
        size = math.prod(int(dim) for dim in result.shape)
        return size <= max(_SMALL_RESULT, 2 * max(operand.size for operand in operands))
