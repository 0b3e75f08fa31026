"""Kernels as private functions on raw pointers, split at barriers: after each parallel loop.

Kernels are first lowered to flat loops. A parallel loop becomes a serial loop over one task's share; code between such
loops runs only on the first task. Buffers shared between phases move to the program's workspace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...numerics.annotations import NUMBERS, UNALIGNED, without_names
from ...targets.features import backend_of
from ...topi_int8.threads import in_a_row, serial_body
from ..codegen import PIPELINE
from .cost import nanoseconds
from .storage import ALIGNMENT, aligned

IMPORT = "pragma_import_llvm"
"""The attribute around a kernel's body that adds the LLVM functions it calls."""


@dataclass(frozen=True)
class Phase:
    """A part of a kernel as a function.

    pointers:   which of the kernel's pointers it takes: those of the kernel's parameters, then those of scratch buffers
    parallel:   whether it also takes (part, part count, task), and does only that part of its work, with the scratch
                buffers of that task
    cost:       estimated nanoseconds on one core
    iterations: of its parallel loop: the most parts that have any work; 0 if that is not known
    """

    function: tirx.PrimFunc
    pointers: tuple[int, ...]
    parallel: bool
    cost: float
    iterations: int = 0


@dataclass(frozen=True)
class Kernel:
    """A kernel's phases, in order; scratch: the size in bytes of each additional buffer that they need."""

    phases: tuple[Phase, ...]
    scratch: tuple[int, ...]

    def saved(self, tasks: int, meeting: float) -> float:
        """Estimated nanoseconds saved by running it on `tasks` tasks, if a barrier takes `meeting` nanoseconds."""
        return sum(phase.cost * (1 - 1 / tasks) - meeting for phase in self.phases if phase.parallel)


def lower_kernels(functions: Mapping[ir.GlobalVar, tirx.PrimFunc], target: Target) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """The functions as flat loops over pointers, by the same lowering as for every kernel."""
    mod = IRModule({var: _on_pointers(function) for var, function in functions.items()})
    pipeline = tirx.get_tir_pipeline(PIPELINE)[0]
    with target:
        mod = pipeline(tirx.transform.BindTarget(target.with_host(target))(mod))
    by_name = {var.name_hint: function for var, function in mod.functions_items()}
    return {var: by_name[var.name_hint] for var in functions}


class Lowered:
    """Kernels lowered for a target, each computation once: variants are lowered to decide between them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tvm_ffi.StructuralKey, tirx.PrimFunc] = {}

    def of(self, functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, tirx.PrimFunc]:
        """The functions as from `lower_kernels`, but for names."""
        keys = {var: computation(function.without_attr(UNALIGNED)) for var, function in functions.items()}
        new: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
        for var, key in keys.items():
            if key not in self._known:
                new.setdefault(key, var)
        lowered = lower_kernels({var: functions[var] for var in new.values()}, self._target) if new else {}
        self._known.update((key, lowered[var].without_attr(UNALIGNED)) for key, var in new.items())
        return {var: _alike(self._known[key], functions[var]) for var, key in keys.items()}


def _alike(lowered: tirx.PrimFunc, function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered function that may get unaligned memory if `function` may, which lowering does not depend on."""
    return lowered.with_attr(UNALIGNED, True) if function.attrs and UNALIGNED in function.attrs else lowered


def computation(function: tirx.PrimFunc) -> tvm_ffi.StructuralKey:
    """What a kernel computes: equal for functions that differ only in names."""
    return tvm_ffi.StructuralKey(without_names(function))  # type: ignore[call-arg]


