"""qdq_to_integer: turns dequantize → float operator → quantize islands into integer operators.

QDQ graphs (ONNX QDQ, PyTorch PT2E) describe a quantized model in float. Two steps turn them into integers:

    hoist     quantize(move(x)) = move(quantize(x)) for operators that move values or keep their order, so that the
              quantization comes right after the computation
    integers  a forward walk that carries each dequantized tensor as integers with scale and zero point for as long
              as operators have an integer rule. A product of two such tensors is an int32 accumulator, itself a tensor
              with a scale, dequantized in the kernel's epilogue; functions of one 8-bit tensor become tables

Operators without a rule run in float on dequantized values, as the model specifies; each of them is reported.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Container

from tvm import IRModule

from ...module import FloatNote
from ..bodies import with_bodies
from .channels_first import channels_first
from .hoist import hoist_quantize
from .walker import Walker, is_qdq

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def qdq_to_integer(
    mod: IRModule, in_float: Container[str] = (), rounds_biases: bool = True, wide: Container[str] = ()
) -> tuple[IRModule, tuple[FloatNote, ...]]:
    """`mod` with integer operators wherever there is a rule, and a note for every operator that stays in float.

    in_float: operators that the framework computes in float, whose bits a rule would not give
    wide: the same where data or results have more than 8 bits; of matrix products, only those of two tensors that are
          computed at run time
    rounds_biases: whether float biases of products whose results are quantized become integers, as in ONNX Runtime

    `main` is a straight line of dataflow bindings. Functions without qnn.quantize and qnn.dequantize stay unchanged.
    The bodies of loops are converted each on its own.
    """
    inner: list[FloatNote] = []

    def convert(body: IRModule) -> IRModule:
        converted, found = qdq_to_integer(body, in_float, rounds_biases, wide)
        inner.extend(found)
        return converted

    mod, notes = Walker(
        hoist_quantize(channels_first(mod) if is_qdq(mod) else mod), in_float, rounds_biases, wide
    ).run()
    return with_bodies(mod, convert), (*notes, *inner)
