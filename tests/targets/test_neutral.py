"""Code that serves every target asks the target's backend and names none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.targets.cpus import ARM_CPUS, CPU_FAMILIES
from qnn_ext.targets.families import KINDS

PACKAGE = Path(qnn_ext.__file__).parent
ROOMS = [
    *("autotune", "cli", "compiling", "numerics", "op", "passes", "quantize", "running", "topi_int8/cpu"),
    "topi_int8/generic",
]
OWN = re.compile(r"gpu|cuda")  # in a module's name: it is a target's own

ARCHITECTURES = {"x86", "x86_64", "i686", "aarch64", "arm64", "arm", "armv7", "riscv64", "nvptx"}
NAMES = {*KINDS, *ARM_CPUS, *CPU_FAMILIES, *ARCHITECTURES} - {"llvm"}
FAMILIES = {"X86", "I686", "AARCH64", "ARM32", "RISCV64", "CUDA"}
QUESTION = re.compile(r"(is|on)_(x86|arm|arm32|aarch64|cuda|gpu)")


def targets_named(source: str) -> list[str]:
    """The places where a module compares with a target's name, asks `is_arm`, or takes a target's own backend."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Compare, ast.Subscript, ast.Dict, ast.Set)):
            named = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} & NAMES
            found += [f"line {node.lineno}: compares with {name!r}" for name in sorted(map(str, named))]
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if QUESTION.fullmatch(name):
            found.append(f"line {node.lineno}: asks {name}")
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("families"):
            found += [f"line {node.lineno}: imports {alias.name}" for alias in node.names if alias.name in FAMILIES]
        if isinstance(node, ast.Constant) and node.value == "num-cores":
            found.append(f"line {node.lineno}: parses num-cores, which `threads_of` does")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_target_is_named(room):
    modules = [path for path in (PACKAGE / room).rglob("*.py") if not OWN.search(path.name)]
    assert modules
    found = {str(path.relative_to(PACKAGE)): targets_named(path.read_text()) for path in modules}
    assert {path: places for path, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "source",
    [
        'if target.kind.name == "cuda": pass',
        'if target["kind"] in ("llvm", "cuda"): pass',
        'triple = {"aarch64": 1}[architecture]',
        "if is_arm(target): pass",
        "from ...targets.families import X86",
        'threads = int(target.attrs.get("num-cores", 1))',
    ],
)
def test_names_are_found(source):
    assert len(targets_named(source)) >= 1
