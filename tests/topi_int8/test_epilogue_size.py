"""Expressions grow with the operators of a kernel, not with a power of them: TVM and LLVM go through every node."""

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, te, tirx
from tvm.relax import Var

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.compiling.program.phases import lower_kernels
from qnn_ext.op.base import call_attributes, constant, constant_value, definition_of, shape_of
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize, fuse, lower
from qnn_ext.passes.rewrite import op_name
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.generic.elementwise import RULES, elementwise
from qnn_ext.topi_int8.generic.operands import Constants, Operand
from tests.cases.operators import ROUNDINGS, VARIANTS
from tests.op.helpers import var
from tests.passes.modules import compile_and_run, inputs_of, module

CHANNELS = 16
SHAPE = (1, 4, 4, CHANNELS)


def nodes(root) -> list:
    found = []
    tvm_ffi.structural_walk(root, (ir.Expr, lambda node: found.append(node)))
    return found


def elementwise_calls():
    for name, (variables, build) in VARIANTS.items():
        call = build(*(var(*variable) for variable in variables))
        simulated = op_name(call).startswith("qnn.simulated_")  # these choose between roundings at run time
        if op_name(call) in RULES and op_name(call).startswith("qnn.") and not simulated:
            yield pytest.param(call, id=name)


@pytest.mark.parametrize("call", list(elementwise_calls()))
def test_each_operand_is_read_once(call):
    """An operand may be a long expression: what reads it twice is twice as long."""
    parameters = [arg for arg in call.args if isinstance(arg, Var)]
    tensors = [te.placeholder(shape_of(arg), str(arg.ty.dtype), name=f"x{i}") for i, arg in enumerate(parameters)]
    operands = [
        Operand(tensors[parameters.index(arg)], None) if arg in parameters else Operand(None, constant_value(arg))
        for arg in call.args
    ]
    definition, attributes = definition_of(call), call_attributes(call)
    shape = [int(size) for size in definition.infer_type(call.args, attributes).shape]
    with make_target("x86-64"):
        result = elementwise(op_name(call), operands, attributes, shape, Constants())
    read = [node.op.name for node in nodes(result.op.body[0]) if isinstance(node, te.Tensor)]
    for tensor in tensors:
        assert read.count(tensor.op.name) == 1


def residual_sums(rng, count, route, slopes=False):
    """A convolution, then `count` residual sums, all by the same rounding; the last one may be followed by a PReLU."""
    weight = rng.integers(-128, 128, (CHANNELS, 1, 1, CHANNELS)).astype(np.int8)

    def body(emit, x, other):
        total = emit(qnn.conv2d(x, constant(weight), 3, 0, 0.1, 0.02))
        total = emit(qnn.requantize(total, 0.002, 0, 0.3, 1, out_dtype="int8", **route))
        for index in range(count):
            total = emit(qnn.add(total, other, 0.3, 1 + index, 0.21, -5, 0.3, 2 + index, **route))
        if slopes:
            alpha = constant(rng.integers(-128, 128, (1, 1, CHANNELS)).astype(np.int8))
            total = emit(qnn.prelu(total, alpha, 0.3, 1 + count, 0.004, 3, 0.3, 1, **route))
        return total

    return module([(SHAPE, "uint8"), (SHAPE, "int8")], body)


def lowered(mod, target):
    """The body of the only kernel as LLVM gets it."""
    kernels = lower(fuse(canonicalize(mod)), target).functions
    functions = {name: function for name, function in kernels.items() if isinstance(function, tirx.PrimFunc)}
    assert len(functions) == 1
    (function,) = lower_kernels(functions, target).values()
    return function.body


@pytest.mark.parametrize("target", ["avx2", "rpi5"])
def test_every_sum_in_a_kernel_adds_the_same(target, rng):
    """With TFLite's rounding, which reads each value twice, three sums took a minute to compile."""
    target, route = make_target(target), {"rounding": "TFLITE"}
    sizes = [len(nodes(lowered(residual_sums(rng, count, route), target))) for count in (1, 2, 3)]
    assert sizes[2] - sizes[1] < 1.5 * (sizes[1] - sizes[0])


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["native", "avx2", "x86-64"])
@pytest.mark.parametrize(("rounding", "compute"), ROUNDINGS)
def test_sums_and_slopes_equal_the_interpreter(rounding, compute, cpu, rng):
    mod = residual_sums(rng, 2, {"rounding": rounding, "compute_dtype": compute}, slopes=True)
    inputs = inputs_of(rng, mod)
    (actual,), (expected,) = compile_and_run(mod, cpu, inputs), interpret(mod, inputs)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("count", [0, 2])
def test_code_for_arm(count, rng):
    """The code generator's time is exponential in the number of `let`s that depend on one another."""
    target = make_target("rpi5")
    mod = residual_sums(rng, count, {"rounding": "TFLITE"}, slopes=True)
    assert not any(isinstance(node, tirx.Let) for node in nodes(lowered(mod, target)))
    generate_code(lower_module(mod, target), target)
