"""Kernels split at barriers."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from qnn_ext.compiling.program.phases import IMPORT, split
from qnn_ext.targets.names import make_target

DEFINITION = "declare float @f(float)"


def test_a_loop_that_calls_an_llvm_function_is_shared():
    """The function's definition stands around the whole body, and each phase has it."""
    x = tirx.decl_buffer((1 << 20,), "float32", "x", layout=None)
    index = tirx.Var("i", "int32")
    store = tirx.BufferStore(x, tirx.call_pure_extern("float32", "f", x[index]), [index])
    loop = tirx.For(index, 0, 1 << 20, tirx.ForKind.PARALLEL, store)
    body = tirx.AttrStmt(0, IMPORT, DEFINITION, tirx.SeqStmt([tirx.Evaluate(0), loop]))
    function = tirx.PrimFunc([x], body).with_attr("target", make_target("avx2", 2))
    phases = split(function, 2, 300.0).phases
    assert [phase.parallel for phase in phases] == [False, True]
    for phase in phases:
        found: list[tirx.AttrStmt] = []
        tvm_ffi.structural_walk(phase.function.body, (tirx.AttrStmt, found.append))
        assert [stmt.value.value for stmt in found if stmt.attr_key == IMPORT] == [DEFINITION]
