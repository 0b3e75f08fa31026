"""How a QNN operator is defined: one `OpDef` registers it with Relax and keeps its NumPy reference.

An operator is registered from Python as `relax.qnn.<name>`, so it prints as `R.qnn.<name>(...)`; registering the
builders with the script parser under `qnn` makes the printed text parse again. Scales and zero points are arguments (as
in Relay), everything else is an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm
import tvm.relax.script.parser as relax_parser
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.ir.attrs import make_node

from .. import tvm_runtime
from ..errors import QnnError, ShapeError
from .traits import Traits

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class TensorInfo:
    """What a type rule knows of an argument: shape (ints or symbolic expressions), dtype, and the value if constant."""

    name: str
    shape: Shape
    dtype: str
    value: np.ndarray | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class OpDef:
    """One operator of the dialect.

    name:      short name, "conv2d" for `R.qnn.conv2d`
    arguments: names of the tensor arguments, in order; a last name that starts with "*" takes all remaining ones
    infer:     type rule (*TensorInfo, **attributes) -> (shape, dtype), or a list of such pairs for several results;
               raises ShapeError
    reference: NumPy integer reference (*arrays, **attributes) -> array (or tuple of arrays): the oracle
    traits:    what passes need to know: its kind, the roles of its arguments
    """

    name: str
    arguments: tuple[str, ...]
    infer: Callable[..., Any]
    reference: Callable[..., Any]
    traits: Traits

    @property
    def relax_op(self) -> ir.Op:
        return ir.Op.get(f"relax.qnn.{self.name}")

    def call(self, *args: Any, **attributes: Any) -> relax.Call:
        """A call of this operator. Arguments may be Relax expressions, NumPy values or Python numbers.

        If all arguments have types, the type rule runs right away, so that the traceback of its error shows the caller.
        """
        exprs = [as_expr(arg) for arg in args]
        typed = all(has_type(expr) and isinstance(expr.ty, relax.TensorType) for expr in exprs)
        ty = self.infer_type(exprs, attributes) if typed else None
        return relax.Call(self.relax_op, exprs, attrs=make_node("ir.DictAttrs", **attributes), ret_ty=ty)

    def infer_type(self, args: Sequence[relax.Expr], attributes: dict[str, Any]) -> relax.Type:
        """The result type. Raises ShapeError naming the operator and the argument."""
        names = self.arguments
        fixed = len(names) - 1 if names[-1].startswith("*") else len(names)
        if len(args) < fixed or (fixed == len(names) and len(args) != fixed):
            raise ShapeError(f"qnn.{self.name} takes the arguments {', '.join(names)}, found {len(args)}")
        infos = [
            tensor_info(arg, names[i] if i < fixed else f"{names[-1][1:]}[{i - fixed}]", self.name)
            for i, arg in enumerate(args)
        ]
        try:
            result = self.infer(*infos, **attributes)
        except QnnError as error:
            raise type(error)(f"qnn.{self.name}: {error}") from None
        if isinstance(result, list):
            return relax.TupleType([relax.TensorType(shape, dtype) for shape, dtype in result])
        return relax.TensorType(*result)


OPS: dict[str, OpDef] = {}


def define(
    name: str,
    arguments: str,
    infer: Callable[..., Any],
    reference: Callable[..., Any],
    traits: Traits,
    doc: str | None = None,
) -> OpDef:
    """Register `relax.qnn.<name>` with the type rule `infer` and the NumPy reference; arguments as "data scale ..."."""
    names = tuple(arguments.split())
    definition = OpDef(name, names, infer, reference, traits.of(names))
    full_name = f"relax.qnn.{name}"
    ir._ffi_api.RegisterOp(full_name, (doc or name).strip().splitlines()[0])
    op = ir.Op.get(full_name)
    op.set_num_inputs(-1 if definition.arguments[-1].startswith("*") else len(definition.arguments))
    op.set_attrs_type_key("ir.DictAttrs")
    op.set_attr("FInferType", lambda call, builder: definition.infer_type(call.args, call_attributes(call)))
    op.set_attr("FPurity", True)
    OPS[name] = definition
    return definition


def export_to_script(**builders: Callable[..., relax.Call]) -> None:
    """Make `R.qnn.<name>` known to the TVMScript parser."""
    namespace = getattr(relax_parser, "qnn", None)
    if namespace is None:
        namespace = relax_parser.qnn = SimpleNamespace()
    for name, builder in builders.items():
        setattr(namespace, name, builder)


def definition_of(expr: Any) -> OpDef | None:
    """The OpDef of a call to a QNN operator, None for any other expression."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op) and expr.op.name.startswith("relax.qnn."):
        return OPS[expr.op.name.removeprefix("relax.qnn.")]
    return None


