"""Products in the bodies of loops: a recurrent layer's state times its weights, a layer in a branch of an If.

Only they are marked there, their weights and what they multiply: gates are a few operators on one row, and stay float
in the product's kernel. Loops within loops, loops whose rounds are only known at run time, and branches of an If are
loops like others.
"""

from __future__ import annotations

from functools import partial

from tvm import IRModule, relax

from ...op.loop import Loop
from ...passes.bodies import with_changed_body
from ...passes.rewrite import Rebuild, op_name
from ..config import QConfig
from .layers import weight_axis
from .loop_products import weight_position
from .marks import observed


def annotate_loops(mod: IRModule, config: QConfig) -> IRModule:
    """`mod` with an `R.qnn.observe` on the operands of each product in a loop that the configuration quantizes."""
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            loop = Loop.of(value)
            new.bind(binding.var, value if loop is None else _annotated(loop, binding.var.name, config))
    return new.module()


def _annotated(loop: Loop, name: str, config: QConfig) -> relax.Call:
    return with_changed_body(loop, partial(_marked, loop=name, config=config)).call()


def _marked(body: IRModule, loop: str, config: QConfig) -> IRModule:
    new = Rebuild(body["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            position = weight_position(value)
            name = f"{loop}.{binding.var.name}"
            operator = "nn.dense" if op_name(value) == "matmul" else op_name(value)
            inner = Loop.of(value)
            if inner is not None:
                value = _annotated(inner, name, config)
            settings = config.layer(name, operator)
            if position is not None and settings.quantized:
                args = list(value.args)
                axis = weight_axis(value, operator, position) if settings.per_channel else None
                data, weight = args[1 - position], args[position]
                data = observed(data, f"{name}.input", name, operator, settings, "input", None, settings.range)
                weight = observed(weight, f"{name}.weight", name, operator, settings, "weight", axis, None)
                args[1 - position], args[position] = new.builder.emit(data), new.builder.emit(weight)
                value = relax.Call(value.op, args, value.attrs, value.ty_args)
            new.bind(binding.var, value)
    return new.module()
