"""Products in the bodies of loops: a recurrent layer's state times its weights.

Only they are marked there, their weights and what they multiply: gates are a few operators on one row, and stay float
in the product's kernel. A loop whose rounds are only known at run time stays in float, for it has no tensor of the
values of all rounds to calibrate on; so does a loop within a loop.
"""

from __future__ import annotations

from functools import partial

from tvm import IRModule, relax

from ...passes.bodies import with_changed_body
from ...passes.rewrite import Rebuild
from ..config import QConfig
from .loop_products import quantizable_loop, weight_position
from .marks import observed

_OPERATOR = "nn.dense"


def annotate_loops(mod: IRModule, config: QConfig) -> IRModule:
    """`mod` with an `R.qnn.observe` on the operands of each product in a loop that the configuration quantizes."""
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            loop = quantizable_loop(value)
            if loop is not None:
                value = with_changed_body(loop, partial(_marked, loop=binding.var.name, config=config)).call()
            new.bind(binding.var, value)
    return new.module()


def _marked(body: IRModule, loop: str, config: QConfig) -> IRModule:
    new = Rebuild(body["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            position = weight_position(value)
            name = f"{loop}.{binding.var.name}"
            settings = config.layer(name, _OPERATOR)
            if position is not None and settings.quantized:
                args = list(value.args)
                axis = position if settings.per_channel else None
                data, weight = args[1 - position], args[position]
                data = observed(data, f"{name}.input", name, _OPERATOR, settings, "input", None, settings.range)
                weight = observed(weight, f"{name}.weight", name, _OPERATOR, settings, "weight", axis, None)
                args[1 - position], args[position] = new.builder.emit(data), new.builder.emit(weight)
                value = relax.Call(value.op, args, value.attrs, value.ty_args)
            new.bind(binding.var, value)
    return new.module()
