"""Lower: turns each fused group into one scheduled PrimFunc and calls it.

The product at the head of a group goes to the strategy registry, which packs the weights here, at compile time; the
rest become TE stages after it. Groups without a product get the generic schedule.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax, te, tirx
from tvm.s_tir import ScheduleError
from tvm.target import Target

from ..errors import UnsupportedOperatorError
from ..limits import checkpoint
from ..numerics.annotations import COMPOSITE, LAYER, SCHEDULED, SOURCES, KernelFacts
from ..numerics.bounded import bound_function
from ..op.arguments import data_of, factors_of
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..targets.features import backend_of
from ..topi_int8 import (
    BatchMatmulWorkload,
    BlockwiseWorkload,
    Conv2dWorkload,
    DenseWorkload,
    Implementation,
    candidates,
)
from ..topi_int8.cuda.generic import schedule_generic as schedule_for_gpu
from ..topi_int8.generic import elementwise
from ..topi_int8.generic.bounds import bound_of
from ..topi_int8.generic.moves import Moves
from ..topi_int8.generic.operands import Constants, Operand
from ..topi_int8.generic.schedule import schedule_generic
from ..topi_int8.generic.stages import BOUNDED, STAGES
from ..topi_int8.initial import with_initial
from ..topi_int8.schedule_util import Unchecked, in_order_of_channels
from ..topi_int8.strategy import why_generic
from ..topi_int8.workload import AnyWorkload
from .matrix_moves import axes_of
from .rewrite import Rebuild, bindings_of, op_name
from .schedules import Schedules
from .shuffles import shuffle_of

_log = logging.getLogger(__name__)


OPAQUE = 8  # TVM's kOpaque: an operator that is not fused

WEIGHT_PARTS = 3
"""The last operands of a product with a block-wise quantized weight: its integers, scales and zero points."""

_WORTH_PACKING = 1 << 21
"""Multiply-accumulates from which convolutions pack weights at run time: without, these take 0.2 ms, which some hundred
runs of calibration save; the kernel takes 50 ms more to compile."""

STARTED = "qnn.bias_first"
"""The sum of a product of floats and the bias at which it starts."""

LARGEST_WINDOW = 25
"""The most taps of XNNPACK's depthwise kernels, which go column by column; others are products of matrices there."""

GENERIC = "generic"
"""The implementation of kernels without a product."""


def lower(mod: IRModule, target: Target) -> IRModule:
    """`mod` with every "Composite" function replaced by a PrimFunc and its call by `call_tir`."""
    known = Schedules()
    with target:
        kernels = {var: _kernel(mod[var], target, known) for var in mod.get_global_vars() if _is_composite(mod[var])}
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) and value.op in kernels:
                value = kernels[value.op].call(new.builder, value)
            new.bind(binding.var, value)
    return new.module()


def _is_composite(function: Any) -> bool:
    return isinstance(function, relax.Function) and bool(function.attrs) and COMPOSITE in function.attrs


def _kernel(function: relax.Function, target: Target, known: Schedules) -> _Kernel:
    """The kernel of a composite function, from the best implementation whose schedule applies to it.

    An implementation can accept a workload and still have schedule steps that fail on the epilogue; then the next one
    in priority takes over, ultimately the generic fallback.
    """
    checkpoint()
    refusal: ScheduleError | None = None
    passed_over: list[str] = []
    for product in _products(function, target):
        try:
            return _Kernel(function, target, product, passed_over, known)
        except ScheduleError as error:
            refusal = error
            name = product.implementation.name if product else GENERIC
            passed_over.append(f"{name} does not apply: {_summary(error)}")
            _log.warning("%s: %s", function.attrs[LAYER], passed_over[-1])
    raise UnsupportedOperatorError(f"no kernel can be scheduled for {function.attrs[COMPOSITE]}") from refusal


def _summary(error: ScheduleError) -> str:
    """The schedule step that failed and why, without the whole function that TVM's message contains."""
    text = str(error)
    step = re.search(r"schedule primitive '([\w-]+)'", text)
    _, _, message = text.rpartition("Error message:")
    return ": ".join([*(step.groups() if step else ()), " ".join(message.split())[:200]])


@dataclass(frozen=True)
class _Product:
    """The product at the head of a group, and one of the implementations that can compute it.

    unusual: why no other implementation is asked; empty: they all were
    """

    workload: AnyWorkload
    implementation: Implementation
    unusual: str


