"""How passes rebuild `main`: what they do not change stays, with names that nothing else has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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


@pytest.mark.parametrize("rule", [lambda expr, emit: None, lambda expr, emit: expr], ids=["none", "itself"])
def test_what_no_rule_changes_stays(rule):
    mod = rewrite(chain(), _none)  # without the alias at its end
    assert rewrite(mod, rule)["main"].same_as(mod["main"])


def test_what_nothing_reads_goes_even_if_no_rule_changes_anything():
    def body(emit: Any, x: relax.Var) -> list[relax.Expr]:
        emit(relax.op.sqrt(x))
        return [emit(relax.op.abs(x))]

    names = [
        op_name(binding.value) for binding in bindings_of(rewrite(module([((4,), "float32")], body), _none)["main"])
    ]
    assert "abs" in names and "sqrt" not in names


def _none(expr: relax.Expr, emit: Any) -> None:
    """A rule that changes nothing."""


def test_a_rule_sees_each_value_once():
    """Also those before the first one that it changes."""
    mod, seen = chain(), []

    def rule(expr: relax.Expr, emit: Any) -> relax.Expr | None:
        seen.append(op_name(expr))
        return emit(relax.op.negative(emit(expr))) if op_name(expr) == "add" else None

    changed = rewrite(mod, rule)
    assert seen == [op_name(binding.value) for binding in bindings_of(mod["main"])]
    found = [name for binding in bindings_of(changed["main"]) if (name := op_name(binding.value))]
    assert found == ["abs", "sqrt", "add", "negative"] * 2


def test_a_changed_value_of_the_same_type_takes_the_old_variable(rng):
    """So what reads it stays."""
    mod, first = chain(), iter([True])

    def rule(expr: relax.Expr, emit: Any) -> relax.Expr | None:
        return relax.op.negative(expr.args[0]) if op_name(expr) == "abs" and next(first, False) else None

    changed = rewrite(mod, rule)
    x, y = -rng.random(4).astype(np.float32), rng.normal(0, 1, 3).astype(np.float32)
    for found, wanted in zip(interpret(changed, [x, y]), interpret(mod, [x, y]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert all(new.same_as(old) for new, old in zip(variables(changed)[:6], variables(mod)[:6], strict=True))
    values = [[binding.value for binding in bindings_of(one["main"])][:6] for one in (changed, mod)]
    assert [new.same_as(old) for new, old in zip(*values, strict=True)] == [False, True, True, True, True, True]


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


def test_types_that_follow_from_the_same_operands_are_not_inferred_again(rng):
    """Also where values get other names."""
    mod, inferred = chain(), []

    def rule(expr: relax.Expr, emit: Any) -> relax.Expr | None:
        return emit(relax.op.negative(emit(relax.op.abs(expr.args[0])))) if op_name(expr) == "abs" else None

    real = relax.BlockBuilder.emit

    def noted(self: relax.BlockBuilder, expr: relax.Expr, *args: Any, **hint: Any) -> Any:
        inferred.extend([op_name(expr)] if isinstance(expr, relax.Call) and expr.ty.is_missing() else [])
        return real(self, expr, *args, **hint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relax.BlockBuilder, "emit", noted)
        changed = rewrite(mod, rule)
    assert sorted(inferred) == ["abs", "abs", "negative", "negative"]
    assert [str(var.ty) for var in variables(changed)[-1:]] == [str(var.ty) for var in variables(mod)[-1:]]
    assert [var.name for var in variables(changed)][:2] == [variables(mod)[0].name, variables(mod)[0].name + "1"]


def test_types_that_change_are_inferred():
    """As where a rule replaces a value by one of another shape."""
    changed = rewrite(
        chain(), lambda expr, emit: relax.op.expand_dims(expr.args[0], 0) if op_name(expr) == "abs" else None
    )
    values = [binding.value for binding in bindings_of(changed["main"]) if op_name(binding.value) in ("sqrt", "add")]
    assert [len(value.ty.shape) for value in values] == [2] * 4
