"""Modules with loops, as frontends write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax

import qnn_ext
from qnn_ext.frontends.assembly import Assembly
from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.loop import Loop
from qnn_ext.passes.rewrite import bindings_of

Walk = Callable[..., Sequence[relax.Expr]]


def assembled(inputs: Sequence[tuple[str, Sequence[int], str]], walk: Walk) -> IRModule:
    """`main` over the inputs (name, shape, dtype); walk(assembly, *inputs) emits it and returns the results."""
    assembly = Assembly(unfolded=("dequantize",))
    params = [assembly.input(*one) for one in inputs]
    return assembly.module(lambda: walk(assembly, *params))


def as_model(mod: IRModule) -> QnnModule:
    """A module whose inputs and outputs are named after their positions."""

    def spec(name: str, ty: relax.TensorType) -> TensorSpec:
        return TensorSpec(name, tuple(int(dim) for dim in ty.shape), str(ty.dtype))

    main = mod["main"]
    inputs = [spec(f"x{index}", param.ty) for index, param in enumerate(main.params)]
    outputs = [spec(f"y{index}", ty) for index, ty in enumerate(main.ret_ty.fields)]
    return QnnModule(mod, tuple(inputs), tuple(outputs))


def loops_of(module: QnnModule) -> list[Loop]:
    """The loops in `main`."""
    return [found for found in (Loop.of(binding.value) for binding in bindings_of(module.ir["main"])) if found]


def check_results(
    module: QnnModule,
    runs: Iterable[tuple[Any, Sequence[np.ndarray]]],
    threads: Sequence[int] = (2,),
    exact: bool = True,
) -> None:
    """The interpreter and engines, for each number of threads one, give a framework's results.

    runs: (inputs, the framework's outputs) of each run
    """
    runners: list[Any] = [Interpreter(module), *(qnn_ext.build(module, num_threads=count) for count in threads)]
    assert all(engine.compiled[0].program is not None for engine in runners[1:]) or not loops_of(module)
    for feed, expected in runs:
        for runner in runners:
            for found, wanted in zip(runner.run(feed).values(), expected, strict=True):
                assert found.dtype == wanted.dtype
                assert found.shape == wanted.shape
                if exact:
                    np.testing.assert_array_equal(found, wanted)
                else:
                    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
