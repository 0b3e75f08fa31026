"""Links compiled models into shared libraries, for this machine's architecture and for others.

A model's library needs at most the C library, so any cross compiler for the architecture will do.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ArtifactError
from ..processes.children import run
from ..tvm_runtime import quiet
from .architectures import host_architecture
from .elf import Object, is_object
from .families import backend_of_architecture
from .frames import CodeSize, code_size


def export_library(executable: Any, path: str, architecture: str) -> CodeSize | None:
    """Link a TVM executable, built for `architecture`, into a shared library without symbols and debug information.
    Returns what its code takes; None if TVM links it, or objects are not ELF.

    Raises ArtifactError for microcontrollers, which load no libraries, if there is no linker, or if that fails; what
    goes wrong in TVM before anything is linked is raised as it is.
    """
    if not backend_of_architecture(architecture).concurrent:
        raise ArtifactError(
            f"{architecture}: a .qnn file's code is a shared library, which needs an operating system: make a C "
            "library with export_c, or with --emit c -o DIR"
        )
    command = cross_compiler(architecture)
    linker = command or _own_compiler()
    ours = None if linker is None else _Linker(linker)
    compiler = {} if ours is None else {"fcompile": ours}
    try:
        with quiet():
            executable.export_library(path, options=["-s"], **compiler)
    except Exception as error:
        if ours is not None and not isinstance(error, _LinkerFailed):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        if command is None:
            raise ArtifactError(f"linking the model needs a C compiler (gcc or clang) on PATH: {reason}") from error
        raise ArtifactError(
            f"linking for {architecture} with {shlex.join(command)!r} failed: {reason}; {_advice(architecture)}"
        ) from error
    return None if ours is None else ours.size


def _own_compiler() -> list[str] | None:
    """The compiler that TVM would link with: TVM itself, when interrupted, waits for it instead of ending it. None if
    TVM passes it other options than `_Linker` does."""
    if not sys.platform.startswith("linux"):
        return None
    from tvm.support.cc import get_cc  # linking comes after compiling, so `tvm` is already imported

    found = get_cc()
    return None if found is None else [found]


def environment_variable(architecture: str) -> str:
    """The environment variable for an architecture's linker: QNN_EXT_CXX_AARCH64."""
    return f"QNN_EXT_CXX_{architecture.upper()}"


def cross_compiler(architecture: str) -> list[str] | None:
    """The command that links for an architecture; None for this machine's own, where TVM finds the compiler.

    The first available of: the command in QNN_EXT_CXX_<ARCHITECTURE>; GNU's cross compiler; zig, as a program or as the
    Python package ziglang; clang. Raises ArtifactError if there is none.
    """
    if given := os.environ.get(environment_variable(architecture)):
        return shlex.split(given)
    if architecture == host_architecture():
        return None
    triple = backend_of_architecture(architecture).gnu
    if not triple:
        raise ArtifactError(
            f"no linker is known for {architecture}: set one in the environment variable "
            f"{environment_variable(architecture)}"
        )
    for name in ("g++", "gcc"):
        if found := shutil.which(f"{triple}-{name}"):
            return [found]
    if found := shutil.which("zig"):
        return [found, "cc", "-target", triple]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", triple]
    if (found := shutil.which("clang++")) and shutil.which("ld.lld"):
        return [found, f"--target={triple}", "-fuse-ld=lld"]
    raise ArtifactError(f"linking for {architecture} needs a cross compiler: {_advice(architecture)}")


def _advice(architecture: str) -> str:
    package = f"g++-{backend_of_architecture(architecture).gnu or architecture}".replace("_", "-")
    return (
        f"install {package} (apt-get install {package}) or zig (pip install ziglang), or set one in "
        f"the environment variable {environment_variable(architecture)}"
    )


class _LinkerFailed(Exception):
    """The linker cannot be run, or reports an error."""


class _Linker:
    """Called by TVM with its object files, instead of the compiler that TVM would choose."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.size: CodeSize | None = None

    def __call__(self, output: str, objects: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
        command = [*self._command, "-shared", "-fPIC", "-o", output, *options, *objects]
        try:
            done = run(command)
        except OSError as error:
            raise _LinkerFailed(error.strerror or str(error)) from error
        if done.returncode:
            raise _LinkerFailed(done.stderr or f"exit code {done.returncode}")
        contents = [Path(file).read_bytes() for file in objects if file.endswith(".o")]
        if contents and all(is_object(content) for content in contents):
            self.size = code_size([Object(content) for content in contents], _ENTRIES)


_ENTRIES = ("__tvm_ffi_program", "share")
"""The functions of a model that is one, outside of its kernels."""
