"""Cases on every CPU variant between guard pages, some on an emulated GPU: the interpreter's result or its error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, tvm_runtime
from qnn_ext.passes.checks import collect_checks
from qnn_ext.passes.inline import inlined
from tests.cpus import runs_here
from tests.guarded import guarded
from tests.hostile.cases import CASES

GPU = (
    "Gather",
    "GatherElements",
    "GatherND",
    "Div",
    "Mod",
    "BitShift",
    "Cast",
    "QuantizeLinear",
    "Clip",
    "Relu",
)
VARIANTS = [cpu for cpu in ("avx512_vnni", "avx_vnni", "avx512", "avx2", "x86-64") if runs_here(cpu)] or ["native"]


def outcome(runner: Any, values: Sequence[np.ndarray]) -> list[np.ndarray] | str:
    """The results, or the error message, which names node, value and range."""
    try:
        with np.errstate(all="ignore"):
            return list(runner.run(values).values())
    except InputError as error:
        return str(error)


def assert_same(found: Any, expected: Any, trial: Sequence[np.ndarray]) -> None:
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected, f"for {trial}"
        return
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=f"for {trial}")


@pytest.fixture
def guard_pages(monkeypatch) -> Iterator[None]:
    """Every buffer an engine allocates ends at a page that the process must not touch."""
    contexts = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        context = guarded([np.zeros(-(-size // 64) * 64, np.uint8)], at_end=True)
        contexts.append(context)
        (memory,) = context.__enter__()
        return memory[:size].view(dtype).reshape(shape)

    monkeypatch.setattr(tvm_runtime, "aligned_empty", allocate)
    yield
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_interpreter_gives_the_framework_s_answer(name):
    case = CASES[name]
    if case.framework is None:
        pytest.skip("the framework crashes, or does not define it")
    oracle = qnn_ext.Interpreter(case.build())
    for trial in case.trials:
        try:
            expected = case.framework(trial)
        except Exception:  # ONNX Runtime's own classes, one for each kind of failure
            assert isinstance(outcome(oracle, trial), str), f"refused by the framework: {trial}"
        else:
            assert_same(outcome(oracle, trial), list(expected), trial)


@pytest.mark.one_in(4)
@pytest.mark.sampled("variant")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_every_variant_gives_the_interpreter_s_answer(name, variant, guard_pages):
    case = CASES[name]
    module = case.build()
    oracle, engine = qnn_ext.Interpreter(module), qnn_ext.build(module, variant, num_threads=1)
    for trial in case.trials:
        assert_same(outcome(engine, trial), outcome(oracle, trial), trial)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name in CASES if name.split()[1] in GPU])
def test_emulated_gpu_gives_the_interpreter_s_answer(name):
    from qnn_ext.compiling.build import lower_module
    from qnn_ext.targets.names import make_target
    from tests.cuda.models import run_lowered

    case = CASES[name]
    module = case.build()
    oracle = qnn_ext.Interpreter(module)
    mod, checks = collect_checks(inlined(module.ir))
    lowered = lower_module(mod, make_target("sm_80"))
    for trial in case.trials[::4]:
        *results, status = (
            run_lowered(lowered, "sm_80", trial) if checks else (*run_lowered(lowered, "sm_80", trial), None)
        )
        found = str(checks[int(status[0]) - 1].error(int(status[1]))) if checks and status[0] else results
        assert_same(found, outcome(oracle, trial), trial)


@pytest.mark.parametrize("name", ["ONNX ScatterElements add", "ONNX ScatterND none"])
def test_scattering_builds_for_gpus(name):
    """The emulator cannot take buffers with an offset."""
    assert "scatter" in qnn_ext.build(CASES[name].build(), "sm_80").source("cuda")
