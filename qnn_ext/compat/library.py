"""What relay.build returns, and the executors that run it: graph_executor, create_executor, the virtual machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.runtime import load_module as load_tvm_module

from ..building import build as build_engine
from ..errors import ArtifactError, InputError
from ..module import QnnModule, TensorSpec
from ..running.engine import Engine
from ..running.engine import load as load_engine
from .absent import refuse
from .arrays import NDArray, array_of
from .expressions import Any_, Expr, Function, as_expr, free_vars
from .lowering import lower
from .modules import IRModule, module_of
from .targets import compute_dtype, resolved


class Library:
    """A built model: `relay.build`'s result, also as (graph_json, lib, params), and what `load_module` returns.

    engine: the model for qnn_ext's own API; a RemoteEngine if it runs on another machine
    """

    def __init__(self, engine: Any, module: QnnModule | None = None, name: str = "default") -> None:
        self.engine, self.libmod_name = engine, name
        self._module = module

    # ---- as relay.build returned it ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return iter((self.graph_json, self, self.params))

    def __getitem__(self, name: str) -> Callable[..., Library]:
        """lib["default"]: takes the devices, and returns what a GraphModule takes."""
        if name not in (self.libmod_name, "default"):
            raise AttributeError(f"the library has no function {name!r}; a built model is {self.libmod_name!r}")
        return lambda *devices: self

    @property
    def graph_json(self) -> str:
        """The interface of the model: the graph itself is in the library."""
        nodes = [{"op": "null", "name": spec.name} for spec in self.engine.inputs]
        outputs = [{"name": spec.name, "shape": spec.shape, "dtype": spec.dtype} for spec in self.engine.outputs]
        return json.dumps({"nodes": nodes, "outputs": outputs, "format": "qnn_ext"})

    params: Mapping[str, NDArray] = {}
    """Empty: weights are in the library."""

    def get_params(self) -> dict[str, NDArray]:
        return {}

    def get_graph_json(self) -> str:
        return self.graph_json

    get_executor_config = get_graph_json

    def get_lib(self) -> Library:
        return self

    @property
    def lib(self) -> Library:
        return self

    @property
    def module(self) -> Library:
        return self

    @property
    def ir_mod(self) -> IRModule:
        if self._module is None:
            raise ArtifactError("a loaded library holds no module: build the model again from its source")
        return IRModule.from_model(self._module)

    @property
    def imported_modules(self) -> list[Any]:
        return []

    @property
    def type_key(self) -> str:
        return "GraphExecutorFactory"

    def get_source(self, fmt: str = "") -> str:
        """The program: "ll", "asm", "cuda", "ptx", or TVMScript."""
        return self.engine.source(fmt or "tir")

    def export_library(
        self,
        file_name: str | os.PathLike,
        fcompile: Any = None,
        addons: Any = None,
        workspace_dir: Any = None,
        **_: Any,
    ) -> str:
        """Write the model into one file, under whatever name; `load_module` reads it. Raises ArtifactError."""
        folder = Path(file_name).resolve().parent
        with tempfile.TemporaryDirectory(dir=folder) as place:  # Engine.save may care for the name's ending
            written = Path(place) / "model.qnn"
            self.engine.save(written)
            shutil.move(written, file_name)
        return str(file_name)

    save = export_library


def load_module(path: str | os.PathLike, fmt: str = "") -> Any:
    """tvm.runtime.load_module: a library that `export_library` wrote; any other file is TVM's own to load."""
    if Path(path).is_file() and zipfile.is_zipfile(path):
        return Library(load_engine(path))
    return load_tvm_module(os.fspath(path))


class Executor:
    """relay.backend.Executor: "graph" or "aot", for `build`."""

    def __init__(self, name: str = "graph", options: Mapping[str, Any] | None = None) -> None:
        self.name, self.options = name, dict(options or {})

    def __str__(self) -> str:
        return self.name


class Runtime(Executor):
    """relay.backend.Runtime: "cpp" or "crt", for `build`, which decides by the target."""


