"""float_ports: a model's quantized inputs and outputs become float32, for callers that have real values.

    main(x: int8) → y: uint8   becomes   main(x': float32) → dequantize(y),  with x = quantize(x')

Both are what `QParams.quantize` and `QParams.dequantize` compute, bit for bit; NaN becomes the zero point.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from .. import op as qnn
from ..errors import QnnError
from ..module import QnnModule, TensorSpec
from ..op.base import constant
from .rewrite import Rebuild, plain_attrs

PORTS = ("model", "float32")


def float_ports(module: QnnModule, io: str = "float32") -> QnnModule:
    """The module with inputs and outputs as `io` says: "model" for those of the model. Raises QnnError."""
    if io not in PORTS:
        raise QnnError(f"io: must be one of {', '.join(map(repr, PORTS))}, found {io!r}")
    if io == "model" or not any(spec.qparams for spec in (*module.inputs, *module.outputs)):
        return module
    function = module.ir["main"]
    new = Rebuild(function)
    params = list(function.params)
    for index, spec in enumerate(module.inputs):
        if spec.qparams is not None:
            params[index] = relax.Var(params[index].name, relax.TensorType(params[index].ty.shape, "float32"))
    with new.main(params, plain_attrs(function)):
        for old, param, spec in zip(function.params, params, module.inputs, strict=False):  # states follow
            if spec.qparams is not None:
                call = qnn.quantize(param, *_constants(spec), out_dtype=spec.dtype)
                new.environment[old] = new.builder.emit(call)
        for binding in new.bindings:
            if isinstance(binding.value, relax.Tuple):  # of the results: put where it is used
                new.environment[binding.var] = new.substituted(binding.value)
            else:
                new.keep(binding)
        body = new.substituted(function.body.body)
        results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        for index, spec in enumerate(module.outputs):
            if spec.qparams is not None:
                results[index] = new.builder.emit(qnn.dequantize(results[index], *_constants(spec)))
        new.result = relax.Tuple(results) if isinstance(body, relax.Tuple) else results[0]
    mod = new.module()
    for var, other in module.ir.functions_items():
        if var.name_hint != "main":
            mod[var] = other
    return replace(module, ir=mod, inputs=tuple(map(_float, module.inputs)), outputs=tuple(map(_float, module.outputs)))


def _float(spec: TensorSpec) -> TensorSpec:
    return spec if spec.qparams is None else replace(spec, dtype="float32", qparams=None)


def _constants(spec: TensorSpec) -> tuple[relax.Expr, relax.Expr, int]:
    assert spec.qparams is not None
    qparams = spec.qparams
    axis = -1 if qparams.axis is None else qparams.axis
    return constant(qparams.scale.astype("float32")), constant(qparams.zero_point.astype("int32")), axis
