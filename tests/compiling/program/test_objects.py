"""A program of several objects computes what it does in one piece, and equal kernels are compiled once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tvm import ir, tirx

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling import cache as whole_builds
from qnn_ext.compiling import program
from qnn_ext.compiling.program import objects
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from tests.cases.bundled import DATA
from tests.passes.modules import module as ir_of


@pytest.fixture(autouse=True)
def divided(monkeypatch):
    """Every program is divided, nearly every kernel in an object of its own, and every build is kept."""
    monkeypatch.setattr(program, "WORTHWHILE", 0)
    monkeypatch.setattr(objects, "_OFTEN", 2)
    monkeypatch.setattr(whole_builds, "WORTHWHILE", 0.0)


@pytest.fixture
def compiled(monkeypatch) -> list[int]:
    """A list of how many kernels there are in each object that is really compiled."""
    sizes, real = [], objects.codegen_build

    def counted(mod, target):
        sizes.append(len(mod.functions_items()))
        return real(mod, target)

    monkeypatch.setattr(objects, "codegen_build", counted)
    return sizes


def layers(*widths: int, seed: int = 0, names: str = "x") -> QnnModule:
    """Dense layers of these widths; weights, their zero points and scales depend on the seed."""
    rng = np.random.default_rng(seed)

    def body(emit, x):
        for inner, outer in pairwise(widths):
            weight = constant(rng.integers(-128, 128, (outer, inner)).astype(np.int8))
            acc = emit(qnn.dense(x, weight, 3, 2 + seed, 0.05, 0.01), name_hint=names)
            x = emit(qnn.requantize(acc, 0.0005, 0, 0.02 + 0.01 * seed, 5, out_dtype="int8"), name_hint=names)
        return x

    first, last = ((4, width) for width in (widths[0], widths[-1]))
    return QnnModule(
        ir_of([(first, "int8")], body), (TensorSpec("x", first, "int8"),), (TensorSpec("y", last, "int8"),)
    )


def run(engine: qnn_ext.Engine) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    inputs = {spec.name: rng.integers(-100, 100, spec.shape).astype(spec.dtype) for spec in engine.inputs}
    return list(engine.run(inputs).values())


def same(actual: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize(("name", "threads"), [("digits_cnn_int8.tflite", 1), ("digits_lstm_int8.tflite", 2)])
def test_computes_the_same(tmp_path, compiled, everything_shared, name, threads):
    one = qnn_ext.from_tflite(DATA / name)
    pieces = qnn_ext.build(one, num_threads=threads, cache=tmp_path / "cache")
    assert len(compiled) > 1 and same(run(pieces), run(qnn_ext.build(one, num_threads=threads, cache=False)))


def test_other_weights_need_no_code(tmp_path, compiled):
    first, second = (layers(16, 32, 48, seed=seed) for seed in (0, 1))
    one = qnn_ext.build(first, cache=tmp_path)
    compiled.clear()
    other = qnn_ext.build(second, cache=tmp_path)
    assert compiled == [] and not same(run(one), run(other))
    assert same(run(other), run(qnn_ext.build(second, cache=False)))


def test_names_need_no_code(tmp_path, compiled):
    qnn_ext.build(layers(16, 32, 48, names="x"), cache=tmp_path)
    assert compiled
    compiled.clear()
    qnn_ext.build(layers(16, 32, 48, names="of_another_framework"), cache=tmp_path)
    assert compiled == []


def test_a_changed_layer_leaves_most_objects(tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(objects, "_OFTEN", 1)
    qnn_ext.build(layers(16, 32, 48, 64, 80), cache=tmp_path)
    total = sum(compiled)
    compiled.clear()
    qnn_ext.build(layers(16, 32, 50, 64, 80), cache=tmp_path)
    assert 0 < sum(compiled) <= total // 2


def test_groups_meet_again_after_a_change():
    kernels = {f"kernel_{index * 2654435761 % 2**32:064x}": None for index in range(60)}
    before = [tuple(group) for group in objects._groups(kernels)]
    changed = [tuple(group) for group in objects._groups({"kernel_" + "f" * 64: None, **kernels})]
    assert before[1:] == changed[1:] and before[0] != changed[0]
    assert [symbol for group in before for symbol in group] == list(kernels)
    assert max(map(len, before)) <= objects._MOST


def test_the_library_does_not_depend_on_cores_or_cache(tmp_path, compiled, monkeypatch):
    libraries, one = set(), layers(16, 32, 48, 64)
    for folder, workers, key in (("first", 1, "0"), ("first", 1, "1"), ("second", 4, "0")):
        monkeypatch.setattr(whole_builds, "_key", lambda *_, digit=key: digit * 64)
        compiled.clear()
        libraries.add(qnn_ext.build(one, num_threads=2, cache=tmp_path / folder, jobs=workers)._fresh().linked())
        assert (compiled == []) == (key == "1"), "the second is made of the objects of the first"
    assert len(libraries) == 1


def test_no_more_threads_than_jobs(tmp_path, monkeypatch):
    pools, real = [], objects.ThreadPoolExecutor
    monkeypatch.setattr(objects, "ThreadPoolExecutor", lambda count: pools.append(count) or real(count))
    qnn_ext.build(layers(16, 32, 48), cache=tmp_path / "one", jobs=1)
    qnn_ext.build(layers(16, 32, 48), cache=tmp_path / "all")
    assert pools == [1, objects.default_threads()]
    with pytest.raises(qnn_ext.QnnError, match="jobs: must be a positive number of threads, found 0"):
        qnn_ext.build(layers(16, 32, 48), jobs=0)


def test_symbols_tell_functions_apart():
    def function(value: int, name: str) -> tirx.PrimFunc:
        pointer = tirx.Var(name, ir.PointerType(ir.PrimType("int32")))
        buffer = tirx.decl_buffer((4,), "int32", name, layout=None)
        store = tirx.BufferStore(buffer, tirx.IntImm("int32", value), [tirx.IntImm("int32", 0)])
        return tirx.PrimFunc([pointer], tirx.SeqStmt([tirx.DeclBuffer(buffer, data=pointer), store]))

    cases = [(1, "a"), (1, "b"), (2, "a")]
    symbols = [str(objects._named(function(*case)).attrs["global_symbol"]) for case in cases]
    assert symbols[0] == symbols[1] != symbols[2]


def test_what_fails_is_compiled_in_one_piece(tmp_path, monkeypatch):
    def fails(mod, target):
        raise RuntimeError("LLVM")

    one = layers(16, 32)
    expected = run(qnn_ext.build(one, cache=False))
    monkeypatch.setattr(objects, "codegen_build", fails)
    with pytest.warns(RuntimeWarning, match="compiled in parts.*report this: RuntimeError: LLVM"):
        engine = qnn_ext.build(one, cache=tmp_path)
    assert same(run(engine), expected) and not list(tmp_path.iterdir())
    assert "define" in engine.source("ll")