def build(
    ir_mod: Any,
    target: Any = None,
    target_host: Any = None,
    executor: Any = None,
    runtime: Any = None,
    workspace_memory_pools: Any = None,
    constant_memory_pools: Any = None,
    params: Mapping[str, Any] | None = None,
    mod_name: str = "default",
) -> Library:
    """relay.build. Raises TargetError, ShapeError and what qnn_ext.build raises."""
    if str(executor or "graph").startswith("aot"):
        refuse("relay.build(executor=Executor('aot'))", "engine.save writes one file that runs without a graph anyway")
    attributes = resolved(target)
    module = module_of(ir_mod).model(params, compute_dtype(attributes))
    return Library(_engine(module, attributes), module, mod_name)


def _engine(module: QnnModule, attributes: Any) -> Engine:
    """A build as usual, whatever context of TVM's passes is entered around it; TVM_NUM_THREADS counts, as it did."""
    given = os.environ.get("TVM_NUM_THREADS", "")
    with tvm.transform.PassContext():
        return build_engine(module, attributes, num_threads=int(given) if given.isdigit() and int(given) else None)


# ---- the graph executor ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchmarkResult:
    """Seconds per run of each repeat."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return float(np.min(self.results))

    @property
    def max(self) -> float:
        return float(np.max(self.results))

    @property
    def std(self) -> float:
        return float(np.std(self.results))

    def __str__(self) -> str:
        names = ("mean", "median", "max", "min", "std")
        head = " ".join(f"{name + ' (ms)':^12}" for name in names)
        return f"Execution time summary:\n{head}\n" + " ".join(f"{getattr(self, name) * 1e3:^12.4f}" for name in names)


class GraphModule:
    """graph_executor.GraphModule: inputs set one by one, `run`, outputs got one by one."""

    def __init__(self, module: Library) -> None:
        self.module = self.lib = _library(module)
        self.engine = self.module.engine
        self._specs = {spec.name: spec for spec in self.engine.inputs}
        self._inputs: dict[str, np.ndarray] = {
            spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.engine.inputs
        }
        self._outputs: list[np.ndarray] = []

    # ---- inputs --------------------------------------------------------------------------------------------------

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Set one input by name or index, and others by name; of `params`, names that are no inputs are ignored.

        NumPy values are converted to the input's dtype, as Relay's executor did. Raises InputError.
        """
        if key is not None:
            self._set(self._spec(key), value)
        for name, given in params.items():
            if name in self._specs:
                self._set(self._specs[name], given)

    set_input_zero_copy = set_input

    def _set(self, spec: TensorSpec, value: Any) -> None:
        array = array_of(value)
        if isinstance(value, NDArray) and array.dtype != spec.dtype:
            raise InputError(f"input {spec.name!r} must be {spec.dtype}, found an NDArray of {array.dtype}")
        if not spec.fits(array.shape):
            raise InputError(f"input {spec.name!r} must have shape {spec.shape}, found {array.shape}")
        self._inputs[spec.name] = np.array(array, spec.dtype)

    def _spec(self, key: str | int) -> TensorSpec:
        specs = self.engine.inputs
        if isinstance(key, int):
            if not 0 <= key < len(specs):
                raise InputError(f"there is no input {key}; this model has {len(specs)}")
            return specs[key]
        if key not in self._specs:
            names = ", ".join(map(repr, self._specs))
            raise InputError(f"could not find {key!r} in the model's inputs: it takes {names}")
        return self._specs[key]

    def get_input(self, index: str | int, out: Any = None) -> NDArray:
        found = NDArray(self._inputs[self._spec(index).name])
        return found if out is None else found.copyto(out)

    def get_input_index(self, name: str) -> int:
        """The position of an input; −1 if there is none of that name."""
        return list(self._specs).index(name) if name in self._specs else -1

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and dtypes of the inputs by name."""
        specs = self._specs.items()
        return {name: spec.shape for name, spec in specs}, {name: spec.dtype for name, spec in specs}

    def get_num_inputs(self) -> int:
        return len(self.engine.inputs)

    def load_params(self, params_bytes: bytes) -> None:
        """Set the inputs that a parameter file has."""
        if params_bytes:
            self.set_input(**dict(tvm.runtime.load_param_dict(bytes(params_bytes))))

    # ---- run -----------------------------------------------------------------------------------------------------

    def run(self, **inputs: Any) -> None:
        """Set inputs and run the model. Raises InputError for values that it cannot take."""
        for name, value in inputs.items():
            self._set(self._spec(name), value)
        self._outputs = list(self.engine.run(self._inputs).values())

    def get_output(self, index: int, out: Any = None) -> NDArray:
        """An output of the last run."""
        if not self._outputs:
            raise InputError("get_output: call run() first")
        found = NDArray(self._outputs[index])
        return found if out is None else found.copyto(out)

    def get_num_outputs(self) -> int:
        return len(self.engine.outputs)

    def get_output_index(self, name: str) -> int:
        names = [spec.name for spec in self.engine.outputs]
        return names.index(name) if name in names else -1

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    # ---- measure -------------------------------------------------------------------------------------------------

    def time_evaluator(
        self,
        func_name: str = "run",
        dev: Any = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        **_: Any,
    ) -> Callable[..., BenchmarkResult]:
        """A function that times `run` on the inputs that are set."""
        if func_name != "run":
            refuse(f"time_evaluator({func_name!r})", "engine.profile() times the kernels, time_evaluator the model")

        def measure(*_: Any) -> BenchmarkResult:
            count = number
            if min_repeat_ms:
                once = max(self._seconds(1, 1)[0], 1e-7)
                count = max(number, int(min_repeat_ms / 1e3 / once) + 1)
            return BenchmarkResult(self._seconds(count, repeat))

        return measure

    def _seconds(self, number: int, repeat: int) -> tuple[float, ...]:
        return self.engine.time(number, repeat, list(self._inputs.values())).seconds

    def benchmark(
        self,
        device: Any = None,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        limit_zero_time_iterations: int = 100,
        end_to_end: bool = False,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Seconds per run."""
        self.set_input(**inputs)
        return self.time_evaluator(func_name, device, number, repeat, min_repeat_ms or 0)()


