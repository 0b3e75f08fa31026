"""The forward walk of qdq_to_integer: every tensor is carried as integers for as long as operators have a rule."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tvm import IRModule, relax

from ...module import FloatNote
from ...op.arguments import data_of, factors_of
from ...op.base import constant_value
from ..float_weights import TRANSPOSED
from ..marks import Mark, marks_of
from ..rewrite import Rebuild, bindings_of, op_name
from .context import Carried, Context
from .notes import reason_for
from .registry import rule_of
from .tensors import Quantized


def is_qdq(mod: IRModule) -> bool:
    """Whether `main` contains any quantize or dequantize."""
    return any(op_name(binding.value) in ("qnn.quantize", "qnn.dequantize") for binding in bindings_of(mod["main"]))


class Walker:
    """One walk over `main`."""

    def __init__(
        self, mod: IRModule, in_float: Container[str] = (), rounds_biases: bool = True, wide: Container[str] = ()
    ) -> None:
        self._mod = mod
        self._new = Rebuild(mod["main"])
        self._carried = Carried(self._new, rounds_biases)
        self._notes: list[FloatNote] = []
        self._in_float, self._wide = in_float, wide
        self._marks = marks_of(mod["main"])

    def run(self) -> tuple[IRModule, tuple[FloatNote, ...]]:
        """The module with integer operators, and a note for each operator that stays in float."""
        if not is_qdq(self._mod):
            return self._mod, ()
        with self._new.main():
            for binding in self._new.bindings:
                self._visit(binding)
            self._new.result = self._carried.in_float(self._new.function.body.body)
        return self._new.live_module(), tuple(self._notes)

    def _visit(self, binding: relax.VarBinding) -> None:
        value, var = binding.value, binding.var
        context = Context(self._carried, var)
        rule = None if self._stays_float(value, var) else rule_of(value)
        result = self._carried.field(value) if isinstance(value, relax.TupleGetItem) else None
        if rule is not None:
            result = rule(value, context)
        if result is None:
            self._note(value, var, context.reason)
            if op_name(value) in TRANSPOSED and self._stays_float(value, var):
                self._carried.keep_stored(factors_of(value)[1])
            result = self._carried.in_float(value)
        elif context.remark is not None:
            self._note(value, var, context.remark)
        self._carried.bind(var, result)

    def _stays_float(self, value: Any, var: Any) -> bool:
        """Whether the framework computes it in float: the operator wherever it is, or this product."""
        name = op_name(value)
        if name in self._in_float or self._marks.get(var.name) is Mark.PRODUCT:
            return True
        if name not in self._wide:
            return False
        return self._multiplies_wide(value) if name == "matmul" else not self._is_of_bytes(value, var)

    def _multiplies_wide(self, product: Any) -> bool:
        """Whether it multiplies two tensors that are computed at run time, one of which has more than 8 bits: their
        sums of 64 bits take longer than those of floats, while weights of 8 bits are multiplied by bytes."""
        known = [self._carried.known(operand) for operand in factors_of(product)]
        tensors = [tensor for tensor in known if isinstance(tensor, Quantized) and constant_value(tensor.data) is None]
        return len(tensors) == 2 and any(tensor.dtype not in ("int8", "uint8") for tensor in tensors)

    def _is_of_bytes(self, value: Any, var: Any) -> bool:
        """Whether its data and its result are quantized to 8 bits."""
        data, quantize = self._carried.known(data_of(value)), self._carried.quantize_behind(var)
        dtypes = {getattr(data, "dtype", None), quantize and quantize.out_dtype}
        return dtypes <= {"int8", "uint8"}

    def _note(self, value: Any, var: Any, reason: str | None) -> None:
        name = op_name(value)
        found = reason_for(name, value, self._carried.known) if name and reason is None else reason
        if found is not None and self._stays_float(value, var):
            found = "the framework computes it in float, and integers would not give its bits"
        if found is not None:
            self._notes.append(FloatNote(str(var.name), name, found))