def _products(function: relax.Function, target: Target) -> list[_Product] | list[None]:
    """The ways to compute a group's product, best first; a single None for a group without one."""
    calls = [binding.value for binding in bindings_of(function)]
    call = next((call for call in calls if traits_of(call).kind is Kind.ACCUMULATOR), None)
    if call is None:
        return [None]
    workload = workload_of(call, target)
    if (integers := dequantized_data(function, call)) is not None:
        workload = replace(workload, data_dtype=str(integers.ty.dtype))
    if isinstance(workload, Conv2dWorkload) and any(op_name(one) == STARTED for one in calls):
        in_columns = workload.depthwise and workload.multiplier == 1 and prod(workload.kernel) <= LARGEST_WINDOW
        workload = replace(workload, by_columns=in_columns)
    accepting, unusual = candidates(workload, target), ""
    beforehand = isinstance(workload, (Conv2dWorkload, BlockwiseWorkload)) and not packs_at_run_time(workload)
    if beforehand and not _has_known_weights(call):
        accepting, unusual = (
            accepting[-1:],
            "its weights are only known at run time, so they cannot be packed beforehand",
        )
    return [_Product(workload, implementation, unusual) for implementation in accepting]


def packs_at_run_time(workload: AnyWorkload) -> bool:
    """Whether a kernel packs weights that are only known at run time: those of large convolutions of floats, each of
    which has its own place, told by a float32 from up to 2²⁴ others."""
    if not isinstance(workload, Conv2dWorkload) or {workload.data_dtype, workload.weight_dtype} != {"float32"}:
        return False
    weights = workload.out_channels * prod(workload.kernel) * workload.in_channels // workload.groups
    return workload.macs >= _WORTH_PACKING and weights < 1 << 24


def _has_known_weights(call: relax.Call) -> bool:
    """Whether the weight of a product is constant, with all that belongs to it."""
    traits = traits_of(call)
    weight = traits.data[1]
    names = [name for name in (weight.name, weight.scale, weight.zero_point) if name]
    return all(constant_value(traits.argument(call, name)) is not None for name in names)


def dequantized_data(function: relax.Function, product: relax.Call) -> relax.Expr | None:
    """The integers that a function dequantizes as the data of its product; None if it does not."""
    data = data_of(product)
    own = (binding.value for binding in bindings_of(function) if binding.var.same_as(data))
    return next((data_of(value) for value in own if op_name(value) == "qnn.dequantize"), None)