def create(graph_json_str: Any, libmod: Any, device: Any = None, ctx: Any = None) -> GraphModule:
    """graph_executor.create, from the parts that `relay.build` unpacks to."""
    return GraphModule(_library(libmod))


def _library(module: Any) -> Library:
    if isinstance(module, Library):
        return module
    raise ArtifactError(
        f"a model must be what relay.build or tvm.runtime.load_module of qnn_ext's façade returns, found "
        f"{type(module).__name__}; a library compiled by an older TVM cannot run: build the model again"
    )


# ---- the virtual machine, and create_executor ----------------------------------------------------------------------


class ADT(list):
    """Several results."""


class Executable:
    """relay.vm.compile's result. Shapes left open are fixed at each first call with them."""

    def __init__(self, mod: Any, target: Any = None, params: Mapping[str, Any] | None = None) -> None:
        self.module, self.attributes = module_of(mod), resolved(target)
        self.params = dict(params or {})
        self._built: dict[Any, Library] = {}
        self._open = any(
            isinstance(dim, Any_)
            for param in self.module["main"].params
            for dim in (param.type_annotation.shape if param.type_annotation else ())
        )
        if not self._open:
            self.library(())

    def library(self, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> Library:
        """The model for these shapes of its inputs."""
        key = tuple(shapes) if self._open else ()
        if key not in self._built:
            if self._open:
                dtype = compute_dtype(self.attributes)
                module = lower(self.module["main"], self.params, dtype, dict(shapes))
                self._built[key] = Library(_engine(module, self.attributes), module)
            else:
                self._built[key] = build(self.module, self.attributes, params=self.params)
        return self._built[key]

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that a call gives."""
        return [param.name_hint for param in self.module["main"].params if param.name_hint not in self.params]

    def run(self, args: Sequence[Any], values: Mapping[str, Any]) -> Any:
        """The result for inputs in order and by name: an NDArray, or an ADT of them."""
        given = {**dict(zip(self.inputs, args, strict=False)), **values}
        shapes = [(name, array_of(given[name]).shape) for name in self.inputs if name in given]
        module = GraphModule(self.library(shapes))
        module.run(**given)
        outputs = [module.get_output(index) for index in range(module.get_num_outputs())]
        return outputs[0] if len(outputs) == 1 else ADT(outputs)

    @property
    def mod(self) -> Executable:
        return self


def compile_vm(mod: Any, target: Any = None, target_host: Any = None, params: Any = None) -> Executable:
    """relay.vm.compile."""
    return Executable(mod, target, params)


class VirtualMachine:
    """runtime.vm.VirtualMachine."""

    def __init__(self, exe: Executable, device: Any = None, memory_cfg: Any = None) -> None:
        self._exe = exe
        self._set: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._outputs: Any = None

    def set_input(self, func_name: str, *args: Any, **values: Any) -> None:
        """The inputs of the next call."""
        self._set = args, values

    def invoke(self, func_name: str, *args: Any, **values: Any) -> Any:
        """The result of `main`, as an NDArray or a list of them."""
        _check_main(func_name)
        if not args and not values:
            args, values = self._set
        self._outputs = self._exe.run(args, values)
        return self._outputs

    def run(self, *args: Any, **values: Any) -> Any:
        return self.invoke("main", *args, **values)

    def invoke_stateful(self, func_name: str, *args: Any, **values: Any) -> None:
        self.invoke(func_name, *args, **values)

    def get_outputs(self) -> list[Any]:
        return self._outputs if isinstance(self._outputs, list) else [self._outputs]

    def get_input_index(self, input_name: str, func_name: str = "main") -> int:
        return self._exe.inputs.index(input_name) if input_name in self._exe.inputs else -1

    def benchmark(self, device: Any, *args: Any, func_name: str = "main", **options: Any) -> BenchmarkResult:
        """Seconds per run with these inputs."""
        _check_main(func_name)
        timing = ("repeat", "number", "min_repeat_ms", "end_to_end")
        chosen = {name: options.pop(name) for name in timing if name in options}
        given = {**dict(zip(self._exe.inputs, args, strict=False)), **options}
        shapes = [(name, array_of(value).shape) for name, value in given.items()]
        return GraphModule(self._exe.library(shapes)).benchmark(device, **chosen, **given)


def _check_main(func_name: str) -> None:
    if func_name != "main":
        raise ValueError(f"there is no function {func_name!r}, only main")


class Evaluator:
    """relay.create_executor's result: `evaluate` builds what it is given."""

    def __init__(self, mod: Any, device: Any, target: Any, params: Mapping[str, Any] | None) -> None:
        self.mod, self.device, self.target = mod, device, target
        self._params = params

    def evaluate(self, expr: Any = None, binds: Mapping[Any, Any] | None = None) -> Any:
        """A function of NumPy arrays for a function or the whole module; the value of any other expression."""
        if expr is None or isinstance(expr, (Function, str)):
            source = self.mod if expr is None or isinstance(expr, str) else expr
            executable = Executable(source, self.target, self._params)
            return lambda *args, **values: executable.run(args, values)
        expr = as_expr(expr)
        function = Function(free_vars(expr), expr)
        values = {getattr(var, "name_hint", var): value for var, value in (binds or {}).items()}
        return Executable(function, self.target, self._params).run((), values)


def create_executor(
    kind: str = "debug", mod: Any = None, device: Any = None, target: Any = "llvm", params: Any = None, ctx: Any = None
) -> Evaluator:
    """relay.create_executor: "graph", "vm" and "debug" all run the built model."""
    if kind not in ("graph", "vm", "debug"):
        refuse(f"create_executor({kind!r})", "there are graph, vm and debug, which all run the built model")
    return Evaluator(mod, device, target, params)


def run_const_expr(expr: Expr) -> np.ndarray:
    """The value of an expression of constants."""
    return create_executor("debug", target="native").evaluate(expr).numpy()
