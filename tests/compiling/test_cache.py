"""An engine from the cache is the one that would be built, and the key covers all that a build depends on."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import tvm

import qnn_ext
from qnn_ext import ArtifactError, Limits, QnnError
from qnn_ext import op as qnn
from qnn_ext.autotune.measure import Result
from qnn_ext.autotune.records import append, apply_history_best, line_of
from qnn_ext.autotune.space import space_of
from qnn_ext.autotune.task import extract_from_program
from qnn_ext.compiling import build as compiling
from qnn_ext.compiling import cache as module
from qnn_ext.files.cache import Cache
from qnn_ext.limits import using
from qnn_ext.module import FloatNote, QnnModule, State, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.running import artifact
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.strategy import tiles_from
from tests.cases.bundled import DATA
from tests.passes.modules import module as ir_of
from tests.running.test_shapes import WIDTH
from tests.running.test_shapes import module as of_shape

MODEL = DATA / "digits_cnn_int8.tflite"
RECURRENT = DATA / "digits_lstm_int8.tflite"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a cache that keeps every build."""
    monkeypatch.setattr(module, "WORTHWHILE", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch) -> list[str]:
    """A list of the models that are really compiled."""
    models, real = [], compiling._compiled

    def counted(one, *rest):
        models.append(one.source)
        return real(one, *rest)

    monkeypatch.setattr(compiling, "_compiled", counted)
    return models


def sample(engine: qnn_ext.Engine) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(-100, 100, spec.shape).astype(spec.dtype) for spec in engine.inputs]


def small() -> qnn_ext.QnnModule:
    """A dense layer."""
    weight = constant(np.arange(64, dtype=np.int8).reshape(8, 8))

    def body(emit, x):
        acc = emit(qnn.dense(x, weight, 3, 0, 0.05, 0.01))
        return emit(qnn.requantize(acc, 0.0005, 0, 0.02, 5, out_dtype="int8"))

    ir = ir_of([((2, 8), "int8")], body)
    return QnnModule(ir, (TensorSpec("x", (2, 8), "int8"),), (TensorSpec("y", (2, 8), "int8"),), source="small")


def content(engine: qnn_ext.Engine, tmp_path) -> bytes:
    engine.save(tmp_path / "saved.qnn")
    return (tmp_path / "saved.qnn").read_bytes()


@pytest.mark.parametrize("path", [MODEL, RECURRENT], ids=["one function", "states"])
def test_the_second_build_compiles_nothing(folder, compiled, tmp_path, path):
    built = qnn_ext.build(qnn_ext.from_tflite(path), num_threads=2, cache=folder)
    kept = qnn_ext.build(qnn_ext.from_tflite(path), num_threads=2, cache=folder)
    assert len(compiled) == 1
    for _ in range(2):  # with what the first call left in the states
        np.testing.assert_array_equal(built(*sample(built)), kept(*sample(kept)))
    assert content(built, tmp_path) == content(kept, tmp_path)
    assert kept.kernels == built.kernels and kept.variants == built.variants and kept.fallback == built.fallback
    assert len(compiled) == 1


def test_several_shapes(folder, monkeypatch, tmp_path):
    """Built together, they are kept together: over one array of weights, and the same states."""
    times, real = [], compiling._compiled_together

    def counted(*rest):
        times.append(rest)
        return real(*rest)

    monkeypatch.setattr(compiling, "_compiled_together", counted)
    counts = (1, 3)

    def both() -> qnn_ext.Engine:
        return qnn_ext.build([of_shape(count) for count in counts], num_threads=1, cache=folder)

    built, kept = both(), both()
    assert len(times) == 1
    rng = np.random.default_rng(0)
    for place, index in enumerate((1, 0, 1)):
        x = rng.normal(size=(counts[index], WIDTH)).astype(np.float32)
        one, other = ((engine, *engine.others)[index](x, np.array([place])) for engine in (built, kept))
        np.testing.assert_array_equal(one, other)
    assert content(built, tmp_path) == content(kept, tmp_path)
    assert kept._load_code()[1] is kept.others[0]._load_code()[1]
    assert kept.others[0].source("ll") and len(times) == 2
    counts = (1, 4)
    both()
    assert len(times) == 3


def test_the_name_is_that_of_the_file_built_now(folder, compiled):
    built, kept = (qnn_ext.build(replace(small(), source=name), cache=folder) for name in ("first", "second"))
    assert (built.source_name, kept.source_name, len(compiled)) == ("first", "second", 1)


