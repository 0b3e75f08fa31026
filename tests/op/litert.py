"""One TFLite operator run by LiteRT's reference kernels: the goldens of rounding "TFLITE"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="the goldens come from LiteRT: pip install ai-edge-litert")

from ai_edge_litert.interpreter import Interpreter, OpResolverType

from qnn_ext.qparams import QParams
from tests.conformance.tflite_models.builder import Graph, Q


def quantization(qparams: QParams) -> Q:
    """QParams as the model builder takes them."""
    return Q(qparams.scale, qparams.zero_point, qparams.axis or 0)


def run_reference(
    operator: str,
    inputs: Sequence[tuple[np.ndarray, QParams | None]],
    shape: Sequence[int],
    out: QParams,
    constants: Sequence[tuple[np.ndarray, QParams | None]] = (),
    constants_first: bool = False,
    **options: Any,
) -> np.ndarray:
    """The operator's result on `inputs`, followed (or preceded) by `constants`, from the reference kernels.

    The resolver of reference kernels does not know every operator; ELU's only kernel is in the built-in resolver.
    """
    graph = Graph()
    indices = [graph.input(x.shape, str(x.dtype), quantization(q) if q else None) for x, q in inputs]
    fixed = [graph.const(x, q=quantization(q) if q else None) for x, q in constants]
    operands = fixed + indices if constants_first else indices + fixed
    graph.op(operator, operands, [graph.output(shape, out.dtype, quantization(out))], **options)
    kind = OpResolverType.BUILTIN_REF
    if operator == "ELU":
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=graph.build(), experimental_op_resolver_type=kind, num_threads=1)
    interpreter.allocate_tensors()
    for detail, (x, _) in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
