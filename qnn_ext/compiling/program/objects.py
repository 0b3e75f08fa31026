"""The kernels of a program as objects of their own: compiled side by side, reused from the cache, linked at the end.

An object's content depends on nothing but its kernels: their names and the grouping come from what they compute. So
builds are the same on any number of cores, with or without a cache, and models with equal layers share objects.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.transform import PassContext
from tvm.support.cc import create_shared
from tvm.target import Target
from tvm.tirx.build import codegen_build

from ...files.cache import Cache
from ...numerics.annotations import without_names
from ...processes.cores import default_threads
from ..watch import progressed, timed

WORTHWHILE = 16
"""Kernels from which on a program is divided: each object costs LLVM some 20 ms."""

_MOST, _OFTEN = 12, 6  # kernels in an object; an object ends after one of `_OFTEN` kernels on average

Functions = Mapping[ir.GlobalVar, tirx.PrimFunc]


@dataclass(frozen=True)
class Kept:
    """Where objects are kept, and how they are made.

    version: of all that compiles, a part of their keys
    jobs:    threads that compile; None: one for each core
    """

    cache: Cache
    version: str
    jobs: int | None = None


class DividedProgram:
    """A program whose kernels are compiled when it is linked: what `tvm.compile` returns, as far as engines use it.

    kernels:  those functions of the program that the others call
    pipeline: of TVM, which lowers both
    """

    def __init__(self, program: IRModule, kernels: Functions, target: Target, pipeline: str, kept: Kept) -> None:
        self._program, self._kernels = program, kernels
        self._target, self._pipeline = target, pipeline
        self._kept = kept

    @cached_property
    def _whole(self) -> tvm.runtime.Executable:
        """The program in one piece."""
        return tvm.compile(self._program, self._target, tir_pipeline=self._pipeline)

    @property
    def mod(self) -> Any:
        """The module to inspect."""
        return self._whole.mod

    def jit(self) -> Any:
        """The module to run where there is no linker."""
        return self._whole.jit()

    def export_library(self, path: str, fcompile: Callable[..., None] = create_shared, **options: Any) -> None:
        """Link a shared library, as TVM's `Executable.export_library` does."""
        timed("machine code", lambda: self._linked(path, fcompile, **options))

    def _linked(self, path: str, fcompile: Callable[..., None], **options: Any) -> None:
        workers = ThreadPoolExecutor(self._kept.jobs or default_threads())  # TVM and LLVM hold no lock, nor Python's
        try:
            functions = self._named(workers)
            symbols = {var: str(function.attrs["global_symbol"]) for var, function in functions.items()}
            unique = {str(function.attrs["global_symbol"]): function for function in functions.values()}
            with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
                rest = Path(folder) / "program.o"
                main = workers.submit(self._write_main, rest, symbols, PassContext.current())
                groups = list(_groups(unique))
                contents = workers.map(self._object, groups)
                objects = [Path(folder) / f"kernels{index}.o" for index in range(len(groups))]
                for index, (file, content) in enumerate(zip(objects, contents, strict=True)):
                    file.write_bytes(content)
                    progressed((index + 1) / len(objects))
                main.result()
                fcompile(path, [*map(str, objects), str(rest)], **options)
        finally:
            workers.shutdown(cancel_futures=True)

    def _write_main(self, path: Path, symbols: Mapping[ir.GlobalVar, str], context: PassContext) -> None:
        """Write the object of the program without its kernels, compiled in another thread."""
        with context:
            compiled = tvm.compile(self._main(symbols), self._target, tir_pipeline=self._pipeline)
        compiled.mod.write_to_file(str(path), "o")

    def _main(self, symbols: Mapping[ir.GlobalVar, str]) -> IRModule:
        """The program without its kernels, which it calls by their symbols."""

        def outside(call: ir.Call) -> ir.Expr:
            if isinstance(call.op, ir.GlobalVar) and call.op in symbols:
                return tirx.call_extern("int32", symbols[call.op], *call.args)
            return call

        rest = {var: function for var, function in self._program.functions_items() if var not in self._kernels}
        mapped = {var: f.with_body(tvm_ffi.structural_map(f.body, (ir.Call, outside))) for var, f in rest.items()}
        return IRModule(mapped, attrs=self._program.attrs)

    def _named(self, workers: Executor) -> dict[ir.GlobalVar, tirx.PrimFunc]:
        """The lowered kernels, each under a symbol made of what it computes."""
        passes, finish, _ = tirx.get_tir_pipeline(self._pipeline)
        with self._target:
            lowered = finish()(passes(IRModule(dict(self._kernels))))
        by_name = {var.name_hint: function for var, function in lowered.functions_items()}
        named = workers.map(_named, [by_name[var.name_hint] for var in self._kernels])
        return dict(zip(self._kernels, named, strict=True))

    def _object(self, functions: Mapping[str, tirx.PrimFunc]) -> bytes:
        """The object of some kernels."""
        key = hashlib.sha256("\n".join([self._kept.version, str(self._target), *functions]).encode()).hexdigest()
        if (kept := self._kept.cache.get(key)) is not None:
            return bytes(kept)
        module = IRModule({ir.GlobalVar(symbol): function for symbol, function in functions.items()})
        with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
            path = Path(folder) / "kernels.o"
            codegen_build(module, self._target).write_to_file(str(path), "o")
            content = path.read_bytes()
        self._kept.cache.put(key, content)
        return content


def _named(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with names that say nothing of the model: the digest of its code, and numbers for its variables."""
    names: dict[Any, tirx.Var] = {}

    def renamed(var: tirx.Var) -> tirx.Var:
        return names.setdefault(var, tirx.Var(f"v{len(names)}", var.ty))

    function = tvm_ffi.structural_map(without_names(function), (tirx.Var, renamed))
    digest = hashlib.sha256(tvm.ir.save_json(function).encode()).hexdigest()
    return function.with_attr("global_symbol", f"kernel_{digest}")


def _groups(functions: Mapping[str, tirx.PrimFunc]) -> Iterator[dict[str, tirx.PrimFunc]]:
    """Consecutive kernels for one object each. Where a group ends depends on its kernels alone, so that groups are the
    same before and after a layer that was changed."""
    group: dict[str, tirx.PrimFunc] = {}
    for symbol, function in functions.items():
        group[symbol] = function
        if len(group) == _MOST or int(symbol[-8:], 16) % _OFTEN == 0:
            yield group
            group = {}
    if group:
        yield group
