"""relay.frontend: models of other frameworks, as (module, params). The module holds its weights: params is empty."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, QnnError, ShapeError
from ..frontends.mxnet import from_mxnet as import_mxnet
from ..frontends.onnx import from_onnx as import_onnx
from ..frontends.pytorch import from_pytorch as import_pytorch
from ..frontends.tflite import from_tflite as import_tflite
from ..module import QnnModule
from .absent import refuse
from .arrays import array_of
from .expressions import Any_
from .modules import IRModule, named

Imported = tuple[IRModule, dict[str, Any]]


def from_tflite(
    model: Any,
    shape_dict: Mapping[str, Sequence[int]] | None = None,
    dtype_dict: Mapping[str, str] | None = None,
    op_converter: Any = None,
) -> Imported:
    """A TFLite model: a `tflite.Model`, its bytes or its path.

    shape_dict, dtype_dict: shapes and dtypes of inputs; a shape may change the batch size
    op_converter: refused

    It computes as LiteRT does, rounding included, where Relay's requantization differed in the last bit. Raises what
    qnn_ext.from_tflite raises.
    """
    if op_converter is not None:
        refuse("from_tflite(op_converter=…)", "qnn_ext.frontends.tflite.converters: ARCHITECTURE.md, Add an operator")
    source = bytes(model._tab.Bytes) if hasattr(model, "_tab") else model
    module = import_tflite(source, shapes=_shapes(shape_dict))
    _check_dtypes(module, dtype_dict or {})
    return IRModule.from_model(module), {}


def from_onnx(
    model: Any,
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = "float32",
    opset: int | None = None,
    freeze_params: bool = True,
    convert_config: Any = None,
    export_node_renamed_model_path: Any = None,
) -> Imported:
    """An ONNX model: a ModelProto, its bytes or its path. Raises what qnn_ext.from_onnx raises.

    shape: input name -> shape; relay.Any as the first dimension stands for batches of any size
    dtype: of inputs, checked if it is a dict; opset and the others: Relay's means for graphs that did not say
    """
    module = import_onnx(model, shapes=_shapes(shape))
    _check_dtypes(module, dtype if isinstance(dtype, Mapping) else {})
    return IRModule.from_model(module), {}


def from_pytorch(
    script_module: Any,
    input_infos: Sequence[tuple[str, Any]],
    custom_convert_map: Mapping[str, Any] | None = None,
    default_dtype: str = "float32",
    use_parser_friendly_name: bool = False,
    keep_quantized_weight: bool = False,
    export_renamed_c_graph_path: Any = None,
    preserve_pytorch_scopes: bool = False,
) -> Imported:
    """A traced or scripted module, or an ExportedProgram, with its inputs under the names given.

    input_infos: (name, shape) or (name, (shape, dtype)) of each input, in order
    custom_convert_map: refused. keep_quantized_weight: weights always stay integers

    Raises what qnn_ext.from_pytorch raises, and ShapeError for another number of inputs.
    """
    if custom_convert_map:
        refuse("from_pytorch(custom_convert_map=…)", "qnn_ext.frontends.pytorch: ARCHITECTURE.md, Add an operator")
    if not isinstance(input_infos, (list, tuple)):
        raise ShapeError(f"input_infos must be a list of (name, shape), found {type(input_infos).__name__}")
    names = [str(name) for name, _ in input_infos]
    kinds = [_shape_and_dtype(info, default_dtype) for _, info in input_infos]
    program = hasattr(script_module, "graph_signature")  # an ExportedProgram, which knows its inputs
    examples = None if program else [np.zeros(shape, dtype) for shape, dtype in kinds]
    module = import_pytorch(script_module, example_inputs=examples)
    if len(module.inputs) != len(names):
        raise ShapeError(f"input_infos names {len(names)} inputs, but this model takes {len(module.inputs)}")
    return IRModule.from_model(named(module, names)), {}


def _shape_and_dtype(info: Any, default: str) -> tuple[tuple[int, ...], str]:
    if len(info) == 2 and isinstance(info[1], str):
        shape, dtype = info
    else:
        shape, dtype = info, default
    return tuple(int(dim) for dim in shape), {"float": "float32", "int": "int32", "double": "float64"}.get(dtype, dtype)


def from_mxnet(
    symbol: Any,
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = "float32",
    arg_params: Mapping[str, Any] | None = None,
    aux_params: Mapping[str, Any] | None = None,
) -> Imported:
    """An MXNet model: a Symbol, or the path, text or content of a `-symbol.json`, with its parameters; or a Gluon
    HybridBlock, which has them. Raises what qnn_ext.from_mxnet raises.

    shape: input name -> shape
    """
    params = {**(arg_params or {}), **(aux_params or {})}
    if hasattr(symbol, "collect_params"):
        symbol, params = _traced(symbol, list(shape or {"data": ()}))
    source = symbol.tojson() if hasattr(symbol, "tojson") else symbol
    if not isinstance(source, (str, bytes, os.PathLike, Mapping)):
        raise QnnError(f"from_mxnet takes a Symbol, a HybridBlock or a -symbol.json, found {type(symbol).__name__}")
    arrays = {name: _array(value) for name, value in params.items()}
    module = import_mxnet(source, arrays, _shapes(shape))
    _check_dtypes(module, dtype if isinstance(dtype, Mapping) else {})
    return IRModule.from_model(module), {}


def _traced(block: Any, inputs: list[str]) -> tuple[Any, dict[str, Any]]:
    """A HybridBlock as a symbol, and its parameters by name."""
    import mxnet

    symbol = block(*(mxnet.sym.Variable(name) for name in inputs))
    params = {name: parameter.data() for name, parameter in block.collect_params().items()}
    return mxnet.sym.Group(symbol) if isinstance(symbol, (list, tuple)) else symbol, params


def _array(value: Any) -> np.ndarray:
    return value.asnumpy() if hasattr(value, "asnumpy") else array_of(value)


def _shapes(shapes: Mapping[str, Sequence[Any]] | None) -> dict[str, tuple[Any, ...]] | None:
    """Shapes as our importers take them: None for relay.Any."""
    if shapes is None:
        return None
    return {name: tuple(None if isinstance(dim, Any_) else int(dim) for dim in shape) for name, shape in shapes.items()}


def _check_dtypes(module: QnnModule, dtypes: Mapping[str, str]) -> None:
    """Raises InputError where a script expects another dtype than the model has."""
    for spec in module.inputs:
        expected = dtypes.get(spec.name, spec.dtype)
        if expected != spec.dtype:
            raise InputError(f"input {spec.name!r} is {spec.dtype} in this model, not {expected}")
