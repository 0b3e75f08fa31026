"""Messages between processes: a request with its file, and the finished module, exact and without pickle.

A message is a JSON header followed by arrays of bytes. A module's structure is TVM's own JSON; big constants would make
that slow, so they are taken out and sent as bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...module import FloatNote, QnnModule, State, TensorSpec
from ...op.base import constant, constant_value
from ...passes.rewrite import with_main
from ...qparams import QParams

_LENGTH = struct.Struct("<Q")
_SMALL = 1 << 10  # size in bytes up to which a constant stays in the JSON


def pack(header: Mapping[str, Any], blobs: Sequence[Any]) -> list[Any]:
    """A message made of a header and of bytes or arrays, as parts to be joined."""
    parts = [blob.reshape(-1).view(np.uint8).data if isinstance(blob, np.ndarray) else blob for blob in blobs]
    text = json.dumps({"header": header, "sizes": [len(part) for part in parts]}).encode()
    return [_LENGTH.pack(len(text)), text, *parts]


def unpack(message: Any) -> tuple[Any, list[memoryview]]:
    """The header and the blobs, which are views of the message. Raises ValueError when sizes do not match."""
    view = memoryview(message)
    end = _LENGTH.size + _LENGTH.unpack(view[: _LENGTH.size])[0]
    content = json.loads(bytes(view[_LENGTH.size : end]))
    blobs = []
    for size in content["sizes"]:
        blobs.append(view[end : end + size])
        end += size
    if end != len(view):
        raise ValueError(f"a message of {len(view)} bytes, but its header describes {end}")
    return content["header"], blobs


# ---- modules -----------------------------------------------------------------------------------------------------


def pack_module(module: QnnModule) -> list[Any]:
    """A module as a message."""
    arrays: list[np.ndarray] = []
    ir = _without_constants(module.ir, arrays)
    header = {
        "constants": len(arrays),
        "inputs": [_spec(spec, arrays) for spec in module.inputs],
        "outputs": [_spec(spec, arrays) for spec in module.outputs],
        "states": [[state.name, _add(state.initial, arrays)] for state in module.states],
        "notes": [[note.node, note.operator, note.reason] for note in module.notes],
        "source": module.source,
        "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
    }
    return pack(header, [tvm.ir.save_json(ir).encode(), *arrays])


def unpack_module(message: Any) -> QnnModule:
    """The module in a message, equal to what was packed."""
    header, (ir, *blobs) = unpack(message)
    arrays = [
        np.frombuffer(blob, np.dtype(dtype)).reshape(shape)
        for blob, (dtype, shape) in zip(blobs, header["arrays"], strict=True)
    ]
    return QnnModule(
        _with_constants(tvm.ir.load_json(bytes(ir).decode()), arrays[: header["constants"]]),
        tuple(_as_spec(spec, arrays) for spec in header["inputs"]),
        tuple(_as_spec(spec, arrays) for spec in header["outputs"]),
        tuple(State(name, arrays[index].copy()) for name, index in header["states"]),
        tuple(FloatNote(*note) for note in header["notes"]),
        header["source"],
    )


def _add(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    """The index of an array in the message."""
    arrays.append(np.asarray(array, order="C"))
    return len(arrays) - 1


def _spec(spec: TensorSpec, arrays: list[np.ndarray]) -> list[Any]:
    quantized = None
    if spec.qparams is not None:
        qparams = spec.qparams
        quantized = [_add(qparams.scale, arrays), _add(qparams.zero_point, arrays), qparams.dtype, qparams.axis]
    return [spec.name, spec.shape, spec.dtype, quantized, spec.dynamic_batch, spec.batch_axis]


def _as_spec(packed: Sequence[Any], arrays: Sequence[np.ndarray]) -> TensorSpec:
    name, shape, dtype, quantized, *batch = packed
    qparams = None
    if quantized is not None:
        scale, zero_point, integers, axis = quantized
        qparams = QParams(arrays[scale].copy(), arrays[zero_point].copy(), integers, axis)
    return TensorSpec(name, tuple(shape), dtype, qparams, *batch)


# ---- constants ---------------------------------------------------------------------------------------------------


@mutator
class _TakeOut(PyExprMutator):
    """Replaces every big constant by a variable."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        super().__init__()
        self.arrays = arrays
        self.variables: list[relax.Var] = []

    def visit_generic_const_(self, op: relax.Expr) -> relax.Expr:
        value = constant_value(op)
        if value is None or value.nbytes <= _SMALL or value.dtype.kind not in "biuf" or not value.dtype.isbuiltin:
            return op
        self.arrays.append(np.asarray(value, order="C"))
        self.variables.append(relax.Var(f"constant{len(self.variables)}", op.ty))
        return self.variables[-1]


def _without_constants(ir: IRModule, arrays: list[np.ndarray]) -> IRModule:
    """The module with its big constants turned into extra trailing parameters of `main` and appended to `arrays`."""
    main = ir["main"]
    taken = _TakeOut(arrays)
    body = taken.visit_expr(main.body)
    lifted = relax.Function([*main.params, *taken.variables], body, main.ret_ty, main.is_pure, main.attrs)
    return with_main(ir, lifted)


def _with_constants(ir: IRModule, arrays: Sequence[np.ndarray]) -> IRModule:
    main = ir["main"]
    variables = main.params[len(main.params) - len(arrays) :]
    bound = main.bind_params({variable: constant(array) for variable, array in zip(variables, arrays, strict=True)})
    return with_main(ir, bound)