def test_source_is_compiled_again(folder, compiled):
    one = small()
    built, kept = (qnn_ext.build(one, num_threads=1, cache=folder) for _ in range(2))
    for kind in ("tir", "ll", "asm"):  # LLVM's IR names its kinds of memory by addresses
        texts = [re.sub("0x[0-9a-f]+", "", engine.source(kind)) for engine in (built, kept)]
        assert texts[0] == texts[1]
    tvm.ir.assert_structural_equal(kept.tir, built.tir)
    assert len(compiled) == 2


def test_clones_share_the_code(folder):
    built, kept = (qnn_ext.build(small(), cache=folder) for _ in range(2))
    for engine in (built, kept):
        clone = engine.clone()
        np.testing.assert_array_equal(clone(*sample(clone)), engine(*sample(engine)))
        assert clone._load_code()[0] is engine._load_code()[0]


def test_without_a_cache(folder, compiled, monkeypatch):
    one = small()
    monkeypatch.setenv("QNN_EXT_CACHE", str(folder))
    for _ in range(2):
        qnn_ext.build(one, cache=False)
    monkeypatch.setenv("QNN_EXT_CACHE", "off")
    qnn_ext.build(one)
    assert len(compiled) == 3 and not folder.exists()
    monkeypatch.setenv("QNN_EXT_CACHE", str(folder))
    monkeypatch.setattr(module, "WORTHWHILE", 1e9)
    qnn_ext.build(one)
    assert not folder.exists(), "a build that takes no time is not kept"
    monkeypatch.setattr(module, "WORTHWHILE", 0.0)
    for _ in range(2):
        qnn_ext.build(one)
    assert len(compiled) == 5 and len(Cache(folder).entries()) == 1


def test_several_targets(folder, compiled, tmp_path):
    one, targets = small(), ["avx2", "x86-64"]
    built = qnn_ext.build(one, targets, cache=folder)
    qnn_ext.build(one, "x86-64", cache=folder)
    kept = qnn_ext.build(one, targets, cache=folder)
    assert len(compiled) == 2 and content(built, tmp_path) == content(kept, tmp_path)


# ---- keys --------------------------------------------------------------------------------------------------------


def key(one: qnn_ext.QnnModule, target: str = "x86-64", threads: int = 1, asked: bool = True) -> str | None:
    return module._key([one], make_target(target, threads), asked)


def test_the_same_module_has_the_same_key():
    assert key(qnn_ext.from_tflite(MODEL)) == key(qnn_ext.from_tflite(MODEL))


def test_everything_that_matters_is_in_the_key():
    one = qnn_ext.from_tflite(RECURRENT)
    first, *others = one.states
    input_ = one.inputs[0]
    keys = [
        key(one),
        key(one, "avx2"),
        key(one, threads=2),
        key(one, asked=False),
        key(qnn_ext.from_tflite(RECURRENT, numerics="tflite")),
        key(replace(one, inputs=(replace(input_, name="another"), *one.inputs[1:]))),
        key(replace(one, notes=(FloatNote("node", "ADD", "why"),))),
        key(replace(one, states=(State(first.name, first.initial + 1), *others))),
        key(qnn_ext.from_tflite(MODEL)),
    ]
    with using(Limits(workspace=1 << 30)):
        keys.append(key(one))
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        keys.append(key(one))
    assert None not in keys and len(set(keys)) == len(keys)


def test_one_weight_matters():
    data = bytearray(MODEL.read_bytes())
    before = qnn_ext.from_tflite(bytes(data))
    weight = max(
        (value.value.numpy() for value in _constants(before) if str(value.value.dtype) == "int8"), key=lambda a: a.size
    )
    place = bytes(data).index(weight.tobytes()[:64])
    data[place] ^= 1
    assert key(before) != key(qnn_ext.from_tflite(bytes(data)))


def _constants(one: qnn_ext.QnnModule) -> list:
    from qnn_ext.passes.bodies import every_binding
    from qnn_ext.passes.rewrite import operands

    values = (operand for binding, _ in every_binding(one.ir) for operand in operands(binding.value))
    return [value for value in values if isinstance(value, tvm.ir.expr.GenericConst)]


