"""What ONNX operators say and the Relax operators made of them do not, as marks of variables: an attribute of `main`
from the import of a model to `onnxruntime_rows`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tvm import IRModule, relax

from .rewrite import with_main

_MARKS = "marks"


class Mark(Enum):
    """Of a variable of `main`.

    FLATTEN:        a reshape by Flatten
    FUNCTION:       a function of a whole tensor that is an operator of ONNX, not part of another
    GLOBAL_AVERAGE: a mean by GlobalAveragePool
    NORM_OF_SUM:    a normalization by an operator that computes the sum, too
    PRODUCT:        a product that ONNX Runtime computes in float
    SCALED_PRODUCT: the sum of a Gemm whose product is multiplied by a number
    SUM:            a sum by ReduceSum
    UNLIKE_SHAPES:  a sum of tensors whose shapes are equal only once open dimensions are fixed
    """

    FLATTEN = "flatten"
    FUNCTION = "function"
    GLOBAL_AVERAGE = "global average"
    NORM_OF_SUM = "norm of sum"
    PRODUCT = "product"
    SCALED_PRODUCT = "scaled product"
    SUM = "sum"
    UNLIKE_SHAPES = "unlike shapes"


def with_marks(mod: IRModule, marks: Mapping[str, Mark]) -> IRModule:
    """`mod` with these marks; marks: by the variables' names."""
    kinds = {name: mark.value for name, mark in marks.items()}
    return with_main(mod, mod["main"].with_attr(_MARKS, kinds)) if kinds else mod


def without_marks(mod: IRModule) -> IRModule:
    """`mod` without any."""
    return with_main(mod, mod["main"].without_attr(_MARKS)) if _MARKS in mod["main"].attrs else mod


def marks_of(function: relax.Function) -> dict[str, Mark]:
    """The marks of the variables that have one, by their names."""
    kinds = (function.attrs or {}).get(_MARKS) or {}
    return {str(name): Mark(str(kind)) for name, kind in kinds.items()}