def module_of(call: relax.Call, params: Sequence[relax.Var] = ()) -> tvm.IRModule:
    """A module whose `main` takes `params` and returns the call."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        builder.emit_func_output(builder.emit(call))
    return builder.get()


def call_attributes(call: relax.Call) -> dict[str, Any]:
    """The attributes of a call as plain Python values: int, float, str, bool, tuple; the body of a loop as it is."""
    if call.attrs is None:
        return {}
    return {key: plain(value) for key, value in call.attrs.items()}


def plain(value: Any) -> Any:
    """An attribute's value as Python's."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return str(value) if isinstance(value, str) else value
    if isinstance(value, (tvm_ffi.Array, list, tuple)):
        return tuple(plain(item) for item in value)
    return getattr(value, "value", value)


def as_expr(value: Any) -> relax.Expr:
    """A Relax expression: Python ints become int32, Python floats float32 constants; NumPy's keep their dtype."""
    if isinstance(value, relax.Expr) or hasattr(value, "ty"):
        return value
    array = np.asarray(value)
    if isinstance(value, (bool, int)):
        array = array.astype(np.int32)
    elif isinstance(value, float) and not isinstance(value, np.float64):  # which is a float too
        array = array.astype(np.float32)
    return constant(array)


def constant(array: np.ndarray | np.generic) -> relax.Expr:
    """A Relax constant of exactly the array's dtype: `relax.const` alone narrows int64 and float64 to 32 bits."""
    array = np.asarray(array, order="C")
    if str(array.dtype) in _NOT_IN_NUMPY:
        return relax.const(array, str(array.dtype))
    return relax.const(tvm_runtime.tensor(array)[0])


_NOT_IN_NUMPY = ("bfloat16",)