@pytest.mark.parametrize("name", ["qnn_ext", "tvm", "llvm", "numpy", "host"])
def test_another_version_is_another_key(monkeypatch, name):
    one, versions = qnn_ext.from_tflite(MODEL), module._versions()
    before = key(one)
    monkeypatch.setattr(module, "_versions", lambda: {**versions, name: "another"})
    assert key(one) != before


def test_tuning_records_are_in_the_key(folder, compiled, tmp_path):
    """A build from the cache has the tiles of the same records, and says so; other records are another build."""
    one, target, log = qnn_ext.from_tflite(MODEL), make_target("x86-64", 1), tmp_path / "log.jsonl"
    task = next(item for item in extract_from_program(one, target) if len(space_of(item)) > 2)
    configurations = space_of(task).configurations

    def record(index: int) -> None:
        append(log, line_of(Result(task, configurations[index], 0.5**index, 1.0, "")))

    record(1)
    engines, applied = [], []
    for _ in range(2):
        with apply_history_best(log) as history:
            engines.append(qnn_ext.build(one, target, cache=folder))
        applied.append(history.applied)
    assert len(compiled) == 1 and applied == [{task.name: configurations[1]}] * 2
    np.testing.assert_array_equal(*(engine(*sample(engine)) for engine in engines))
    record(2)
    with apply_history_best(log) as history:
        qnn_ext.build(one, target, cache=folder)
    assert len(compiled) == 2 and history.applied == {task.name: configurations[2]}
    qnn_ext.build(one, target, cache=folder)
    assert len(compiled) == 3


def test_what_has_no_key(monkeypatch):
    one = qnn_ext.from_tflite(MODEL)
    assert key(one, "sm_80") is None
    with tiles_from(lambda *_: None):
        assert key(one) is None
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        assert key(one) is None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "qnn_ext.plugins", None)
        assert key(one) is None
    monkeypatch.setattr(module, "_IMPORTED", 0.0)  # sources changed after they were imported
    module._versions.cache_clear()
    try:
        assert key(one) is None
    finally:
        module._versions.cache_clear()


# ---- mishaps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [b"", b"no engine", None], ids=["empty", "nonsense", "another format"])
def test_an_entry_that_is_no_engine_is_replaced(folder, compiled, stored):
    one = small()
    built = qnn_ext.build(one, "x86-64", 1, cache=folder)
    if stored is None:
        stored = built.for_cache([built]).replace(b'"format": 3', b'"format": 4')
    Cache(folder).put(key(one), stored)
    again = qnn_ext.build(one, "x86-64", 1, cache=folder)
    assert len(compiled) == 2 and bytes(Cache(folder).get(key(one))) == again.for_cache([again])


def test_a_library_that_cannot_be_loaded_is_not_needed(folder, compiled, monkeypatch):
    one = small()
    built, kept = (qnn_ext.build(one, cache=folder) for _ in range(2))
    expected = built(*sample(built))

    def fails(path, program):
        raise ArtifactError("this folder is mounted with noexec")

    monkeypatch.setattr(artifact, "_loaded", fails)
    np.testing.assert_array_equal(kept(*sample(kept)), expected)
    assert len(compiled) == 2


def test_without_a_linker_nothing_is_kept(folder, compiled, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "")
    one = small()
    for _ in range(2):
        engine = qnn_ext.build(one, cache=folder)
    engine(*sample(engine))
    assert len(compiled) == 2 and not folder.exists()


def test_a_folder_that_is_not_private_is_refused_if_it_was_asked_for(folder, compiled, monkeypatch):
    one = small()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(QnnError, match="other users can write"):
        qnn_ext.build(one, cache=folder)
    monkeypatch.setenv("QNN_EXT_CACHE", str(folder))
    qnn_ext.build(one)
    assert list(folder.iterdir()) == []


def test_the_command(cli, fails, monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("QNN_EXT_CACHE", str(folder))
    assert cli("cache", "path") == (0, f"{folder}\n", "")
    Cache(folder).put("0" * 64, bytes(1000))
    assert "1 entry, 1.0 kB of at most" in cli("cache", "info")[1]
    assert '"entries": 1' in cli("cache", "info", "--json")[1]
    assert "removed 1 entry" in cli("cache", "clear")[1] and "0 entries" in cli("cache", "info")[1]
    folder.chmod(0o777)
    assert "other users can write" in fails("cache", "info")
    monkeypatch.setenv("QNN_EXT_CACHE", "off")
    assert "there is no cache" in fails("cache", "clear")
