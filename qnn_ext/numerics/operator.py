"""Our own TIR operators, which become ordinary TIR only at code generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx


def define(name: str, meaning: str, inputs: int, lowering: Callable[[Any], Any]) -> None:
    """Register a pure operator that vectorizes, and its lowering on targets without a rule of their own."""
    tvm.ir._ffi_api.RegisterOp(name, meaning)
    op = tvm.ir.Op.get(name)
    op.set_num_inputs(inputs)
    op.set_attr("TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
    op.set_attr("TVectorizable", True)
    op.set_attr("TScriptPrinterName", name.removeprefix("tirx."))
    tirx.register_intrin_lowering(name, target="default", f=lowering)


def is_call(node: Any, name: str) -> bool:
    """Whether an expression is a call of the operator."""
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == name
