"""Engine: a compiled model. Arrays in and out, state kept between calls; timing, profiling, saving and loading."""

from __future__ import annotations

import atexit
import io
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArtifactError, InputError, QnnError, TargetError
from ..files.container import Reader
from ..module import (
    ByPosition,
    State,
    as_inputs,
    check_inputs,
    in_model_order,
    quantized,
    run_by_sample,
    trimmed,
    zeros,
)
from ..processes import forking
from ..processes.cores import default_threads
from ..targets.backend import threads_of
from ..targets.families import backend_described
from ..targets.host import advised_target, give_back_memory, memory_bytes, missing_features
from . import artifact
from .description import running_bytes
from .devices import SOURCES, Code, device_of
from .executors import Executor, Workspace
from .kernels import Kernel
from .model import Memory, Model, Variant, target_name
from .timing import LayerProfile, Timing

if TYPE_CHECKING:
    from ..files.signing import PrivateKey, PublicKey
    from .requests import Request, Workers

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    locks: dict[int, Any] = {}  # engines beside one another have one
    for engine in list(_engines):
        known = id(engine._lock)
        if known not in locks:
            locks[known] = engine._lock, forking.last(engine._lock)
        _, engine._lock = locks[known]


Inputs = Mapping[str, Any] | Sequence[Any]  # also the only array, as it is


