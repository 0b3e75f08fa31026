"""The fuzzer finds planted failures, is reproducible, and finds nothing in a short run over each format."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.module import QnnModule
from qnn_ext.op.base import constant_value
from tests.quantize.networks import float_module

from . import planted, seeds
from .__main__ import main
from .cases import Case, Corpus
from .check import BAD, CRASH, DIFFERENT, EXCEPTION, MEMORY, MESSAGE, REFUSED, TIMEOUT
from .execute import calls
from .findings import minimized
from .formats import INSIDE, find
from .pool import Single
from .rounding import is_explained
from .worker import Settings

PLANTED = "tests.fuzz.planted:FORMAT"
_NEEDS = {"onnx": "onnx", "pt2": "torch", "torchscript": "torch"}


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder with the seed of the planted format."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, content in planted.seeds():
        (folder / name).write_bytes(content)
    return folder


@contextlib.contextmanager
def single(corpus, seconds: float = 2.0) -> Iterator[Single]:
    """A child process with tight limits."""
    child = Single(Settings(PLANTED, str(corpus), 0, 0, seconds, memory=2 << 30))
    try:
        yield child
    finally:
        child.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marker", "outcome", "place"),
    [
        (b"CRASH", CRASH, "SIGSEGV at"),
        (b"HANG", TIMEOUT, "planted.py:read"),
        (b"SLEEP", TIMEOUT, "planted.py:read"),
        (b"BOMB", MEMORY, "planted.py:read"),
        (b"RAISE", EXCEPTION, "KeyError at planted.py:read"),
        (b"MUTE", MESSAGE, "QnnError at planted.py:read"),
    ],
)
def test_finds_what_is_planted(corpus, marker, outcome, place):
    plant = ("plant", next(seed for seed in range(1000) if planted.plant(b"", random.Random(seed)) == marker))
    with single(corpus) as child:
        verdict = child.check(Case("harmless.bin", (("noise", 1), plant), run=True))
        after = child.check(Case("harmless.bin", (("noise", 1),), run=False))  # the next file gets a living child
    assert verdict.outcome == outcome
    assert place in verdict.stack
    assert after.outcome == REFUSED


def test_finds_a_planted_difference(corpus):
    (corpus / "differ.bin").write_bytes(b"DIFFER")
    with single(corpus, seconds=60.0) as child:
        verdict = child.check(Case("differ.bin", (), run=True))
    assert verdict.outcome == DIFFERENT
    assert verdict.stack == "int32 values in maximum"


@pytest.mark.exhaustive("test_finds_what_is_planted and test_short_run")
def test_a_run_reports_minimizes_and_writes(tmp_path, corpus, capsys):
    out = tmp_path / "out"
    arguments = ["--format", PLANTED, "--corpus", corpus, "--files", 60, "--seed", 3, "--jobs", 2, "--run-every", 0]
    arguments += ["--timeout", 1, "--memory", 1, "--out", out, "--json"]
    assert main([str(argument) for argument in arguments]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["files"] == sum(summary["outcomes"].values()) == 60
    assert len(summary["findings"]) >= 3
    for finding in summary["findings"]:
        assert finding["confirmed"]
        assert [name for name, _ in finding["case"]["mutations"]] == ["plant"]
        assert Path(finding["file"]).read_bytes().startswith(b"harmless")
    written = json.loads(Path(summary["findings"][0]["file"]).with_suffix(".json").read_text())
    assert main(written["command"].removeprefix("python -m tests.fuzz ").split() + ["--timeout", "1"]) == 1


def test_a_harmless_run_ends_with_0(corpus, capsys):
    assert main(["--format", "tests.fuzz.planted:HARMLESS", "--corpus", str(corpus), "--files", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcomes"]["refused"] == 5


def test_minimizing_keeps_what_is_needed():
    case = Case("x", tuple((str(i), i) for i in range(20)), run=False)
    needed = {3, 11, 17}
    fewer = minimized(case, lambda case: needed <= {seed for _, seed in case.mutations})
    assert {seed for _, seed in fewer.mutations} == needed


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ["tflite", "onnx", "pt2-inside", "torchscript", "mxnet", "qnn"])
def test_short_run(name, tmp_path, capsys):
    """The same files each time; none fails; mutations are neither all harmless nor all refused at once."""
    pytest.importorskip(_NEEDS.get(name.removesuffix(INSIDE), "numpy"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, (file, content) in enumerate(itertools.islice(seeds.seeds(name), 4)):
        (folder / f"{number}{Path(file).suffix}").write_bytes(content)
    form, corpus = find(name), Corpus(folder)
    cases = [corpus.case(form, 1, number, 10) for number in range(20)]
    files = [corpus.content(form, case) for case in cases]
    assert [corpus.content(form, case) for case in cases] == files
    assert len(set(files)) > 10
    count = 30 if name == "torchscript" else 80  # each in its own process
    code = main(["--format", name, "--corpus", str(folder), "--files", str(count), "--seed", "1", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert (code, summary["findings"]) == (0, [])
    outcomes = summary["outcomes"]
    assert 5 < outcomes["refused"] < count and not any(outcomes[bad] for bad in BAD)


def _matmul(length: int) -> Any:
    """A product of float32 rows and a constant matrix."""
    pytest.importorskip("onnx")
    from tests.frontends.onnx.graphs import model, node, value

    weight = np.random.default_rng(0).standard_normal((length, 8)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    content = model(nodes, [value("x", (4, length))], [value("y", None)], {"w": weight}).SerializeToString()
    return qnn_ext.from_onnx(content)


def test_what_rounding_explains():
    """Allows sums in another order, and overflow in one of them; nothing ten times as far off, and no NaN elsewhere."""
    module = _matmul(64)
    data = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    data[3, :2] = 3e38, -3e38
    (wanted,) = Interpreter(module).run([data]).values()
    weight = next(value for value in map(constant_value, calls(module)[0].args) if value is not None)
    error = 64 * 2.0**-24 * (np.abs(data[:3]) @ np.abs(weight))
    near, far, nan = wanted.copy(), wanted.copy(), wanted.copy()
    near[:3] += error / 2
    far[:3] += 10 * error
    near[3], nan[:3] = np.nan, np.nan
    explained = [is_explained(module, [[data]], "y", found) for found in (near, far, nan)]
    overflows = 3e38 * np.abs(weight[:2]).sum(0) > np.finfo(np.float32).max
    assert explained[0][:3].all() and overflows.any() and (explained[0][3] == overflows).all()
    assert not explained[1][:3].any() and not explained[2][:3].any()


def _exponential(size: int) -> QnnModule:
    """y = exp(x), whose bits no format prescribes."""
    return float_module((size,), lambda emit, x: emit(relax.op.exp(x)))


def test_approximations_explain_last_bits():
    """Allows approximations in a framework's functions, not in ours, and nothing further off."""
    module, data = _exponential(9), np.linspace(-3, 5, 9, dtype=np.float32)
    (wanted,) = Interpreter(module).run([data]).values()
    near, far = wanted * np.float32(1 + 3e-7), wanted * np.float32(1 + 1e-4)
    assert is_explained(module, [[data]], "y", near, approximate=True).all()
    assert not is_explained(module, [[data]], "y", far, approximate=True).any()
    assert not is_explained(module, [[data]], "y", near).all()


def test_errors_that_a_function_makes_chaotic():
    """The cosine of a large number is anything once its argument has an error; without one it is as computed."""
    pytest.importorskip("onnx")
    from tests.frontends.onnx.graphs import model, node, value

    nodes = [node("Mul", ["x", "x"], ["y"]), node("Cos", ["y"], ["z"])]
    content = model(nodes, [value("x", (2,))], [value("z", (2,))], {}).SerializeToString()
    module, data = qnn_ext.from_onnx(content), np.float32([1e6, 0.5])
    (wanted,) = Interpreter(module).run([data]).values()
    assert is_explained(module, [[data]], "z", wanted, approximate=True).all()
    assert list(is_explained(module, [[data]], "z", wanted + np.float32(1e-3), approximate=True)) == [True, False]


def test_subnormal_results_that_are_flushed():
    """A framework's exp may return 0 for them, or a subnormal number where ours is 0; nothing that is larger."""
    module, data = _exponential(3), np.float32([-100, -120, -90])
    found = [np.float32([0, 1e-45, 0]), np.float32([1e-37, 1e-37, 1e-37])]
    explained = [is_explained(module, [[data]], "y", one, approximate=True) for one in found]
    assert explained[0].all() and not explained[1].any()
