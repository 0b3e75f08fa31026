"""The last passes on TIR: what they are for is seen in the assembly; that results stay the same, in all other tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.op.base import constant
from qnn_ext.targets.names import make_target
from tests.passes.modules import module


def _assembly(shape: tuple[int, ...], dtype: str, body: Callable) -> str:
    target = make_target("skylake-avx512", num_threads=1)
    executable = generate_code(lower_module(module([(shape, dtype)], body), target), target)
    modules = [executable.mod, *executable.mod.imports]
    return "\n".join(part.inspect_source("s") for part in modules if part.kind == "llvm")


def test_accumulators_need_no_workspace():
    weight = constant(np.ones((32, 64), np.int8))

    def body(emit, x):
        acc = emit(qnn.dense(x, weight, 3, 0, 0.05, 0.01))
        return emit(qnn.requantize(acc, 0.0005, 0, 0.02, 5, out_dtype="uint8"))

    assert "TVMBackendAllocWorkspace" not in _assembly((28, 64), "uint8", body)


def test_a_fenced_product_is_one_instruction():
    assembly = _assembly((4, 64), "uint8", lambda emit, x: emit(qnn.dequantize(x, 0.3, 5)))
    assert "vmaxps" not in assembly
