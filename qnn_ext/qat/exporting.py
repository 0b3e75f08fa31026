"""to_onnx: a converted program as ONNX with QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic

from ..errors import QnnError, UnsupportedOperatorError
from ..files.storage import replacing

OPSET = 17
_DTYPES = {torch.uint8: torch.iinfo(torch.uint8), torch.int8: torch.iinfo(torch.int8)}


def to_onnx(program: torch.export.ExportedProgram, path: str | os.PathLike[str] | None = None) -> Any:
    """A program from `convert` as an ONNX model, which is returned and, with a path, written there.

    Weights are int8 and biases int32 initializers behind DequantizeLinear; activations take QuantizeLinear, a Clip of
    integers where they have fewer than 8 bits, and DequantizeLinear. Inputs keep their names; outputs are output_0, ...

    QuantizeLinear divides by the scale where PyTorch multiplies by its reciprocal: the same for Cambricon's formula,
    else values within 2^-22 of a tie, relatively, may round to the other side.

    Raises UnsupportedOperatorError for operators that PyTorch's exporter does not know, QnnError without `onnx`.
    """
    try:
        import onnx
    except ImportError as error:
        raise QnnError(f"exporting to ONNX needs onnx: pip install 'qnn-ext[onnx]' ({error})") from error
    inputs, _ = program.example_inputs
    names = list(program.graph_signature.user_inputs)
    file: Any = io.BytesIO()
    module: Any = program.module()
    module.train = lambda mode=True: module  # the exporter calls it, programs refuse it
    with _operators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                inputs,
                file,
                dynamo=False,
                opset_version=OPSET,
                input_names=names,
                output_names=[f"output_{index}" for index in range(len(program.graph_signature.user_outputs))],
                do_constant_folding=True,
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            raise UnsupportedOperatorError(f"PyTorch cannot export the program to ONNX: {error}") from error
    model = onnx.load_from_string(file.getvalue())
    for node in model.graph.node:
        node.ClearField("doc_string")  # lines of this machine's files
    if path is not None:
        with replacing(path) as out:
            out.write(model.SerializeToString())
    return model


@contextmanager
def _operators() -> Iterator[None]:
    """Within, the exporter knows the operators of quantized programs."""
    for name, function in _SYMBOLS.items():
        register_custom_op_symbolic(f"quantized_decomposed::{name}", function, OPSET)
    try:
        yield
    finally:
        for name in _SYMBOLS:
            unregister_custom_op_symbolic(f"quantized_decomposed::{name}", OPSET)


def _quantize(g: Any, x: Any, scale: Any, zero_point: Any, low: Any, high: Any, dtype: Any) -> Any:
    low, high, dtype = (symbolic_helper._get_const(value, "i", "limits") for value in (low, high, dtype))
    kind = symbolic_helper.scalar_type_to_pytorch_type[dtype]
    q = g.op("QuantizeLinear", x, *_parameters(g, scale, zero_point, kind))
    if (low, high) == (_DTYPES[kind].min, _DTYPES[kind].max):
        return q
    return g.op("Clip", q, *(g.op("Constant", value_t=torch.tensor(limit, dtype=kind)) for limit in (low, high)))


def _dequantize(g: Any, q: Any, scale: Any, zero_point: Any, low: Any, high: Any, dtype: Any, out_dtype: Any) -> Any:
    kind = symbolic_helper.scalar_type_to_pytorch_type[symbolic_helper._get_const(dtype, "i", "dtype")]
    return g.op("DequantizeLinear", q, *_parameters(g, scale, zero_point, kind))


def _dequantize_channels(
    g: Any, q: Any, scale: Any, zero_point: Any, axis: Any, low: Any, high: Any, dtype: Any, out_dtype: Any
) -> Any:
    dtype = symbolic_helper._get_const(dtype, "i", "dtype")
    zero_point = g.op("Cast", zero_point, to_i=_onnx_type(symbolic_helper.scalar_type_to_pytorch_type[dtype]))
    axis = symbolic_helper._get_const(axis, "i", "axis")
    return g.op("DequantizeLinear", q, scale, zero_point, axis_i=axis)


_SYMBOLS: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor": _quantize,
    "dequantize_per_tensor": _dequantize,
    "dequantize_per_channel": _dequantize_channels,
}


def _parameters(g: Any, scale: Any, zero_point: Any, kind: torch.dtype) -> tuple[Any, Any]:
    step = torch.tensor(symbolic_helper._get_const(scale, "f", "scale"), dtype=torch.float32)
    offset = torch.tensor(symbolic_helper._get_const(zero_point, "i", "zero_point"), dtype=kind)
    return g.op("Constant", value_t=step), g.op("Constant", value_t=offset)


def _onnx_type(kind: torch.dtype) -> int:
    return {torch.uint8: 2, torch.int8: 3, torch.int32: 6}[kind]
