"""How passes rebuild `main`: what they do not change stays, with names that nothing else has."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.rewrite import Rebuild, bindings_of, op_name, rewrite

from .modules import module


def chain() -> IRModule:
    """sqrt(|x|) + 1, twice: of both results, as a tuple."""

    def body(emit: Any, x: relax.Var, y: relax.Var) -> list[relax.Expr]:
        return [emit(relax.op.add(emit(relax.op.sqrt(emit(relax.op.abs(v)))), constant(np.float32(1)))) for v in (x, y)]

    return module([((4,), "float32"), ((3,), "float32")], body)


def variables(mod: IRModule) -> list[relax.Var]:
    return [binding.var for binding in bindings_of(mod["main"])]


def test_what_no_rule_changes_stays(monkeypatch):
    inferred: list[Any] = []
    real = relax.BlockBuilder.emit
    monkeypatch.setattr(
        relax.BlockBuilder, "emit", lambda self, *args, **hint: inferred.append(args) or real(self, *args, **hint)
    )
    mod = chain()
    inferred.clear()
    same = rewrite(mod, lambda expr, emit: None)
    assert [type(args[0]) for args in inferred] == [relax.Tuple]  # the result
    assert all(new.same_as(old) for new, old in zip(variables(same)[:6], variables(mod)[:6], strict=True))


def test_what_reads_a_changed_value_is_rebuilt(rng):
    mod, first = chain(), iter([True])

    def rule(expr: relax.Expr, emit: Any) -> relax.Expr | None:
        return relax.op.negative(expr.args[0]) if op_name(expr) == "abs" and next(first, False) else None

    changed = rewrite(mod, rule)
    x, y = -rng.random(4).astype(np.float32), rng.normal(0, 1, 3).astype(np.float32)
    for found, wanted in zip(interpret(changed, [x, y]), interpret(mod, [x, y]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    stayed = [var for var in variables(mod) if any(var.same_as(other) for other in variables(changed))]
    assert stayed == variables(mod)[3:6]  # those of y


def test_names_are_given_once():
    """Also where a new value takes the name of one that would have stayed."""
    old = chain()
    new = Rebuild(old["main"])
    with new.main():
        new.builder.emit(relax.op.negative(old["main"].params[0]), name_hint=new.bindings[2].var.name)
        for binding in new.bindings:
            new.keep(binding)
    names = [var.name for var in variables(new.module())]
    assert len(set(names)) == len(names)
