"""Lower: turns each fused group into one scheduled PrimFunc and calls it.

The product at the head of a group goes to the strategy registry, which packs the weights here, at compile time; the
rest are TE stages behind it. Groups without a product get the generic schedule.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from itertools import count
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax, te, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target

from ..errors import UnsupportedOperatorError
from ..limits import checkpoint
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Implementation, Workload, candidates
from ..topi_int8.cuda.generic import schedule_generic as schedule_for_gpu
from ..topi_int8.features import is_arm, is_cuda
from ..topi_int8.generic import elementwise
from ..topi_int8.generic.bounds import bound_of
from ..topi_int8.generic.elementwise import Constants, Operand
from ..topi_int8.generic.moves import Moves
from ..topi_int8.generic.schedule import SCHEDULED, schedule_generic
from ..topi_int8.generic.stages import STAGES
from ..topi_int8.initial import with_initial
from .fuse import ANCHORS, COMPOSITE, LAYER
from .matrix_moves import ORDERS, axes_of
from .rewrite import bindings_of, emit_named, op_name, plain_attrs, substitute

_log = logging.getLogger(__name__)

# attributes of the PrimFuncs, for profile and inspect
MACS = "qnn_macs"
IMPLEMENTATION = "qnn_implementation"
WORKLOAD = "qnn_workload"


def lower(mod: IRModule, target: Target) -> IRModule:
    """`mod` with every "Composite" function replaced by a PrimFunc and its call by `call_tir`."""
    with target:
        kernels = {var: _kernel(mod[var], target) for var in mod.get_global_vars() if _is_composite(mod[var])}
    builder = relax.BlockBuilder()
    main = mod["main"]
    environment: dict[Any, Any] = {}
    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = substitute(binding.value, environment)
                if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) and value.op in kernels:
                    value = kernels[value.op].call(builder, value)
                environment[binding.var] = emit_named(builder, value, binding.var.name)
            result = builder.emit_output(substitute(main.body.body, environment))
        builder.emit_func_output(result)
    return builder.get()


def _is_composite(function: Any) -> bool:
    return isinstance(function, relax.Function) and bool(function.attrs) and COMPOSITE in function.attrs


def _kernel(function: relax.Function, target: Target) -> _Kernel:
    """The kernel of a composite function by the best implementation whose schedule applies to it.

    An implementation can accept a workload and still meet an epilogue that its schedule steps refuse; the next one in
    priority then takes over, at the latest the generic fallback.
    """
    checkpoint()
    refusal: ScheduleError | None = None
    for rank in count():
        try:
            return _Kernel(function, target, rank)
        except ScheduleError as error:
            refusal = error
            _log.warning("%s: falling back to kernel %d (%s)", function.attrs[LAYER], rank + 1, str(error)[:200])
        except IndexError:
            break
    raise UnsupportedOperatorError(f"no kernel can be scheduled for {function.attrs[COMPOSITE]}") from refusal


class _Kernel:
    """One composite function as a PrimFunc with its constants; `rank` counts down the strategy's candidates."""

    def __init__(self, function: relax.Function, target: Target, rank: int = 0) -> None:
        self.function = function
        self._rank = rank
        self.constants = Constants()
        self._moves = Moves()
        self.macs = 0
        self.implementation: Implementation | None = None
        self._workload: Workload | None = None
        self._target = target
        self._values: dict[Any, Operand] = {}
        self._initial: te.Tensor | None = None
        self.placeholders = [
            te.placeholder(shape_of(param), str(param.ty.dtype), name=param.name) for param in function.params
        ]
        for param, placeholder in zip(function.params, self.placeholders, strict=True):
            self._values[param] = Operand(placeholder, None)
        for binding in bindings_of(function):
            self._values[binding.var] = self._stage(binding.value)
        self.output = self._values[function.body.body].tensor
        self.prim_func = self._schedule()

    def call(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """The `call_tir` that replaces a call of the composite function."""
        global_var = builder.add_func(self.prim_func, call.op.name_hint)
        args = [*call.args, *(constant(array) for array in self.constants.arrays)]
        return relax.call_tir(global_var, relax.Tuple(args), out_ty=self.function.ret_ty)

    # ---- TE ------------------------------------------------------------------------------------------------------

    def _stage(self, expr: Any) -> Operand:
        if isinstance(expr, relax.Var):
            return self._values[expr]
        name = op_name(expr)
        attributes = _attributes(name, expr)
        operands = [self._operand(arg) for arg in expr.args if not isinstance(arg, relax.ShapeExpr)]
        if name in ANCHORS:
            tensor = self._anchor(name, expr)
        elif self._starts_at_bias(name, expr, operands):
            tensor = operands[0].tensor
        else:
            tensor = self._tail(name, expr, operands, attributes)
        return Operand(tensor, None, bound_of(name, operands, attributes))

    def _tail(self, name: str, expr: Any, operands: list[Operand], attributes: dict[str, Any]) -> te.Tensor:
        """What is no product of two matrices."""
        shape = shape_of(expr)
        if name == "repeat":
            return _repeat(operands[0].tensor, shape)
        if name == "permute_dims":
            return self._moves.permute(_tensor(operands[0], self.constants), axes_of(expr))
        if name in ORDERS:
            return self._moves.reshape(_tensor(operands[0], self.constants), shape)
        if name in STAGES:
            return STAGES[name](self.constants, shape, *operands, **attributes)
        if name not in elementwise.RULES:
            raise UnsupportedOperatorError(f"{name} has no kernel; Canonicalize should have rewritten it")
        return elementwise.elementwise(name, operands, attributes, shape, self.constants)

    def _operand(self, arg: Any) -> Operand:
        if arg in self._values:
            return self._values[arg]
        if isinstance(arg, (tirx.IntImm, tirx.FloatImm)):
            return Operand(None, np.asarray(arg.value))
        value = constant_value(arg)
        if value is None:
            raise UnsupportedOperatorError(f"cannot lower an argument of type {type(arg).__name__}")
        return Operand(None, value)

    def _anchor(self, name: str, call: relax.Call) -> te.Tensor:
        data, weight = (self._operand(arg) for arg in call.args)
        attributes = call_attributes(call)
        workload = _workload(name, data, weight, attributes, self._target)
        if name == "qnn.dense_accumulate" and weight.value is None:
            return self._dynamic_dense(data, weight, attributes)
        accepting = candidates(workload, self._target)
        of_any_weight = accepting if weight.value is not None or name == ANCHORS[2] else accepting[-1:]
        implementation = of_any_weight[self._rank]
        self.implementation, self._workload, self.macs = implementation, workload, workload.macs
        tensor = _tensor(data, self.constants)
        if weight.value is not None and implementation.pack_weight is not None:
            packed = self.constants.add(implementation.pack_weight(workload, weight.value))
        else:
            packed = _tensor(weight, self.constants)
            if name == "qnn.conv2d_accumulate":  # the generic fallback wants HWIO
                packed = _permute(packed, (1, 2, 3, 0))
        return implementation.compute(workload, tensor, packed, attributes.get("pad_value", 0))

    def _starts_at_bias(self, name: str, expr: Any, operands: list[Operand]) -> bool:
        """Whether `expr` adds a constant per channel to the product, and the accumulators now start at that."""
        initial = self.implementation.initial if self.implementation else None
        if name != "add" or initial is None or self._initial is not None or not self._is_product(expr.args[0]):
            return False
        bias, shape = operands[1].value, operands[0].shape
        if bias is None or str(bias.dtype) != "int32" or bias.size != shape[-1] or bias.shape[-1:] != shape[-1:]:
            return False
        self._initial = self.constants.add(initial(self._workload, bias))
        return True

    def _is_product(self, var: Any) -> bool:
        """Whether a variable is the product at the head of the group and read only once."""
        bindings = bindings_of(self.function)
        product = bindings[0]
        if op_name(product.value) not in ANCHORS:
            return False
        read = [arg for binding in bindings for arg in getattr(binding.value, "args", ()) if isinstance(arg, relax.Var)]
        return var.same_as(product.var) and sum(arg.same_as(product.var) for arg in read) == 1

    def _dynamic_dense(self, data: Operand, weight: Operand, attributes: dict[str, Any]) -> te.Tensor:
        """A dense layer whose weights are computed at run time is a batch_matmul with a batch of one."""
        (m, k), n = data.shape, weight.shape[0]
        workload = BatchMatmulWorkload(1, m, k, n, data.dtype, weight.dtype, attributes["out_dtype"])
        implementation = candidates(workload, self._target)[self._rank]
        self.implementation, self._workload, self.macs = implementation, workload, workload.macs
        x, y = (_lead(_tensor(operand, self.constants)) for operand in (data, weight))
        acc = implementation.compute(workload, x, y, 0)
        return te.compute((m, n), lambda i, j: acc[0, i, j], name="unbatch")

    # ---- schedule ------------------------------------------------------------------------------------------------

    def _schedule(self) -> tirx.PrimFunc:
        function = te.create_prim_func([*self.placeholders, *self.constants.placeholders, self.output])
        if self.implementation is None:
            if self._rank > 0:
                raise IndexError("only one way to schedule what is no product")
            gpu = is_cuda(self._target)
            function = schedule_for_gpu(function) if gpu else schedule_generic(function, self._target)
        else:
            if self._initial is not None:
                position = len(self.placeholders) + self.constants.placeholders.index(self._initial)
                function = with_initial(function, self.implementation.accumulator, function.params[position])
            sch = Schedule(function)
            self.implementation.schedule(sch, self._workload, self._target)
            function = sch.mod["main"]
        name = self.implementation.name if self.implementation else "generic"
        attributes = {SCHEDULED: True, "op_pattern": 8, MACS: self.macs, IMPLEMENTATION: name}
        if self._workload is not None:
            attributes[WORKLOAD] = json.dumps({"type": type(self._workload).__name__, **asdict(self._workload)})
        attributes[LAYER] = self.function.attrs[LAYER]
        attributes[COMPOSITE] = self.function.attrs[COMPOSITE]
        for key, value in attributes.items():
            function = function.with_attr(key, value)
        return function.without_attr("global_symbol")


def _workload(name: str, data: Operand, weight: Operand, attributes: dict[str, Any], target: Target) -> Workload:
    dtypes = (data.dtype, weight.dtype, attributes["out_dtype"])
    pairable = is_arm(target) and _pairable(weight)
    if name == "qnn.dense_accumulate":
        m, k = data.shape
        return DenseWorkload(m, k, weight.shape[0], *dtypes, pairable_weights=pairable)
    if name == "qnn.batch_matmul_accumulate":
        batch, m, k = data.shape
        return BatchMatmulWorkload(batch, m, k, weight.shape[1], *dtypes)
    n, h, w, c = data.shape
    o, kh, kw, _ = weight.shape
    geometry = (attributes["strides"], attributes["padding"], attributes["dilation"], attributes["groups"])
    known = _nine_bits(weight), pairable
    return Conv2dWorkload(n, h, w, c, o, (kh, kw), *geometry, *dtypes, *known)


def _nine_bits(weight: Operand) -> bool:
    """Whether constant int16 weights are sums of two int8 values."""
    known = weight.value is not None and weight.dtype == "int16"
    return bool(known and weight.value.min() >= -256 and weight.value.max() <= 254)


def _pairable(weight: Operand) -> bool:
    """Whether int8 weights are constant and no output channel has two of -128."""
    if weight.value is None or weight.dtype != "int8":
        return False
    lowest = weight.value.reshape(len(weight.value), -1) == -128
    return int(lowest.sum(axis=1).max(initial=0)) <= 1


def _attributes(name: str, call: relax.Call) -> dict[str, Any]:
    if name.startswith("qnn."):
        return call_attributes(call)
    if name == "nn.leakyrelu":
        return {"alpha": float(call.attrs.alpha)}
    if name == "nn.softmax":
        return {"axis": int(call.attrs.axis)}
    if name == "nn.layer_norm":
        return {"epsilon": float(call.attrs.epsilon)}
    return {"dtype": str(call.ty.dtype)} if name == "astype" else {}


def _tensor(operand: Operand, constants: Constants) -> te.Tensor:
    return operand.tensor if operand.tensor is not None else constants.add(operand.value)


def _permute(tensor: te.Tensor, axes: tuple[int, ...]) -> te.Tensor:
    """tensor.transpose(axes) as a stage."""
    shape = tuple(tensor.shape[axis] for axis in axes)
    return te.compute(shape, lambda *i: tensor(*(i[axes.index(d)] for d in range(len(axes)))), name="permute")


def _lead(tensor: te.Tensor) -> te.Tensor:
    """A leading dimension of 1."""
    return te.compute((1, *tensor.shape), lambda b, *i: tensor(*i), name="lead")


def _repeat(tensor: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    """The last axis repeated element by element up to `shape`."""
    times = shape[-1] // int(tensor.shape[-1])
    return te.compute(shape, lambda *i: tensor(*i[:-1], i[-1] // times), name="repeat")
