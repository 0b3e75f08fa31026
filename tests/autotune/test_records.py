"""The log: what is written is read, what does not fit is ignored with a warning, and never applied."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import TuningError
from qnn_ext.autotune import Result, apply_history_best, best_configuration, extract_from_program, read_log, space_of
from qnn_ext.autotune.records import append, known_results, line_of
from qnn_ext.errors import TuningWarning
from qnn_ext.topi_int8.strategy import candidates

from .conftest import SMALL, small_task


@pytest.fixture
def log(tmp_path):
    return tmp_path / "tuning.jsonl"


def changed(line: str, **fields) -> str:
    return json.dumps({**json.loads(line), **fields})


def measured(task, index: int, seconds: float = 1e-6, reference: float = 2e-6, error: str = "") -> Result:
    return Result(task, space_of(task).configurations[index], seconds, reference, error)


def chosen(task, log):
    """The tile that a build under the log takes for the task's kernel; None for the default."""
    with apply_history_best(log) as history:
        (item,) = [item for item in candidates(task.workload, task.target) if item.name == task.kernel]
        tile = getattr(item.compute, "keywords", {}).get("tile")
        assert (tile is not None) == bool(history.applied)
    return tile


def test_written_is_read(task, log):
    results = [measured(task, 1), measured(task, 2, 3e-6), measured(task, 3, 0.0, 0.0, "wrong: 1 of 2 outputs differ")]
    for result in results:
        append(log, line_of(result))
    read = read_log(log)
    assert not read.ignored and known_results(read, task, space_of(task)) == (results, None)
    assert best_configuration(log, task) == results[0].configuration == chosen(task, log)


def test_merged_by_concatenation(task, log, tmp_path):
    other = tmp_path / "other.jsonl"
    append(log, line_of(measured(task, 1, 1.5e-6)))
    append(other, line_of(measured(task, 2, 1e-6)))
    log.write_bytes(log.read_bytes() + other.read_bytes())
    assert len(read_log(log).records) == 2
    assert best_configuration(log, task) == space_of(task).configurations[2]


def test_decision_counts_before_measurements(task, log):
    append(log, line_of(measured(task, 1, 1e-6)))
    append(log, line_of(measured(task, 2, 1.8e-6), decided=5))
    assert best_configuration(log, task) == space_of(task).configurations[2]
    append(log, line_of(measured(task, 0, 2e-6), decided=9))  # from more of them: the default
    assert best_configuration(log, task) is None and chosen(task, log) is None


def test_small_gains_without_a_decision_are_not_applied(task, log):
    append(log, line_of(measured(task, 1, 1.98e-6)))
    assert best_configuration(log, task) is None


def test_torn_last_line(task, log):
    """A process that died while it wrote loses its last record, with a warning; those before and after count."""
    line = line_of(measured(task, 1))
    log.write_text(f"{line}\n{line[:40]}")
    with pytest.warns(TuningWarning, match="1 records ignored: 1 in an unfinished last line"):
        assert chosen(task, log) is not None
    append(log, line_of(measured(task, 2)))
    read = read_log(log)
    assert len(read.records) == 2 and read.ignored == {"unreadable": 1}


def test_last_line_without_its_end_is_a_record_if_it_is_whole(task, log):
    log.write_text(line_of(measured(task, 1)))
    read = read_log(log)
    assert len(read.records) == 1 and not read.ignored


def test_damaged_lines_are_ignored_wherever_they_are(task, log):
    """Whatever is in a line: it is reported once, and the records around it count."""
    line = line_of(measured(task, 1))
    damaged = [
        line[:40],
        "[" * 100_000,
        "\x00" * 100,
        "1e999",
        "null",
        changed(line, decided=float("inf")),
        changed(line, seconds="NaN"),
        changed(line, seconds=[1]),
        changed(line, target={"kind": [[1]]}),
        changed(line, target=[1]),
        changed(line, configuration=3),
        changed(line, configuration={"rows": [1]}),
        changed(line, configuration={"rows": {}}),
        changed(line, workload=[1]),
    ]
    log.write_bytes("\n".join([line, *damaged, line_of(measured(task, 2)), ""]).encode() + b"\xff\xfe\n")
    with pytest.warns(TuningWarning, match=f"{len(damaged) + 1} records ignored: ") as caught:
        assert chosen(task, log) is not None
    assert len(caught) == 1 and len(read_log(log).records) == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 0}, "1 of format 0, not 1"),
        ({"workload": {"type": "Conv9dWorkload"}}, "1 of workloads that this version does not know"),
        ({"seconds": -1.0}, "1 unreadable"),
    ],
)
def test_stale_records_are_ignored_with_one_warning(task, log, fields, reason):
    append(log, changed(line_of(measured(task, 1)), **fields))
    append(log, line_of(measured(task, 2, 3e-6)))
    with pytest.warns(TuningWarning, match=f"1 records ignored: {reason}") as caught:
        assert chosen(task, log) is None
    assert len(caught) == 1


@pytest.mark.parametrize("field, value", [("threads", 64), ("cpu", "z80"), ("features", ["avx"]), ("kind", "cuda")])
def test_records_of_other_targets_are_ignored(task, log, field, value):
    line = line_of(measured(task, 1))
    append(log, changed(line, target={**json.loads(line)["target"], field: value}))
    with pytest.warns(TuningWarning, match="1 of 1 records are for other targets"):
        assert chosen(task, log) is None


def test_records_of_other_kernels_and_spaces_are_ignored(task, log):
    line = line_of(measured(task, 1))
    append(log, changed(line, kernel="conv2d_of_old"))
    assert chosen(task, log) is None
    append(log, changed(line, configuration={"rows": 999, "columns": 1, "blocks": 1}))
    with pytest.warns(TuningWarning, match="tune again"):
        assert chosen(task, log) is None


def test_no_log(tmp_path, task):
    with pytest.raises(TuningError, match="cannot read"):
        read_log(tmp_path / "missing.jsonl")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\n\x00\n")
    with pytest.raises(TuningError, match="is not a tuning log"):
        read_log(tmp_path / "photo.jpg")
    with pytest.raises(TuningError, match="cannot write"):
        append(tmp_path / "no" / "folder.jsonl", "{}")


def test_builds_take_the_log(task, log):
    """The engine's kernel is that of the configuration, and its result the interpreter's."""
    module = qnn_ext.from_tflite(Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite")
    tasks = extract_from_program(module, task.target)
    assert tasks and all(item.layers and item.weight == len(item.layers) for item in tasks)
    for item in tasks:
        if len(space_of(item)) > 1:
            append(log, line_of(measured(item, len(space_of(item)) - 1)))
    with apply_history_best(log) as history:
        engine = qnn_ext.build(module, task.target)
    assert set(history.applied) == {item.name for item in tasks if len(space_of(item)) > 1}
    image = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
    np.testing.assert_array_equal(engine(image), qnn_ext.Interpreter(module)(image))


def test_keys_tell_threads_apart():
    assert small_task(SMALL, 1).key() != small_task(SMALL, 2).key()
