"""QDQ graphs for the tests of qdq_to_integer: written as a model is, run before and after the pass, and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax

from qnn_ext import build
from qnn_ext import op as qnn
from qnn_ext.module import FloatNote, QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.qdq_to_integer import qdq_to_integer
from qnn_ext.passes.rewrite import bindings_of, op_name

# a graph and its inputs
Case = tuple[Callable[..., Any], Sequence[np.ndarray]]
RNG = np.random.default_rng(3)


class Graph:
    """Emits one QDQ graph. Activations are quantized with `q`, read with `dq`."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self.emit = builder.emit

    def q(self, x: Any, scale: float, zero_point: int, dtype: str = "uint8", reciprocal: bool = False) -> Any:
        args = constant(np.float32(scale)), constant(np.int32(zero_point))
        return self.emit(qnn.quantize(x, *args, out_dtype=dtype, reciprocal=reciprocal))

    def dq(self, x: Any, scale: Any, zero_point: Any, axis: int = -1) -> Any:
        data = constant(x) if isinstance(x, np.ndarray) else x
        args = constant(np.asarray(scale, np.float32)), constant(np.asarray(zero_point, np.int32))
        return self.emit(qnn.dequantize(data, *args, axis=axis))

    def qdq(self, x: Any, scale: float, zero_point: int, dtype: str = "uint8", reciprocal: bool = False) -> Any:
        return self.dq(self.q(x, scale, zero_point, dtype, reciprocal), scale, zero_point)


def module(function: Callable[..., Any], *inputs: np.ndarray) -> IRModule:
    """`function(graph, *variables)` as a module over inputs of these shapes and dtypes."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = function(Graph(builder), *params)
            result = builder.emit_output(relax.Tuple(result if isinstance(result, list) else [result]))
        builder.emit_func_output(result)
    return builder.get()


def operators(mod: IRModule) -> list[str]:
    """The operators of `main`, in order."""
    return [op_name(binding.value) for binding in bindings_of(mod["main"]) if op_name(binding.value)]


@dataclass(frozen=True)
class Outcome:
    """What the pass made of a graph, and what it computes before (`expected`) and after (`got`)."""

    expected: list[np.ndarray]
    got: list[np.ndarray]
    module: IRModule
    notes: tuple[FloatNote, ...]

    @property
    def operators(self) -> list[str]:
        return operators(self.module)

    def floats(self) -> list[str]:
        """The operators with a float32 result, but for the epilogues of kernels."""
        bindings = [b for b in bindings_of(self.module["main"]) if op_name(b.value)]
        return [op_name(b.value) for b in bindings if "float" in str(getattr(b.var.ty, "dtype", ""))]


def run(function: Callable[..., Any], *inputs: np.ndarray, compiled: bool = True) -> Outcome:
    """Run a graph in float as the model says and after the pass; the compiled module must equal the interpreted one."""
    mod = module(function, *inputs)
    with np.errstate(all="ignore"):
        expected = interpret(mod, list(inputs))
        integers, notes = qdq_to_integer(mod)
        got = interpret(integers, list(inputs))
    if compiled:
        results = build(as_model(integers, inputs, got), num_threads=1).run(list(inputs))
        for one, two in zip(results.values(), got, strict=True):
            np.testing.assert_array_equal(one, two)
    return Outcome(expected, got, integers, notes)


def run_both(function: Callable[..., Any], *inputs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], IRModule]:
    """Results in float as the model says, results after the pass, and the module after it."""
    outcome = run(function, *inputs)
    return outcome.expected, outcome.got, outcome.module


def agree(outcome: Outcome, share: float = 1e-3, rtol: float = 1e-5) -> None:
    """Integers differ by 1 at most, where a float sum lies on the wrong side of a tie: a share of them, or one; floats
    by rounding errors."""
    for expected, got in zip(outcome.expected, outcome.got, strict=True):
        assert expected.dtype == got.dtype and expected.shape == got.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(
                got, expected, rtol=rtol, atol=rtol * max(np.abs(expected).max(initial=0), 1e-30)
            )
        else:
            difference = np.abs(expected.astype(np.int64) - got.astype(np.int64))
            assert difference.max(initial=0) <= 1
            assert (difference > 0).sum() <= max(1, share * difference.size)


def check(function: Callable[..., Any], *inputs: np.ndarray, compiled: bool = True, **options: Any) -> Outcome:
    """`run`, and the numbers agree."""
    outcome = run(function, *inputs, compiled=compiled)
    agree(outcome, **options)
    return outcome


def together(cases: Iterable[Case]) -> Case:
    """Several graphs as one module, for compiling each takes seconds."""
    listed = list(cases)

    def model(g: Graph, *variables: Any) -> list[Any]:
        results, position = [], 0
        for function, inputs in listed:
            result = function(g, *variables[position : position + len(inputs)])
            results += result if isinstance(result, list) else [result]
            position += len(inputs)
        return results

    return model, [array for _, inputs in listed for array in inputs]


def as_model(mod: IRModule, inputs: Any, outputs: Any) -> QnnModule:
    """The module with plain names around it."""
    specs = [
        tuple(TensorSpec(f"{kind}{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays))
        for kind, arrays in (("x", inputs), ("y", outputs))
    ]
    return QnnModule(mod, *specs)