class Engine(ByPosition):
    """A compiled model, made by `qnn_ext.build` or `qnn_ext.load`.

    inputs, outputs: names, shapes, dtypes and QParams, in model order
    notes:           what runs in float although the model quantizes it
    kernels:         the compiled kernels in execution order
    target:          the TVM target as a dict; features: instruction sets the code may use
    fallback:        why TVM's virtual machine runs the model kernel by kernel instead of one compiled function; empty
                     if one function does, and on GPUs, where the virtual machine always runs it
    memory:          bytes of its weights and feature maps
    variants:        all targets the model was compiled for, fastest first; the engine runs one of them
    memories:        the memory that the model takes on each of `variants`
    compiled:        everything known of each of `variants`: its kernels too
    others:          the model for other shapes, over the same weights and states, where it was built for several: a
                     call of one of them goes on from what the call before, of any of them, left in the states
    """

    def __init__(self, model: Model, variant: Variant, code: Callable[[], Code], num_threads: int | None) -> None:
        """code: returns the library and weights to run."""
        self._model, self._variant = model, variant
        self._load_code = code
        self.inputs, self.outputs, self.notes = model.inputs, model.outputs, model.notes
        self.source_name = model.source
        self.target, self.features = variant.target, variant.features
        self.fallback, self.memory = variant.fallback, variant.memory
        self.num_threads = num_threads or min(threads_of(self.target), default_threads())
        self._device = device_of(self.target)
        self._built: artifact.Compiled | None = None
        self._saved_with: list[artifact.Compiled] = []
        self._content: Callable[[], bytes] | None = None  # of the file that it was loaded from
        self.exporter: Callable[..., Any] | None = None  # what `export_c` calls, set by what built it
        self.compiled = [variant]
        self._forms = [(spec.shape, np.dtype(spec.dtype)) for spec in self.inputs]
        self._executor: Executor | None = None
        self._lock: Any = forking.lock("engine")
        self._workspace: Workspace | None = None  # of all engines beside it
        self.others: tuple[Engine, ...] = ()
        self._worker: Workers | None = None
        _engines.add(self)

    @classmethod
    def from_build(
        cls, model: Model, variant: Variant, executable: Any, weights: np.ndarray | None, lowered: Any
    ) -> Engine:
        """The engine of a freshly compiled module; nothing is linked until it runs."""
        return cls._of(model, artifact.Compiled(variant, weights, executable, lowered))

    @classmethod
    def from_cache(
        cls, content: bytes | memoryview, sources: Sequence[str], again: Callable[[], Sequence[Engine]]
    ) -> list[Engine]:
        """The engines that `for_cache` returned this content of.

        sources: the names of what they were imported from, which may be others now
        again:   compiles the same engines; only called to show their source, or if their code cannot be loaded here

        Raises ArtifactError.
        """
        engines = []
        for index, (model, compiled) in enumerate(artifact.from_bytes(content)):
            compiled.again = lambda index=index: again()[index]._fresh()  # type: ignore[misc]
            engines.append(cls._of(replace(model, source=sources[index]), compiled))
        return engines

    @staticmethod
    def for_cache(engines: Sequence[Engine]) -> bytes:
        """All that `from_cache` needs of engines for a CPU that were just built together. They are linked now, and what
        is linked will be run: machine code is generated only once. Raises ArtifactError where there is no linker."""
        return artifact.to_bytes([(engine._model, [engine._fresh()]) for engine in engines])

    def _fresh(self) -> artifact.Compiled:
        """What an engine that was just built consists of."""
        assert self._built is not None
        return self._built

    @classmethod
    def _of(cls, model: Model, compiled: artifact.Compiled) -> Engine:
        engine = cls(model, compiled.variant, compiled.code, None)
        engine._built = compiled
        engine._saved_with = [compiled]
        return engine

    @staticmethod
    def best_of(engines: Sequence[Engine]) -> Engine:
        """The first of several engines of one model, fastest first, that this machine can run; `save` writes them all.
        If none can run, the first."""
        best = next((engine for engine in engines if engine._variant.runs_here()), engines[0])
        best._saved_with = [built for engine in engines for built in engine._saved_with]
        best.compiled = [engine._variant for engine in engines]
        return best

    @staticmethod
    def together(engines: Sequence[Engine]) -> Engine:
        """The first of engines of one model for different shapes, built together, with the others beside it."""
        first, *others = engines
        first.others = tuple(others)
        programs = [engine._variant.program for engine in engines]
        workspace = Workspace(max(program.workspace for program in programs if program is not None))
        for engine in engines:
            engine._workspace, engine._lock = workspace, first._lock
            engine.memory = replace(engine.memory, feature_maps=workspace.size)
        return first

    def shares_states_with(self, other: Engine) -> bool:
        """Whether two engines keep their states in the same memory: `others` do."""
        return self is other or (self._workspace is not None and self._workspace is other._workspace)

    @property
    def kernels(self) -> list[Kernel]:
        return list(self._variant.kernels)

    @property
    def used_threads(self) -> int:
        """The most threads that a call runs on: `num_threads`, or fewer if the model was compiled for fewer."""
        program = self._variant.program
        return self.num_threads if program is None else min(self.num_threads, program.tasks)

    @property
    def tir(self) -> Any:
        """The lowered tvm.IRModule, if the engine was built in this process; None after `load`."""
        return self._built and self._built.recalled().lowered

    @property
    def model(self) -> Model:
        """What is the same on every target."""
        return self._model

    @property
    def lowered_variants(self) -> list[tuple[Variant, Any]]:
        """Each of `compiled` with its lowered tvm.IRModule; empty after `load`."""
        return [(built.variant, built.recalled().lowered) for built in self._saved_with]

    @property
    def variants(self) -> list[dict[str, Any]]:
        return [variant.target for variant in self.compiled]

    @property
    def memories(self) -> list[Memory]:
        shapes = zip(*(engine.compiled for engine in (self, *self.others)), strict=True)
        return [
            replace(variants[0].memory, feature_maps=max(variant.memory.feature_maps for variant in variants))
            for variants in shapes
        ]

    # ---- run -----------------------------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any],
        stream: Any = None,
        *,
        quantize: bool = False,
        dequantize: bool = False,
    ) -> dict[str, Any]:
        """Outputs by name: NumPy arrays for NumPy arrays.

        inputs: by name or in model order; the only input of a model may be given as it is.

        On a GPU, inputs may be tensors in its memory, from PyTorch or anything else that supports DLPack. Then nothing
        is copied and the call does not wait: the outputs are such tensors too, for `torch.from_dlpack`, ready when the
        stream gets there. With a `stream`, PyTorch's or a CUDA handle, the kernels are launched on it and NumPy inputs
        are copied to the GPU; without one, on the default stream. `check` reports run-time values out of range.

        quantize:   whether real values given for a quantized input become its integers, clip(rint(x / scale) +
                    zero_point), and floats of another precision that of a float input; integers are used as they are
        dequantize: whether quantized outputs are returned as real values, scale · (q − zero_point) in float32

        Both are for NumPy arrays, not for tensors in a GPU's memory.

        Raises InputError when the inputs do not fit or hold values that the model cannot take, such as an index out of
        range, and TargetError when this machine cannot run the model.
        """
        inputs = as_inputs(inputs)
        launched = stream is not None or self._on_device(inputs)
        if launched and (quantize or dequantize):
            raise InputError(
                "quantize=True and dequantize=True are for NumPy arrays without a stream: convert tensors in the GPU's "
                "memory there, with the scale and zero point of engine.inputs and engine.outputs"
            )
        if quantize:
            inputs = quantized(inputs, self.inputs)
        outputs = self._launch(inputs, stream) if launched else self._run(inputs)
        if dequantize:
            outputs = [
                value if spec.qparams is None else spec.qparams.dequantize(value)
                for spec, value in zip(self.outputs, outputs, strict=True)
            ]
        return {spec.name: value for spec, value in zip(self.outputs, outputs, strict=True)}

    def _on_device(self, inputs: Mapping[str, Any] | Sequence[Any]) -> bool:
        return any(map(self._device.holds, inputs.values() if isinstance(inputs, Mapping) else inputs))

    def _launch(self, inputs: Mapping[str, Any] | Sequence[Any], stream: Any) -> list[Any]:
        values = in_model_order(inputs, self.inputs)
        bounded = next((spec for spec in self.outputs if spec.bounded), None)
        if bounded is not None:
            raise InputError(
                f"the size of output {bounded.name!r} is only known once the call is over: give NumPy arrays, and no "
                "stream"
            )
        with self._lock:
            return self._device.launch(self._ready(), values, stream)

    def _run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
        if isinstance(inputs, tuple) and self._fit(inputs):
            with self._lock:  # an engine has one workspace
                return self._run_once(inputs)
        arrays = check_inputs(inputs, self.inputs)
        with self._lock:
            return run_by_sample(self._run_once, arrays, self.inputs, self.outputs)

    def _fit(self, inputs: tuple[np.ndarray, ...]) -> bool:
        """Whether the inputs can be used unchanged. In most calls they can, and small models take only microseconds."""
        if len(inputs) != len(self._forms):
            return False
        for array, (shape, dtype) in zip(inputs, self._forms):  # noqa: B905  # strict costs the time this saves
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
        return True

    def _run_once(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        executor = self._ready()
        executor.set_inputs(arrays)
        return self._trimmed(executor.run())

    def _trimmed(self, results: list[Any]) -> list[Any]:
        """The outputs, without what is beyond sizes that are only known at run time."""
        if len(results) == len(self.outputs):
            return results
        *outputs, found = results
        sizes = iter(np.asarray(found).tolist())
        return [
            trimmed(array, {axis: next(sizes) for axis in spec.bounded}) if spec.bounded else array
            for spec, array in zip(self.outputs, outputs, strict=True)
        ]

    def submit(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Request:
        """A future of `run(inputs)`, computed on another thread while the caller goes on: ask for its result(), or
        await it. Requests of one engine run one after another; `Pool` runs several at once. The inputs must stay as
        they are until then.
        """
        if self._worker is None:
            from .requests import Workers  # only here: it imports asyncio, which takes 40 ms

            self._worker = Workers(1)
        return self._worker.submit(self.run, inputs)

    def clone(self, num_threads: int | None = None) -> Engine:
        """Another engine over the same code and weights, to run at the same time as this one.

        It has feature maps of its own (`memory.feature_maps` bytes), and states, which have their initial values. That
        is nearly all it takes: one of MobileNet v2, with 1.7 MB of feature maps and 3.7 MB of weights, was measured to
        take 1.9 MB, where loading the file again takes 5.4 MB.

        num_threads: unless given, as many as this engine has
        """
        clone = Engine(self._model, self._variant, self._load_code, num_threads or self.num_threads)
        clone._built, clone._saved_with, clone.compiled = self._built, self._saved_with, self.compiled
        clone._content, clone.exporter = self._content, self.exporter
        if self.others:
            return Engine.together([clone, *(other.clone(num_threads) for other in self.others)])
        return clone

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, an engine is the content of its `.qnn` file, which is loaded where it is unpickled: for a process
        that does not share this one's memory. It then has as many threads, and states with their initial values.

        Raises ArtifactError where `save` would, and if the file that it was loaded from is not there any more or was
        changed.
        """
        content = artifact.to_bytes(self._parts()) if self._content is None else self._content()
        return _unpickled, (content, self.num_threads)

    @property
    def states(self) -> tuple[State, ...]:
        """The values that are kept between calls, with their initial ones."""
        return self._model.states

    @property
    def has_states(self) -> bool:
        """Whether a result depends on the calls before, as in streaming and recurrent models."""
        return bool(self._model.states)

    def prepare(self) -> None:
        """Load the code and allocate the memory now instead of at the first call.

        Raises TargetError when this machine cannot run the model, and QnnError if memory is short.
        """
        with self._lock:
            self._ready()

    def reset_state(self) -> None:
        """Set every state of a streaming or recurrent model back to its initial value."""
        with self._lock:
            if self._executor is not None:  # a new executor starts with the initial values
                self._executor.reset_state()
            elif self._workspace is not None:  # unless it is over memory that another one used
                self._ready().reset_state()

    def state_values(self) -> list[np.ndarray]:
        """Copies of the present values of `states`, in their order: to go on from here again with `set_states`, as a
        beam search does, or every prompt with the same beginning. For a copy in another engine, use `clone`."""
        with self._lock:
            return self._ready().state_values()

    def set_states(self, values: Sequence[np.ndarray]) -> None:
        """Set the states to values as `state_values` returns them, from this engine or another one of the same model.

        Raises InputError for another number of values, another shape or dtype.
        """
        if not hasattr(values, "__iter__"):
            raise InputError(f"states must be arrays in a list, found {type(values).__name__}")
        arrays = [np.asarray(value) for value in values]
        wanted = [(state.initial.shape, state.initial.dtype) for state in self.states]
        if [(array.shape, array.dtype) for array in arrays] != wanted:
            shown = ", ".join(f"{state.name}: {state.initial.dtype} {state.initial.shape}" for state in self.states)
            found = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
            raise InputError(f"this model keeps the states ({shown}), found the values ({found})")
        with self._lock:
            self._ready().set_states(arrays)

    def _ready(self) -> Executor:
        """The executor, made at first use: only then must this machine be able to run the code."""
        self._device.check()
        if self._executor is None:
            try:
                self._executor = self._new_executor()
            except MemoryError:
                wanted = self.memory.feature_maps
                raise QnnError(
                    f"the model's feature maps take {wanted} bytes, which is more memory than is free here"
                ) from None
        return self._executor

    def _new_executor(self) -> Executor:
        self._variant.check_runnable()
        with self._device.loading():
            code = self._load_code()
        return self._device.executor(code, self._model, self._variant, self.num_threads, self._workspace)

    # ---- measure -------------------------------------------------------------------------------------------------

    def time(self, number: int = 10, repeat: int = 20, inputs: Inputs | None = None) -> Timing:
        """Wall-clock seconds per call: `repeat` means over `number` calls each, on zeros unless inputs are given as
        `run` takes them. Raises InputError."""
        _check_count("number", number)
        _check_count("repeat", repeat)
        with self._lock:
            return Timing(self._with_sample(inputs).seconds(number, repeat))

    def profile(self, repeat: int = 20, inputs: Inputs | None = None) -> list[LayerProfile]:
        """Median seconds of each kernel over `repeat` runs, in execution order; inputs as for `time`."""
        return self.profile_of(self.spans(repeat, inputs))

    def spans(self, repeat: int = 20, inputs: Inputs | None = None) -> np.ndarray:
        """When each kernel started and ended in each of `repeat` runs, measured on the thread that calls them: float64
        seconds since the first start, of shape (repeat, kernels, 2); inputs as for `time`."""
        _check_count("repeat", repeat)
        with self._lock:
            return self._with_sample(inputs).spans(repeat)

    def profile_of(self, spans: np.ndarray) -> list[LayerProfile]:
        """The profile that `spans` measured: the median seconds of each kernel."""
        seconds = np.median(spans[..., 1] - spans[..., 0], axis=0)
        return [LayerProfile(kernel, float(value)) for kernel, value in zip(self.kernels, seconds, strict=True)]

    def _with_sample(self, inputs: Inputs | None) -> Executor:
        """The executor with its inputs set, to zeros unless given; if the batch is symbolic, to the first sample."""
        arrays = check_inputs(zeros(self.inputs) if inputs is None else inputs, self.inputs)
        executor = self._ready()
        executor.set_inputs([spec.sample(array, 0) for array, spec in zip(arrays, self.inputs, strict=True)])
        return executor

    # ---- look inside, keep ---------------------------------------------------------------------------------------

    def source(self, kind: str = "tir") -> str:
        """The program as "tir" (scheduled TVMScript), "ll" (LLVM IR of what runs on the CPU) or "asm"; for a GPU also
        as "cuda" and "ptx", and "asm" is its own instructions. Raises QnnError after `load`, TargetError without CUDA's
        tools.
        """
        kinds = ("tir", *self._device.sources)
        if kind not in kinds:
            hint = "; that kind exists only for GPUs: build for one, such as 'sm_80'" if kind in SOURCES else ""
            raise QnnError(f"source kind must be {', '.join(kinds[:-1])} or {kinds[-1]}, found {kind!r}{hint}")
        if self._built is None:
            raise QnnError(
                "a loaded .qnn file holds no source: to see it, build the model again from its original file"
            )
        built = self._built.recalled()
        if kind == "tir":
            return str(built.lowered.script())
        return self._device.source(kind, built.executable.mod, self.target)

    def link(self) -> None:
        """Link the code of every target now, after which `compiled` says what it takes. Raises ArtifactError where
        there is no linker for one."""
        for built in self._saved_with:
            built.linked()
        self.compiled = [built.variant for built in self._saved_with] or self.compiled
        for other in self.others:
            other.link()

    def save(self, path: str | os.PathLike, sign: PrivateKey | None = None) -> None:
        """Write everything into one `.qnn` file, signed if a key is given.

        Raises ArtifactError; nothing half-written is left behind.

        sign: an Ed25519 private key: the path of a PEM file, its bytes, or a key of the package cryptography; the
              passphrase of an encrypted one is taken from the environment variable QNN_EXT_SIGN_PASSPHRASE
        """
        if not self._saved_with:
            raise ArtifactError(
                "this engine was loaded and cannot be saved: copy the file that it is from, or save the engine that "
                "was built"
            )
        artifact.write(path, self._parts(), sign)

    def _parts(self) -> list[artifact.Part]:
        """What a file holds of this engine and of those beside it."""
        return [(engine._model, engine._saved_with) for engine in (self, *self.others)]

    def export_c(self, folder: str | os.PathLike, name: str | None = None, **options: Any) -> Any:
        """Write the model as a C library into a folder: sources, object files and weights, for programs without Python
        and TVM. Returns a `qnn_ext.export_c.Exported`.

        name:    what the names of files and functions start with; by default the name of the model's file
        options: `weights`, `shared` and `threads` of `qnn_ext.export_c.export_c`

        Raises ArtifactError for an engine that was loaded, and TargetError for a model that cannot be one function or
        targets that a C library cannot be for.
        """
        if self.exporter is None:
            raise ArtifactError(
                "this engine was loaded, and a .qnn file holds no code that a C library can be made of: build the "
                "model again from its original file"
            )
        return self.exporter(self, folder, name, **options)

    def __repr__(self) -> str:
        return f"Engine({self.source_name!r}, {len(self._variant.kernels)} kernels, target {target_name(self.target)})"


def _check_count(name: str, value: Any) -> None:
    """Raises InputError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        found = value if isinstance(value, (int, float, str)) else type(value).__name__
        raise InputError(f"{name} must be a whole number of at least 1, found {found}: arrays are given as inputs=…")


def load(path: str | os.PathLike, num_threads: int | None = None, verify: PublicKey | None = None) -> Engine:
    """The engine in a `.qnn` file; no frontend and no compiler is needed. If the file was compiled for several targets,
    the fastest that this CPU can run is taken. The file holds machine code: load only what you trust.

    verify: an Ed25519 public key, as a PEM file's path or its bytes; a file that was not signed with its private key,
            or was altered since, is refused before anything in it is used

    Raises ArtifactError (damaged file, wrong signature) and TargetError (this CPU lacks instructions that the file was
    built for).
    """
    with artifact.opened(path, verify) as file:
        engine = _loaded(file, num_threads)
        engine._content = partial(artifact.content_of, Path(path).absolute(), file.manifest)
    del file  # with its description
    give_back_memory()
    return engine


def _unpickled(content: bytes, num_threads: int) -> Engine:
    """The engine that `__reduce__` returned this content of. It keeps the content, to be pickled again."""
    engine = _loaded(artifact.Artifact(Reader(io.BytesIO(content))), num_threads)
    engine._content = lambda: content
    return engine


def _loaded(file: artifact.Artifact, num_threads: int | None) -> Engine:
    """The engine of the variant that suits this machine, with those for other shapes beside it."""
    index = _choose(file.variants)
    _check_memory(running_bytes(file.description, index))
    with device_of(file.variants[index].target).loading():
        file.keep_kernels(index)
        codes = file.code(index)
    engines = []
    for (model, variants), code in zip(file.parts, codes, strict=True):
        engine = Engine(model, variants[index], lambda code=code: code, num_threads)  # type: ignore[misc]
        engine.compiled = variants
        engines.append(engine)
    return Engine.together(engines) if len(engines) > 1 else engines[0]


def _check_memory(wanted: int) -> None:
    """Raise ArtifactError if the machine cannot provide so many bytes."""
    here = memory_bytes()
    if here is not None and wanted > here:
        raise ArtifactError(f"the model takes {wanted / 1e9:.1f} GB to run, but this machine has {here / 1e9:.1f} GB")


def _choose(variants: Sequence[Variant]) -> int:
    """The first variant this machine can run. Raises TargetError."""
    for index, variant in enumerate(variants):
        if variant.runs_here():
            return index
    last = variants[-1]
    if len(variants) == 1 or backend_described(last.target).grid:
        last.check_runnable()
    inside = ", ".join(target_name(variant.target) for variant in variants)
    missing = missing_features(last.features) or [last.architecture]
    raise TargetError(
        f"this CPU can run none of the targets in the file ({inside}); even the last needs {', '.join(missing)}. "
        f"Compile the model again, here with the target 'native', or with {advised_target()} added, which any CPU of "
        "this kind runs"
    )
