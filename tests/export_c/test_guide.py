"""The commands and the programs of docs/guides/c.md, as a reader would run them."""

import re
import sys
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.targets.architectures import host_architecture
from tests.export_c.libraries import checked, compiler

ROOT = Path(qnn_ext.__file__).parents[1]
GUIDE = (ROOT / "docs" / "guides" / "c.md").read_text()

pytestmark = pytest.mark.skipif(host_architecture() != "x86_64", reason="the guide compiles for x86-64")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_commands_and_programs(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "qnn-ext").write_text(f'#!/bin/sh\nexec {sys.executable} -m qnn_ext "$@"\n')
    (tools / "qnn-ext").chmod(0o755)
    (tmp_path / "qnn_ext").symlink_to(ROOT / "qnn_ext")
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    (commands,) = blocks("sh")
    checked("sh", "-e", "-c", commands, folder=tmp_path)
    assert (tmp_path / "scores.bin").stat().st_size == 10
    call, parallel = blocks("c")
    (tmp_path / "call.c").write_text(call)
    (tmp_path / "parallel.c").write_text(
        f"{parallel}\nvoid (*used)(void *, int, void (*)(void *, int), void *) = parallel_for;\n"
    )
    options = ("-std=c11", "-Wall", "-Werror", f"-I{tmp_path / 'digits'}", "-c", "-o", tmp_path / "object.o")
    checked(compiler("x86_64"), *options, tmp_path / "call.c")
    checked(compiler("x86_64"), *options, "-fopenmp", "-Wno-unused-parameter", tmp_path / "parallel.c")