class _Kernel:
    """One composite function as a PrimFunc with its constants.

    product: how its product is computed, None if it has none; passed_over: implementations that could not be used
    known:   scheduled functions of kernels before it, which it reuses or adds to
    """

    def __init__(
        self,
        function: relax.Function,
        target: Target,
        product: _Product | None,
        passed_over: list[str],
        known: Schedules,
    ) -> None:
        self.function = function
        self._known = known
        self._product = product
        self._passed_over = passed_over
        self.constants = Constants()
        self._moves = Moves()
        self._target = target
        self._values: dict[Any, Operand] = {}
        self._initial: te.Tensor | None = None
        self._accumulator: te.Tensor | None = None
        self.placeholders = [
            te.placeholder(shape_of(param), str(param.ty.dtype), name=param.name) for param in function.params
        ]
        for param, placeholder in zip(function.params, self.placeholders, strict=True):
            self._values[param] = Operand(placeholder, None)
        for binding in bindings_of(function):
            self._values[binding.var] = self._stage(binding.value)
        self.output = self._values[function.body.body].tensor
        if self._accumulator is not None and not _depends_on(self.output, self._accumulator):
            self._product = None  # multiplied by zeros: what is left are stages
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
        operands = [self._operand(arg) for arg in expr.args[:] if not isinstance(arg, relax.ShapeExpr)]
        if self._product and traits_of(expr).kind is Kind.ACCUMULATOR:
            tensor = self._accumulator = self._anchor(name, expr, self._product)
        elif self._starts_at_bias(name, expr, operands):
            tensor = operands[0].tensor
        else:
            tensor = self._tail(name, expr, operands, attributes)
        return Operand(tensor, None, bound_of(name, operands, attributes))

    def _tail(self, name: str, expr: Any, operands: list[Operand], attributes: dict[str, Any]) -> te.Tensor:
        """An operator that is not a matrix product, as a TE stage."""
        shape, traits = shape_of(expr), traits_of(expr)
        if name == "repeat":
            return _repeat(operands[0].tensor, shape)
        if traits.permutes:
            return self._moves.permute(_tensor(operands[0], self.constants), axes_of(expr))
        if traits.reshapes:
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

    def _anchor(self, name: str, call: relax.Call, product: _Product) -> te.Tensor:
        workload, implementation = product.workload, product.implementation
        if isinstance(workload, BlockwiseWorkload):
            return self._blockwise(call, workload, implementation)
        data, weight = (self._operand(arg) for arg in call.args)
        tensor = _tensor(data, self.constants)
        if name == "qnn.dense_accumulate" and isinstance(workload, BatchMatmulWorkload):
            acc = implementation.compute(workload, _lead(tensor), _lead(_tensor(weight, self.constants)), 0)
            return te.compute((workload.m, workload.n), lambda i, j: acc[0, i, j], name="unbatch")
        if weight.value is not None and implementation.pack_weight is not None:
            packed = self.constants.add(implementation.pack_weight(workload, weight.value))
        elif implementation.pack_weight is not None:
            packed = self._packed(weight.tensor, partial(implementation.pack_weight, workload))
        else:
            packed = _tensor(weight, self.constants)
            if name == "qnn.conv2d_accumulate":  # the generic fallback takes HWIO
                packed = _permute(packed, (1, 2, 3, 0))
        return implementation.compute(workload, tensor, packed, call_attributes(call).get("pad_value", 0))

    def _packed(self, weight: te.Tensor, pack: Callable[[np.ndarray], np.ndarray]) -> te.Tensor:
        """Float weights packed when the kernel runs: each value has the place that packing gives its number."""
        shape = tuple(int(size) for size in weight.shape)
        numbers = pack(np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape))
        source = self.constants.add(numbers.astype(np.int32) - 1)
        flat = self._moves.reshape(weight, (prod(shape),))

        def value(*place: Any) -> Any:
            number = source(*place)
            return tirx.if_then_else(number >= 0, flat(number), tirx.const(0, weight.dtype))

        return te.compute(numbers.shape, value, name="packed")

    def _blockwise(self, call: relax.Call, workload: BlockwiseWorkload, implementation: Implementation) -> te.Tensor:
        data, *others = (self._operand(arg) for arg in call.args)
        tensors = [_tensor(operand, self.constants) for operand in others[:-WEIGHT_PARTS]]
        weight = others[-WEIGHT_PARTS:]
        if implementation.pack_weight is None:
            tensors += [_tensor(operand, self.constants) for operand in weight]
        else:
            packed = implementation.pack_weight(workload, *(operand.value for operand in weight))
            tensors += [self.constants.add(array) for array in packed]
        return implementation.compute(workload, _tensor(data, self.constants), tensors, 0)

    def _starts_at_bias(self, name: str, expr: Any, operands: list[Operand]) -> bool:
        """Whether `expr` adds a per-channel constant to the product; if so, the accumulators now start at it."""
        product = self._product
        initial = product.implementation.initial if product else None
        if (
            name not in ("add", STARTED)
            or product is None
            or initial is None
            or self._initial is not None
            or not self._is_product(data_of(expr))
        ):
            return False
        bias, shape = operands[1].value, operands[0].shape
        wanted = "float32" if name == STARTED else "int32"
        if bias is None or str(bias.dtype) != wanted or bias.size != shape[-1] or bias.shape[-1:] != shape[-1:]:
            return False
        self._initial = self.constants.add(initial(product.workload, bias))
        return True

    def _is_product(self, var: Any) -> bool:
        """Whether a variable is the product at the head of the group and is read only once."""
        bindings = bindings_of(self.function)
        product = bindings[0]
        if traits_of(product.value).kind is not Kind.ACCUMULATOR:
            return False
        read = [arg for binding in bindings for arg in getattr(binding.value, "args", ()) if isinstance(arg, relax.Var)]
        return var.same_as(product.var) and sum(arg.same_as(product.var) for arg in read) == 1

    def _reason(self) -> str:
        """Why no faster implementation is used, for profile and inspect."""
        reasons = list(self._passed_over)
        if self._product is not None and self._product.implementation.is_generic and not reasons:
            reasons.append(self._product.unusual or why_generic(self._product.workload, self._target))
        return "; ".join(reasons)

    # ---- schedule ------------------------------------------------------------------------------------------------

    def _schedule(self) -> tirx.PrimFunc:
        function = te.create_prim_func([*self.placeholders, *self.constants.placeholders, self.output])
        if any(op_name(binding.value) in BOUNDED for binding in bindings_of(self.function)):
            function = bound_function(function, backend_of(self._target).widest_integer)
        layer, composite = (str(self.function.attrs[key]) for key in (LAYER, COMPOSITE))
        sources = tuple(map(str, self.function.attrs[SOURCES]))
        if self._product is None:
            key, schedule = GENERIC, self._schedule_generic
            facts = KernelFacts(layer, composite, GENERIC, reason=self._reason(), sources=sources)
        else:
            workload, name = self._product.workload, self._product.implementation.name
            if self._initial is not None:
                position = len(self.placeholders) + self.constants.placeholders.index(self._initial)
                accumulator = self._product.implementation.accumulator
                function = with_initial(function, accumulator, function.params[position])
            key, schedule = f"{name} {workload}", self._schedule_product
            described = json.dumps({"type": type(workload).__name__, **asdict(workload)})
            facts = KernelFacts(layer, composite, name, workload.macs, described, self._reason(), sources)
        function = self._known.scheduled(key, function, schedule)
        function = facts.on(function.with_attr(SCHEDULED, True).with_attr("op_pattern", OPAQUE))
        return function.without_attr("global_symbol")

    def _schedule_generic(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        grid = backend_of(self._target).grid
        return schedule_for_gpu(function) if grid else schedule_generic(function, self._target)

    def _schedule_product(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        assert self._product is not None
        sch = Unchecked(function)
        shuffle = shuffle_of([binding.value for binding in bindings_of(self.function) if op_name(binding.value)])
        if shuffle is not None:
            tiled = not (backend_of(self._target).grid or self._product.implementation.is_generic)
            in_order_of_channels(sch, *shuffle, tiled)
        self._product.implementation.schedule(sch, self._product.workload, self._target)
        return sch.mod["main"]


def _depends_on(tensor: te.Tensor, wanted: te.Tensor) -> bool:
    """Whether a tensor is computed from another one."""
    pending, seen = [tensor], set()
    while pending:
        one = pending.pop()
        if one.op.same_as(wanted.op):
            return True
        if one.op not in seen:
            seen.add(one.op)
            pending.extend(one.op.input_tensors)
    return False


def workload_of(call: relax.Call, target: Target) -> Any:
    """What the product computes. A dense layer with run-time weights is a batch_matmul with a batch of one."""
    name, attributes = op_name(call), call_attributes(call)
    first, second = factors_of(call)
    data, weight, values = shape_of(first), shape_of(second), constant_value(second)
    if "group_size" in attributes:
        return _blockwise_workload(call, attributes)
    dtypes = str(first.ty.dtype), str(second.ty.dtype), attributes["out_dtype"]
    pairable = backend_of(target).pairs and _pairable(values)
    if name == "qnn.dense_accumulate":
        (m, k), n = data, weight[0]
        if values is None:
            return BatchMatmulWorkload(1, m, k, n, *dtypes)
        return DenseWorkload(m, k, n, *dtypes, pairable_weights=pairable)
    if name == "qnn.batch_matmul_accumulate":
        batch, m, k = data
        return BatchMatmulWorkload(batch, m, k, weight[1], *dtypes)
    n, h, w, c = data
    o, kh, kw, _ = weight
    geometry = (attributes["strides"], attributes["padding"], attributes["dilation"], attributes["groups"])
    return Conv2dWorkload(n, h, w, c, o, (kh, kw), *geometry, *dtypes, _nine_bits(values), pairable)


def _blockwise_workload(call: relax.Call, attributes: dict[str, Any]) -> BlockwiseWorkload:
    (data, weight), traits = factors_of(call), traits_of(call)
    zero_point = traits.argument(call, str(traits.data[1].zero_point))
    shared = constant_value(zero_point) if str(zero_point.ty.dtype) == "int32" else None
    scale, (rows, depth) = traits.data[0].scale, shape_of(data)
    return BlockwiseWorkload(
        m=rows,
        k=depth,
        n=shape_of(weight)[0],
        group=min(attributes["group_size"], depth),
        data_dtype=str(data.ty.dtype),
        weight_dtype=attributes["weight_dtype"],
        zero_point=None if shared is None else int(shared),
        float_zeros=str(zero_point.ty.dtype) not in ("int32", "uint8"),
        row_scales=scale is not None and shape_of(traits.argument(call, scale))[1] == 1,
    )


def _nine_bits(weight: np.ndarray | None) -> bool:
    """Whether constant int16 weights are sums of two int8 values."""
    if weight is None or str(weight.dtype) != "int16":
        return False
    return bool(weight.min() >= -256 and weight.max() <= 254)


def _pairable(weight: np.ndarray | None) -> bool:
    """Whether int8 weights are constant and no output channel has more than one −128."""
    if weight is None or str(weight.dtype) != "int8":
        return False
    lowest = weight.reshape(len(weight), -1) == -128
    return int(lowest.sum(axis=1).max(initial=0)) <= 1


def _attributes(name: str, call: relax.Call) -> dict[str, Any]:
    if name.startswith("qnn."):
        return call_attributes(call)
    if name == "nn.leakyrelu":
        return {"alpha": float(call.attrs.alpha)}
    if name in ("nn.softmax", "nn.prelu"):
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
    """The tensor with a leading dimension of 1."""
    return te.compute((1, *tensor.shape), lambda b, *i: tensor(*i), name="lead")


def _repeat(tensor: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    """The tensor with each element repeated along the last axis, up to `shape`."""
    times = shape[-1] // int(tensor.shape[-1])
    return te.compute(shape, lambda *i: tensor(*i[:-1], i[-1] // times), name="repeat")