def array_of(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """The values of a tensor, copied to a new array.

    TVM's `Tensor.numpy` leaves a second copy behind in a reference cycle made by `ctypes.cast`, freed only when
    Python's cycle collector next runs, after some hundred builds. So does TVM's `tensor(array)`: hence `constant`.
    """
    return np.asarray(tensor.numpy()) if str(tensor.dtype) in _NOT_IN_NUMPY else np.array(np.from_dlpack(tensor))


def has_type(expr: relax.Expr) -> bool:
    """Whether the expression's type is already known."""
    return getattr(expr, "ty", None) is not None


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    """The shape of an expression all of whose dimensions are known."""
    return tuple(map(int, dims_of(expr.ty)))


def dims_of(ty: relax.TensorType) -> list[Any]:
    """The dimensions of a tensor's type, numbers and symbols, read at once: one by one takes several times as long."""
    return ty.shape.values[:] if isinstance(ty.shape, relax.ShapeExpr) else list(ty.shape)


def has_float_rows(call: relax.Call) -> bool:
    """Whether a softmax or layer normalization is one that numerics/float_rows.py defines: in float32, and for the
    latter only over the last axis, with scale and center."""
    if str(call.args[0].ty.dtype) != "float32":
        return False
    if not hasattr(call.attrs, "axes"):
        return True
    last, plain = len(shape_of(call.args[0])) - 1, bool(call.attrs.center) and bool(call.attrs.scale)
    return plain and [int(axis) % (last + 1) for axis in call.attrs.axes] == [last]


def constant_value(expr: relax.Expr) -> np.ndarray | None:
    """The array behind a constant expression, None if it is computed at run time."""
    return array_of(expr.value) if isinstance(expr, tvm.ir.expr.GenericConst) else None


def tensor_info(expr: relax.Expr, name: str, op_name: str) -> TensorInfo:
    """TensorInfo of an argument. Raises ShapeError unless it is a tensor of known shape and dtype."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None or str(ty.dtype) == "":
        raise ShapeError(f"qnn.{op_name}: argument {name} must be a tensor of known shape and dtype, found {ty}")
    shape = tuple(int(dim) if isinstance(dim, (int, tirx.IntImm)) else dim for dim in dims_of(ty))
    return TensorInfo(name, shape, str(ty.dtype), constant_value(expr))


# ---- checks shared by the type rules -----------------------------------------------------------------------------


def check_dtype(info: TensorInfo, *allowed: str) -> None:
    """Raise ShapeError unless the argument has one of the dtypes."""
    if info.dtype not in allowed:
        raise ShapeError(f"{info.name} must be {' or '.join(allowed)}, found {info.dtype}")


def check_rank(info: TensorInfo, rank: int) -> None:
    """Raise ShapeError unless the argument has this many dimensions."""
    if info.ndim != rank:
        raise ShapeError(f"{info.name} must have {rank} dimensions, found shape {info.shape}")


def check_qparams(scale: TensorInfo, zero_point: TensorInfo, length: Any = None) -> None:
    """Scale float32/float64, zero point int32, each a scalar, or a vector of `length` if that is given."""
    check_dtype(scale, "float32", "float64")
    check_dtype(zero_point, "int32")
    for info in (scale, zero_point):
        if info.shape in ((), (1,)):
            continue
        if length is None:
            raise ShapeError(f"{info.name} must be a scalar (per-tensor), found shape {info.shape}")
        if info.ndim != 1 or (isinstance(info.shape[0], int) and isinstance(length, int) and info.shape[0] != length):
            raise ShapeError(f"{info.name} must be a scalar or a vector of {length} elements, found shape {info.shape}")
    if scale.value is not None:
        wrong = ~(np.isfinite(scale.value) & (scale.value > 0))
        if wrong.any():
            raise ShapeError(f"{scale.name} must be finite and positive, found {scale.value[wrong][0]}")


def broadcast_shape(one: TensorInfo, two: TensorInfo) -> Shape:
    """NumPy's broadcast of two shapes; symbolic dimensions must be the same variable or meet a 1."""
    ndim = max(one.ndim, two.ndim)
    result = []
    for left, right in zip((1,) * (ndim - one.ndim) + one.shape, (1,) * (ndim - two.ndim) + two.shape, strict=True):
        if left != right and left != 1 and right != 1:
            raise ShapeError(f"shapes {one.shape} of {one.name} and {two.shape} of {two.name} do not broadcast")
        result.append(right if left == 1 else left)
    return tuple(result)


def channel_length(info: TensorInfo, axis: int) -> Any:
    """Length of the dimension along which vectors of scales and zero points run, None for a 0-d tensor."""
    return info.shape[normalize_axis(axis, info.ndim)] if info.ndim else None


def axis_in_use(axis: int, data: Any, *qparams: Any) -> int:
    """`axis`; −1 where `data` has no such axis and no scale or zero point is a vector, so that, as in Relay, it means
    nothing."""
    exprs = [as_expr(value) for value in (data, *qparams)]
    if not all(has_type(expr) and isinstance(expr.ty, relax.TensorType) and expr.ty.ndim >= 0 for expr in exprs):
        return axis
    ndim, *ranks = (int(expr.ty.ndim) for expr in exprs)
    return axis if any(ranks) or -ndim <= axis < ndim else -1


def check_out_dtype(out_dtype: str, *allowed: str) -> None:
    """Raise ShapeError unless the attribute is one of the dtypes."""
    if out_dtype not in allowed:
        raise ShapeError(f"out_dtype must be {' or '.join(allowed)}, found {out_dtype}")


def normalize_axis(axis: int, ndim: int) -> int:
    """axis in 0 … ndim − 1; negative axes count from the end. Raises ShapeError when out of range."""
    if not -ndim <= axis < max(ndim, 1):
        raise ShapeError(f"axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim if ndim else 0


def along_axis(vector: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """A per-channel vector reshaped so that it broadcasts along `axis`; scalars and 1-element vectors become 0-d."""
    vector = np.asarray(vector)
    if vector.size == 1:
        return vector.reshape(())
    shape = [1] * ndim
    shape[normalize_axis(axis, ndim)] = -1
    return vector.reshape(shape)
