"""Objects that a script makes: of its own classes, whose methods are inlined, and of PyTorch's that switch gradients
on and off (`with torch.no_grad()`), which computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ScriptObject(dict):
    """The attributes of an object; script_type: its class, as TorchScript names it."""

    def __init__(self, script_type: str) -> None:
        super().__init__()
        self.script_type = script_type


_GRADIENT_MODES = "__torch__.torch.autograd.grad_mode."


def on_object(node: Any, kind: str, operands: Sequence[Any]) -> list[Any] | None:
    """The results of an operator on objects; None for others."""
    if kind == "prim::CreateObject":
        return [ScriptObject(str(node.output().type()))]
    if not operands or not isinstance(operands[0], ScriptObject):
        return None
    made = operands[0]
    if kind == "prim::GetAttr":
        return [made[node.s("name")]]
    if kind == "prim::SetAttr":
        made[node.s("name")] = operands[1]
        return []
    if kind in ("prim::Enter", "prim::Exit") and made.script_type.startswith(_GRADIENT_MODES):
        return [None]
    return None
