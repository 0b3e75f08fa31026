"""Makes the library of a C library's folder, as its Makefile would, where a C compiler is at hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArtifactError
from ..processes.children import run
from ..targets.linking import cross_compiler


def archive(
    folder: Path,
    name: str,
    architecture: str,
    objects: Sequence[str],
    shared: bool,
    math: bool,
    options: Sequence[str] = (),
) -> tuple[list[str], str]:
    """Compile `name.c`, with these options, and put it and the objects into `libname.a`, and `libname.so` if that is
    wanted. Returns the names of what was made, and why there is no library, empty if there is.

    Raises ArtifactError if a shared library is wanted and cannot be made, or if the compiler refuses the sources.
    """
    for suffix in (".a", ".so"):
        (folder / f"lib{name}{suffix}").unlink(missing_ok=True)  # of an earlier export
    try:
        compiler = compiler_for(architecture)
        archiver = _archiver(compiler)
    except ArtifactError as error:
        if shared:
            raise
        return [], str(error)
    _run([*compiler, "-std=gnu11", "-O2", *options, "-c", "-o", f"{name}.o", f"{name}.c"], folder)
    _run([*archiver, "rcs", f"lib{name}.a", f"{name}.o", *objects], folder)
    made = [f"{name}.o", f"lib{name}.a"]
    if shared:
        linked = [f"-Wl,--version-script={name}.map", "-Wl,--gc-sections", "-s", *(["-lm"] if math else [])]
        _run([*compiler, "-shared", "-o", f"lib{name}.so", f"{name}.o", *objects, *linked], folder)
        made.append(f"lib{name}.so")
    return made, ""


def compiler_for(architecture: str) -> list[str]:
    """The command of a C compiler. Raises ArtifactError if there is none."""
    command = cross_compiler(architecture)
    if command is not None:
        c = command[0].removesuffix("++") + ("cc" if command[0].endswith("g++") else "")
        return [c, *command[1:]] if shutil.which(c) else command
    found = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if found is None:
        raise ArtifactError("a C library needs a C compiler (gcc or clang) on PATH")
    return [found]


def _archiver(compiler: Sequence[str]) -> list[str]:
    """The command that makes archives of what a compiler compiles. Raises ArtifactError if there is none."""
    program = Path(compiler[0]).name
    if program == "zig":
        return [compiler[0], "ar"]
    if "ziglang" in compiler:
        return [*compiler[: compiler.index("ziglang") + 1], "ar"]
    prefix = program[: program.rfind("-") + 1] if program.endswith(("-gcc", "-g++")) else ""
    found = next(filter(None, map(shutil.which, (f"{prefix}ar", "llvm-ar"))), None)
    if found is None:
        raise ArtifactError(f"a C library needs {prefix}ar, of GNU's binutils, on PATH")
    return [found]


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = run(command, cwd=folder)
    except OSError as error:
        raise ArtifactError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode:
        raise ArtifactError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
