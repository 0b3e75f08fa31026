"""Expressions: types that follow, visitors and mutators, rules of a script's own, structural equality."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.compat.tvm import IRModule, ir, nd, relay, transform
from qnn_ext.compat.tvm.relay.testing.temp_op_attr import TempOpAttr
from qnn_ext.errors import ShapeError


def variables(*names: str) -> list[relay.Var]:
    return [relay.var(name, shape=(2, 3)) for name in names]


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (1, None, "int32"),
        (1.0, None, "float32"),
        (np.ones(2), None, "float32"),
        (np.arange(2), None, "int32"),
        (np.uint8([1]), None, "uint8"),
        (np.float64(1), None, "float32"),
        (1, "int64", "int64"),
        (nd.array(np.ones(2)), None, "float64"),
    ],
)
def test_constants(value, dtype, found):
    assert relay.const(value, dtype).data.dtype == found


OPEN = {
    "conv2d": (lambda x, w: relay.nn.conv2d(x, w, channels=6, kernel_size=(3, 2), groups=2), (6, 2, 3, 2)),
    "HWIO": (lambda x, w: relay.nn.conv2d(x, w, channels=6, kernel_size=3, kernel_layout="HWIO"), (3, 3, 4, 6)),
    "depthwise": (lambda x, w: relay.nn.conv2d(x, w, channels=8, kernel_size=3, groups=4), (8, 1, 3, 3)),
    "depthwise HWOI": (
        lambda x, w: relay.nn.conv2d(x, w, channels=8, kernel_size=3, groups=4, kernel_layout="HWOI"),
        (3, 3, 4, 2),
    ),
    "transposed": (lambda x, w: relay.nn.conv2d_transpose(x, w, channels=6, kernel_size=(3, 3)), (4, 6, 3, 3)),
    "dense": (lambda x, w: relay.nn.dense(relay.nn.batch_flatten(x), w, units=7), (7, 100)),
    "bias": (lambda x, w: relay.nn.bias_add(x, w), (4,)),
    "prelu": (lambda x, w: relay.nn.prelu(x, w), (4,)),
}


@pytest.mark.parametrize("name", OPEN)
def test_types_that_follow(name):
    """A variable without a type gets it from the operator that reads it; the function has one too."""
    build, shape = OPEN[name]
    data, weight = relay.var("data", shape=(1, 4, 5, 5)), relay.var("weight")
    function = relay.Function([data, weight], build(data, weight))
    kind = function.checked_type
    assert kind.arg_types == [relay.TensorType((1, 4, 5, 5)), relay.TensorType(shape)]
    assert weight.type_annotation == kind.arg_types[1]
    assert kind == ir.FuncType(kind.arg_types, function.body.checked_type)


def test_types_that_do_not_follow():
    data, weight = relay.var("data", shape=(1, 4, 5, 5)), relay.var("weight")
    with pytest.raises(ShapeError, match="needs channels= and kernel_size="):
        IRModule.from_expr(relay.nn.conv2d(data, weight)).model()
    with pytest.raises(ShapeError, match=r"relay\.var\('weight'\) has no type"):
        IRModule.from_expr(relay.add(data, relay.nn.relu(weight))).model()
    with pytest.raises(ShapeError, match=r"relay\.var\('weight'\) has no type"):
        relay.testing.create_workload(relay.Function([data, weight], relay.add(data, weight)))


class Names(relay.ExprVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_call(self, call: relay.Call) -> None:
        super().visit_call(call)
        self.found.append(call.op.name)


def test_visitor():
    """Everything once, operands first."""
    x, y = variables("x", "y")
    shared = relay.tanh(x)
    parts = relay.split(relay.Tuple([shared, shared * y])[1], 3, axis=1)
    names = Names()
    names.visit(relay.Function([x, y], relay.Tuple([parts[0], shared])))
    assert names.found == ["tanh", "multiply", "split"]
    with pytest.raises(TypeError, match="cannot visit a str"):
        names.visit("x")


class Swap(relay.ExprMutator):
    """tanh becomes sigmoid."""

    def visit_call(self, call: relay.Call) -> relay.Expr:
        made = super().visit_call(call)
        return relay.sigmoid(made.args[0]) if made.op.name == "tanh" else made


def test_mutator_and_bind():
    x, y = variables("x", "y")
    function = relay.Function([x, y], relay.add(relay.tanh(x), y))
    swapped = relay.transform.function_pass(lambda func, mod, context: Swap().visit(func), opt_level=0)(
        IRModule.from_expr(function)
    )
    expected = relay.Function([x, y], relay.add(relay.sigmoid(x), y))
    assert ir.structural_equal(swapped["main"], expected)
    bound = relay.build_module.bind_params_by_name(function, {"y": np.ones((2, 3), np.float32), "z": 1})
    assert [param.name_hint for param in bound.params] == ["x"]
    assert bound.body.args[1].data.numpy().tolist() == [[1] * 3] * 2
    assert ir.structural_equal(relay.bind(relay.tanh(x), {x: y}), relay.tanh(y))


def test_structural_equality():
    """Up to the names of parameters; free variables only where asked for."""
    (a, b), (c, d) = variables("a", "b"), variables("c", "d")
    assert ir.structural_equal(relay.Function([a, b], a + b), relay.Function([c, d], c + d))
    assert not ir.structural_equal(relay.Function([a, b], a + b), relay.Function([c, d], d + c))
    assert not ir.structural_equal(a + b, c + d) and ir.structural_equal(a + b, c + d, map_free_vars=True)
    assert not ir.structural_equal(a + a, c + d, map_free_vars=True)
    assert not ir.structural_equal(a + b, c + c, map_free_vars=True)
    assert not ir.structural_equal(a + relay.const(1.0), a + relay.const(2.0))
    assert not ir.structural_equal(relay.cast(a, "int8"), relay.cast(a, "int32"))
    assert relay.analysis.alpha_equal(relay.transpose(a, (1, 0)), relay.transpose(a, [1, 0]))
    assert ir.structural_equal(relay.TensorType((1,)), relay.TensorType((1,)))
    with pytest.raises(ValueError, match="StructuralEqual check failed"):
        ir.assert_structural_equal(IRModule.from_expr(a), IRModule.from_expr(relay.tanh(a)))


@pytest.mark.parametrize(
    ("attribute", "applies"),
    [("FTVMQnnLegalize", relay.qnn.transform.Legalize), ("FTVMLegalize", relay.transform.Legalize)],
)
def test_legalization_by_a_rule_of_the_script(attribute, applies):
    """As tests of Relay's own passes write them: attributes, arguments and types in, an expression out."""
    x = relay.var("x", shape=(2, 3), dtype="int8")
    qparams = [relay.const(value) for value in (1.0, 0, 1.0, 0)]
    before = relay.Function([x], relay.qnn.op.requantize(x, *qparams))

    def wider(attrs, inputs, types):
        assert [str(kind.dtype) for kind in types] == ["int8", "float32", "int32", "float32", "int32", "int8"]
        data = relay.cast(inputs[0], "int32")
        return relay.qnn.op.requantize(data, *inputs[1:], axis=attrs.axis, out_dtype=types[-1].dtype)

    other = relay.qnn.transform.Legalize if applies is relay.transform.Legalize else relay.transform.Legalize
    expected = relay.Function([x], relay.qnn.op.requantize(relay.cast(x, "int32"), *qparams))
    with TempOpAttr("qnn.requantize", attribute, wider):
        assert ir.structural_equal(relay.testing.run_opt_pass(before, other()), before)
        after = relay.testing.run_opt_pass(before, transform.Sequential([applies()]))
        assert ir.structural_equal(after, expected)
    assert ir.structural_equal(relay.testing.run_opt_pass(before, applies()), before)


def test_analysis():
    x, y = variables("x", "y")
    mod = IRModule.from_expr(relay.tanh(relay.tanh(x)) + y)
    assert relay.analysis.list_op_freqs(mod) == {"tanh": 2, "add": 1}
    assert relay.analysis.bound_vars(mod["main"]) == [x, y] and relay.analysis.bound_vars(x) == []
    assert relay.analysis.well_formed(mod["main"])
    assert not relay.analysis.well_formed(relay.Function([x, x], x))
