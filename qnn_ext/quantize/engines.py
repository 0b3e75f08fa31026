"""Engines of float modules. Inside `shared_engines`, modules that differ only in constants share one compiled program.

A search tries the same network with other weights, biases and ranges many times. Its constants then become inputs of
the program, which is compiled once and gets their values at each call. This user's cache of builds keeps it: of the
time that a small network takes to be quantized, compiling is most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import tvm_ffi
from tvm import IRModule, relax

from ..compiling.build import compile_module
from ..files.cache import Cache
from ..module import ByPosition, QnnModule, TensorSpec, in_model_order, run_by_sample
from ..op.base import constant_value
from ..passes.rewrite import Rebuild
from ..running.engine import Engine


class Runner(Protocol):
    """What runs a module: an Engine, or a shared program with its constants."""

    @property
    def num_threads(self) -> int: ...

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | list[np.ndarray]: ...

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]: ...

    def reset_state(self) -> None: ...


_cache: ContextVar[dict[int, list[tuple[IRModule, Engine]]] | None] = ContextVar("shared engines", default=None)


@contextmanager
def shared_engines() -> Iterator[None]:
    """A context in which `engine_of` compiles a module only if none with the same operators was compiled in it, or in
    the contexts around it."""
    known = _cache.get()
    token = _cache.set({} if known is None else known)
    try:
        yield
    finally:
        _cache.reset(token)


def engine_of(module: QnnModule, stepped: bool = False) -> Runner:
    """What runs a float module on this machine.

    stepped: whether a module with states is only run and reset, and done with before the next is: then it shares its
             program too. Otherwise it gets an engine of its own
    """
    if _cache.get() is None or (module.states and not stepped):
        return compile_module(module)
    return shared_engine_of(module)


def shared_engine_of(module: QnnModule) -> Shared:
    """What runs a module without states, or one that is stepped; inside `shared_engines`."""
    known = _cache.get()
    assert known is not None, "inside shared_engines"
    lifted, constants = _lifted(module)
    key = tvm_ffi.structural_hash(lifted.ir)
    for ir, engine in known.setdefault(key, []):
        if tvm_ffi.structural_equal(ir, lifted.ir):
            return Shared(engine, module, constants)
    engine = compile_module(lifted, cache=Cache.of_user())
    known[key].append((lifted.ir, engine))
    return Shared(engine, module, constants)


class Shared(ByPosition):
    """A program with the constants of one module."""

    def __init__(self, engine: Engine, module: QnnModule, constants: Mapping[Any, np.ndarray]) -> None:
        self._engine = engine
        self._module = module
        self._constants = constants

    @property
    def num_threads(self) -> int:
        return self._engine.num_threads

    def _run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        return list(self.run(inputs).values())

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """Outputs by name, as Engine.run."""
        values = [np.asarray(value) for value in in_model_order(inputs, self._module.inputs)]
        inputs, outputs = self._module.inputs, self._module.outputs
        found = run_by_sample(self._once, values, inputs, outputs)
        return {spec.name: value for spec, value in zip(outputs, found, strict=True)}

    def _once(self, values: list[np.ndarray]) -> list[np.ndarray]:
        outputs = self._engine(*values, *self._constants.values())  # arrays that fit are not checked one by one
        return outputs if isinstance(outputs, list) else [outputs]

    def knows(self, constants: Iterable[Any]) -> bool:
        """Whether these are constants whose values can be others: not those inside loops."""
        return all(known in self._constants for known in constants)

    def with_constants(self, values: Mapping[Any, np.ndarray]) -> Shared:
        """The same program with other values of some constants of the module, which `op.base.constant` made."""
        constants = {known: np.ascontiguousarray(values.get(known, value)) for known, value in self._constants.items()}
        return Shared(self._engine, self._module, constants)

    def reset_state(self) -> None:
        """States at their initial values."""
        self._engine.reset_state()


def _lifted(module: QnnModule) -> tuple[QnnModule, dict[Any, np.ndarray]]:
    """The module with its float32 constants, but for scalars, as further inputs, and their values, in this order."""
    new = Rebuild(module.ir["main"])
    found: dict[Any, relax.Var] = {}
    values: dict[Any, np.ndarray] = {}
    for binding in new.bindings:
        for operand in _operands(binding.value):
            array = None if isinstance(operand, relax.Var) else constant_value(operand)
            if array is not None and array.ndim and array.dtype == np.float32 and operand not in found:
                name = f"constant_{len(values)}"
                found[operand] = relax.Var(name, relax.TensorType(array.shape, "float32"))
                values[operand] = np.ascontiguousarray(array)
    count = len(module.inputs)
    with new.main([*new.function.params[:count], *found.values(), *new.function.params[count:]]):
        for binding in new.bindings:
            new.bind(binding.var, new.substituted(_with_variables(binding.value, found)))
    specs = tuple(
        TensorSpec(str(var.name), value.shape, "float32")
        for var, value in zip(found.values(), values.values(), strict=True)
    )
    inputs = tuple(replace(spec, dynamic_batch=False) for spec in module.inputs)
    outputs = tuple(replace(spec, dynamic_batch=False) for spec in module.outputs)
    return replace(module, ir=new.module(), inputs=(*inputs, *specs), outputs=outputs), values


def _operands(value: Any) -> Iterator[Any]:
    for arg in value.args if isinstance(value, relax.Call) else ():
        yield from arg.fields if isinstance(arg, relax.Tuple) else (arg,)


def _with_variables(value: Any, found: Mapping[Any, relax.Var]) -> Any:
    """`value` with constants replaced."""
    if not isinstance(value, relax.Call):
        return value

    def changed(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([changed(field) for field in arg.fields])
        return arg if isinstance(arg, relax.Var) else found.get(arg, arg)

    return relax.Call(value.op, [changed(arg) for arg in value.args], value.attrs, value.ty_args)