def _on_pointers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with plain pointers as parameters, at which it declares its buffers."""
    pointers = [pointer_var(param.name, str(param.ty.dtype)) for param in function.params]
    declared = [tirx.DeclBuffer(b, data=p) for b, p in zip(function.params, pointers, strict=True)]
    body: tirx.Stmt = tirx.SeqStmt([*declared, function.body])
    return tirx.PrimFunc(pointers, body, function.ret_type, function.attrs).without_attr("global_symbol")


def pointer_var(name: str, dtype: str) -> tirx.Var:
    """A variable for the address of elements of this dtype."""
    return tirx.Var(name, ir.PointerType(ir.PrimType(dtype)))


def split(function: tirx.PrimFunc, tasks: int, meeting: float) -> Kernel:
    """The phases of a lowered kernel for up to `tasks` tasks; for one, nothing is parallel."""
    return _Splitter(function, tasks, meeting).kernel()


@dataclass
class _Group:
    """Statements that become one phase, and the estimated nanoseconds that they take on one core."""

    statements: list[tirx.Stmt]
    parallel: bool
    cost: float


class _Splitter:
    def __init__(self, function: tirx.PrimFunc, tasks: int, meeting: float) -> None:
        self._function = function
        self._most_tasks, self._meeting = tasks, meeting
        self._private: list[tuple[tirx.Var, int]] = []  # for each large buffer inside a loop: its memory, bytes of all
        self._task = tirx.Var("task", "int32")
        self._stack_bytes = backend_of(function.attrs["target"]).stack_bytes
        self._declared: dict[Any, tirx.DeclBuffer] = {}
        self._allocated: dict[Any, tirx.AllocBuffer] = {}
        self._bound: dict[Any, tirx.Bind] = {}
        self._statements: list[tirx.Stmt] = []
        self._imports: list[tirx.AttrStmt] = []  # of LLVM functions, for all statements
        self._flatten(function.body)

    def _flatten(self, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for item in stmt.seq:
                self._flatten(item)
        elif isinstance(stmt, tirx.DeclBuffer):
            self._declared[stmt.buffer] = stmt
        elif isinstance(stmt, tirx.AllocBuffer):
            self._allocated[stmt.buffer] = stmt
        elif isinstance(stmt, tirx.Bind):
            self._bound[stmt.var] = stmt
        elif isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == IMPORT:
            self._imports.append(stmt)
            self._flatten(stmt.body)
        else:
            self._statements.append(stmt)

    def kernel(self) -> Kernel:
        groups = self._groups()
        used = [self._used(group.statements) for group in groups]
        shared = [
            buffer
            for buffer, alloc in self._allocated.items()
            if sum(buffer in names for names in used) > 1
            or _bytes(alloc) > self._stack_bytes
            or any(group.parallel and buffer in names for names, group in zip(used, groups, strict=True))
        ]
        moved = [
            replace(group, statements=[self._move_large(stmt, group.parallel) for stmt in group.statements])
            for group in groups
        ]
        phases = [self._phase(group, self._used(group.statements), shared) for group in moved]
        sizes = [_bytes(self._allocated[buffer]) for buffer in shared] + [size for _, size in self._private]
        return Kernel(tuple(phases), tuple(sizes))

    def _move_large(self, stmt: tirx.Stmt, parallel: bool) -> tirx.Stmt:
        """`stmt` with the large buffers in its loops moved to the workspace, with a separate copy for each task."""

        def move(alloc: tirx.AllocBuffer) -> tirx.Stmt:
            size = _bytes(alloc)
            if size <= self._stack_bytes:
                return alloc
            size = aligned(size)
            pointer = pointer_var(f"{alloc.buffer.name}_p", "uint8")
            self._private.append((pointer, size * (self._most_tasks if parallel else 1)))
            offset = tirx.Cast("int64", self._task) * size if parallel else 0
            return tirx.DeclBuffer(alloc.buffer, data=tirx.handle_add_byte_offset(pointer, offset))

        return tvm_ffi.structural_map(stmt, (tirx.AllocBuffer, move))

    def _groups(self) -> list[_Group]:
        """Consecutive statements: each parallel loop is a group of its own, serial statements are together."""
        costs = [nanoseconds(stmt) for stmt in self._statements]
        if any(not self._is_constant(binding.value) for binding in self._bound.values()):
            return [_Group([serial_body(stmt) for stmt in self._statements], False, sum(costs))]  # one binds a value
        groups: list[_Group] = []
        for stmt, cost in zip(self._statements, costs, strict=True):
            parallel = self._worth_sharing(stmt, cost)
            if parallel or not groups or groups[-1].parallel:
                groups.append(_Group([], parallel, 0.0))
            groups[-1].statements.append(stmt if parallel else serial_body(stmt))
            groups[-1].cost += cost
        return groups

    def _is_constant(self, value: Any) -> bool:
        """Whether a value reads no memory but the kernel's numbers."""
        numbers = self._function.params[0] if NUMBERS in (self._function.attrs or {}) else None
        found: list[Any] = []
        tvm_ffi.structural_walk(value, (ir.TensorLoad, lambda load: found.append(load.source)))
        return all(buffer in self._declared and self._declared[buffer].data.same_as(numbers) for buffer in found)

    def _worth_sharing(self, stmt: tirx.Stmt, cost: float) -> bool:
        """Whether a parallel loop saves more than the barrier after it costs."""
        parallel = isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL
        return parallel and cost * (1 - 1 / self._most_tasks) > self._meeting

    def _used(self, statements: Iterable[tirx.Stmt]) -> set[Any]:
        """The variables that statements use, including those that their declarations and bindings use in turn."""
        found: set[Any] = set()
        pending = [var for stmt in statements for var in _variables(stmt)]
        while pending:
            var = pending.pop()
            if var in found:
                continue
            found.add(var)
            if var in self._declared:
                pending += _variables(self._declared[var].data)
            if var in self._bound:
                pending += _variables(self._bound[var].value)
        return found

    def _phase(self, group: _Group, used: set[Any], shared: Sequence[Any]) -> Phase:
        statements = group.statements
        scratch = {buffer: pointer_var(f"{buffer.name}_p", str(buffer.ty.dtype)) for buffer in shared if buffer in used}
        prelude: list[tirx.Stmt] = [tirx.DeclBuffer(buffer, data=pointer) for buffer, pointer in scratch.items()]
        prelude += [alloc for buffer, alloc in self._allocated.items() if buffer in used and buffer not in scratch]
        prelude += [declared for buffer, declared in self._declared.items() if buffer in used]
        prelude += [bound for var, bound in self._bound.items() if var in used]
        private = [pointer for pointer, _ in self._private]
        everything = [*self._function.params, *(scratch.get(buffer) for buffer in shared), *private]
        indices = tuple(i for i, var in enumerate(everything) if var in used or var in scratch.values())
        pointers = [everything[i] for i in indices]
        counts: list[tirx.Var] = []
        iterations = 0
        if group.parallel:
            (loop,) = statements
            iterations = int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 0
            part, parts = (tirx.Var(name, "int32") for name in ("part", "parts"))
            counts = [part, parts, self._task]
            statements = [share(loop, part, parts)]
        function = self._as_function([*prelude, *statements], pointers, counts)
        return Phase(function, indices, group.parallel, group.cost, iterations)

    def _as_function(
        self, statements: list[tirx.Stmt], pointers: list[tirx.Var], counts: list[tirx.Var]
    ) -> tirx.PrimFunc:
        body: tirx.Stmt = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
        for imported in self._imports:
            body = tirx.AttrStmt(imported.node, imported.attr_key, imported.value, body)
        # A compute scope becomes a separate function that LLVM does not inline: the program stays small, and its
        # pointers are known not to alias.
        body = tirx.AttrStmt(0, "compute_scope", "kernel", body)
        attributes = self._function.attrs
        for pointer in pointers:
            unaligned = attributes and UNALIGNED in attributes and pointer in self._function.params
            alignment = tvm_ffi.dtype(str(pointer.ty.element_type)).itemsize if unaligned else ALIGNMENT
            body = tirx.AttrStmt(pointer, "storage_alignment", alignment, body)
        body = tirx.SeqStmt([body, tirx.Return(tirx.IntImm("int32", 0))])
        return tirx.PrimFunc([*pointers, *counts], body, ir.PrimType("int32"), self._function.attrs)


def share(loop: tirx.For, part: tirx.Var, parts: tirx.Var) -> tirx.Stmt:
    """A part of a parallel loop: consecutive iterations, in parts whose sizes differ by at most one."""
    dtype = str(loop.loop_var.ty.dtype)
    extent = tirx.Cast("int64", loop.extent)
    begin = tirx.Cast(dtype, tirx.truncdiv(extent * tirx.Cast("int64", part), tirx.Cast("int64", parts)))
    end = tirx.Cast(dtype, tirx.truncdiv(extent * (tirx.Cast("int64", part) + 1), tirx.Cast("int64", parts)))
    return serial_body(in_a_row(loop, loop.min + begin, end - begin))


def _variables(node: Any) -> list[Any]:
    """The variables in a statement or expression, once each: told apart by their hashes, which are their addresses, as
    comparing variables is slow."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (tirx.Var, found.append))
    return list({hash(var): var for var in found}.values())


def _bytes(alloc: tirx.AllocBuffer) -> int:
    ty = alloc.buffer.ty
    return math.prod(int(dim) for dim in ty.shape) * tvm_ffi.dtype(str(ty.dtype)).itemsize
