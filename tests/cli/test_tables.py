"""Tables of any width: `inspect` and `bench --profile` fit COLUMNS, and print everything where programs read."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import qnn_ext
from qnn_ext.cli.tables import Column, print_table, shortened
from qnn_ext.running.timing import time_text

MODEL = Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "m.qnn"
    qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1).save(path)
    return path


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", ["inspect", "inspect MODEL", "bench --profile --repeat 2"])
def test_width(cli, compiled, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    name, *options = command.split()
    monkeypatch.chdir(compiled.parent)  # the title is as long as the path
    model = MODEL if "MODEL" in options else compiled.name
    code, out, _ = cli(name, model, *(option for option in options if option != "MODEL"))
    assert code == 0
    table = [line for line in out.splitlines() if line[:1] in "┏┡│└"]
    assert name == "bench" or columns < 80 or "zero point" in out
    assert table and max(map(len, table)) <= columns
    if model != MODEL:
        kernels = out[out.rindex("┏") :].splitlines()
        rows = [line for line in kernels if line.startswith("│")]
        assert len(rows) == len(qnn_ext.load(compiled).kernels)  # one line each
        assert all(row.strip("│ ") for row in rows) and any("cnn_stem" in row for row in rows)
        assert columns < 80 or len({row.split("│")[1] for row in rows}) == len(rows)  # the layers are told apart


@pytest.mark.parametrize("command", ["inspect", "bench --profile --repeat 1"])
def test_every_layer_is_found_where_programs_read(cli, compiled, monkeypatch, command):
    monkeypatch.delenv("COLUMNS", raising=False)
    name, *options = command.split()
    out = cli(name, compiled, *options)[1]
    kernels = qnn_ext.load(compiled).kernels
    fused = [kernel for kernel in kernels if len(kernel.sources) > 1]
    assert fused  # the sum that the projection before it computes
    lines = out.splitlines()
    for kernel in kernels:
        for source in kernel.sources:
            assert any(source in line and kernel.implementation in line for line in lines), source


def test_shortened():
    assert shortened("abcdefgh", 8) == "abcdefgh"
    assert [shortened("abcdefgh", width) for width in (7, 6, 2, 1)] == ["abcd…gh", "abc…gh", "a…", "…"]


def test_names_of_fused_layers_are_told_apart(monkeypatch):
    """Where names do not fit, they lose the network's, and all but the first layer that TFLite fused."""
    names = [f"MobilenetV2_conv_{index}_depthwise_MobilenetV2_conv_{index}_BatchNorm_Fold_bias" for index in range(5)]
    names.append("MobilenetV2_conv_5_project_MobilenetV2_conv_5_bias + MobilenetV2_conv_5_add")
    console = Console(record=True, width=44, file=io.StringIO())
    monkeypatch.setenv("COLUMNS", "44")
    print_table(console, [Column("layer"), Column("time", number=True)], [(name, "1.00 µs") for name in names])
    text = console.export_text()
    assert all(f"│ conv_{index}_depthwise " in text for index in range(5))
    assert "│ conv_5_project + conv_5_add" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.234e-10, "0.123 ns"),
        (4.56e-8, "45.6 ns"),
        (7.0749e-7, "707 ns"),
        (9.996e-7, "1.00 µs"),
        (1.2345e-4, "123 µs"),
        (0.0456, "45.6 ms"),
        (1.0, "1.00 s"),
        (75.04, "75.0 s"),
        (1234.0, "1234 s"),
    ],
)
def test_times_have_three_digits(seconds, text):
    assert time_text(seconds) == text
    assert re.fullmatch(r"[\d.]+ (ns|µs|ms|s)", time_text(seconds * 3))
