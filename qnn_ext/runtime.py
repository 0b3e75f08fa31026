"""Engine: a compiled model. Arrays in and out, state kept between calls; timing, profile, save and load."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import artifact, forking, gpu
from .description import running_bytes
from .errors import ArtifactError, QnnError, TargetError
from .executors import Executor, MachineExecutor, ProgramExecutor
from .host import advised_target, can_run, check_runnable, default_threads, memory_bytes, missing_features
from .kernels import Kernel
from .module import Check, FloatNote, State, TensorSpec, check_inputs, in_model_order, run_by_sample
from .variants import Memory, memory_of, target_name

if TYPE_CHECKING:
    from tvm import IRModule

    from .signing import PrivateKey, PublicKey

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    for engine in list(_engines):
        engine._lock = forking.last(engine._lock)


Code: TypeAlias = tuple[Any, np.ndarray | None]  # the library, and the weights that lie outside it


@dataclass(frozen=True)
class Timing:
    """Seconds per call over several repeats."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def best(self) -> float:
        return min(self.seconds)

    def __str__(self) -> str:
        return f"{self.median * 1e3:.3f} ms (median of {len(self.seconds)}, best {self.best * 1e3:.3f})"


@dataclass(frozen=True)
class LayerProfile:
    """How long one kernel takes, and what that means: GOP/s counts two operations per multiply-accumulate."""

    kernel: Kernel
    seconds: float

    @property
    def gops(self) -> float:
        return 2 * self.kernel.macs / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def bytes(self) -> int:
        return self.kernel.weight_bytes + self.kernel.data_bytes


class Engine:
    """A compiled model, made by `qnn_ext.build` or `qnn_ext.load`.

    inputs, outputs: names, shapes, dtypes and QParams, in model order
    notes:           what runs in float although the model quantizes it
    kernels:         the compiled kernels in the order they run
    target:          the TVM target as a dict; features: instruction sets the code may use
    memory:          bytes of its weights and feature maps
    variants:        all targets the model was compiled for, the fastest first; the engine runs one of them
    memories:        the memory the model takes on each of `variants`
    """

    def __init__(
        self,
        common: dict[str, Any],
        variant: dict[str, Any],
        states: Sequence[np.ndarray],
        code: Callable[[], Code],
        num_threads: int | None,
    ) -> None:
        """common, variant: the description as `.qnn` files hold it. code: gives library and weights to run."""
        description = {**common, **variant}
        self._common, self._variant = common, variant
        self._load_code = code
        self.inputs: tuple[TensorSpec, ...] = tuple(map(artifact.spec_from_json, description["inputs"]))
        self.outputs: tuple[TensorSpec, ...] = tuple(map(artifact.spec_from_json, description["outputs"]))
        self._checks = tuple(Check(**check) for check in description["checks"])
        self.notes = tuple(FloatNote(**note) for note in description["notes"])
        self.kernels = [Kernel(**kernel) for kernel in description["kernels"]]
        self.target: dict[str, Any] = description["target"]
        self.features: list[str] = description["features"]
        self.source_name: str = description["source"]
        self.num_threads = num_threads or min(int(self.target.get("num-cores", 1)), default_threads())
        self.memory: Memory = memory_of(description)
        self.variants: list[dict[str, Any]] = [self.target]
        self.memories: list[Memory] = [self.memory]
        self.tir: IRModule | None = None
        self._built: artifact.Variant | None = None
        self._saved_with: list[artifact.Variant] = []
        self._states = tuple(
            State(state["name"], value) for state, value in zip(description["states"], states, strict=True)
        )
        self._forms = [(spec.shape, np.dtype(spec.dtype)) for spec in self.inputs]
        self._executor: Executor | None = None
        self._lock: Any = forking.lock("engine")
        _engines.add(self)

    @classmethod
    def from_build(
        cls,
        common: dict[str, Any],
        variant: dict[str, Any],
        states: Sequence[State],
        executable: Any,
        weights: np.ndarray | None,
        lowered: IRModule,
    ) -> Engine:
        """The engine of a module that was just compiled: nothing is linked before it runs."""
        initial = [state.initial for state in states]
        engine = cls(common, variant, initial, lambda: (executable.jit(), weights), None)
        engine.tir = lowered
        engine._built = artifact.Variant(variant, executable, weights)
        engine._saved_with = [engine._built]
        return engine

    @staticmethod
    def best_of(engines: Sequence[Engine]) -> Engine:
        """Of engines of one model, the fastest first, the first that this CPU can run; `save` writes them all. Where
        none can run, the first."""
        best = next((engine for engine in engines if _runs_here(engine._variant)), engines[0])
        best._saved_with = [built for engine in engines for built in engine._saved_with]
        best.variants = [engine.target for engine in engines]
        best.memories = [engine.memory for engine in engines]
        return best

    # ---- run -----------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """Outputs for the inputs in model order: an array for one output, a list for several."""
        outputs = self._run(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, inputs: Mapping[str, Any] | Sequence[Any], stream: Any = None) -> dict[str, Any]:
        """Outputs by name: NumPy arrays for NumPy arrays.

        On a GPU, inputs may be tensors in its memory, PyTorch's or any that speak DLPack. Nothing is copied or waited
        for then: outputs are such tensors too, `torch.from_dlpack` takes them, ready when the stream gets there. With a
        `stream`, of PyTorch or a CUDA handle, the kernels go there and NumPy inputs are copied to the GPU; without, to
        the default one, and `check` tells whether values at run time were out of range.

        Raises InputError when the inputs do not fit or hold what the model cannot take, as an index out of range,
        TargetError when this machine cannot run it.
        """
        outputs = self._run(inputs) if stream is None and not self._on_device(inputs) else self._launch(inputs, stream)
        return {spec.name: value for spec, value in zip(self.outputs, outputs, strict=True)}

    def _on_device(self, inputs: Mapping[str, Any] | Sequence[Any]) -> bool:
        if self.target["kind"] != "cuda":
            return False
        from .gpu_executor import is_on_device

        return any(map(is_on_device, inputs.values() if isinstance(inputs, Mapping) else inputs))

    def _launch(self, inputs: Mapping[str, Any] | Sequence[Any], stream: Any) -> list[Any]:
        if self.target["kind"] != "cuda":
            raise QnnError("only an engine built for a GPU launches on a stream")
        from .gpu_executor import DeviceExecutor, handle_of

        values = in_model_order(inputs, self.inputs)
        with self._lock:
            executor = self._ready()
            assert isinstance(executor, DeviceExecutor)
            return executor.launch(values, handle_of(stream))

    def _run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
        if isinstance(inputs, tuple) and self._fit(inputs):
            with self._lock:  # an engine has one workspace
                return self._run_once(inputs)
        arrays = check_inputs(inputs, self.inputs)
        with self._lock:
            return run_by_sample(self._run_once, arrays, self.inputs)

    def _fit(self, inputs: tuple[np.ndarray, ...]) -> bool:
        """Whether these are arrays for one run just as they are; most calls are, and small models take microseconds."""
        if len(inputs) != len(self._forms):
            return False
        for array, (shape, dtype) in zip(inputs, self._forms):  # noqa: B905  # strict costs what this saves
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
        return True

    def _run_once(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        executor = self._ready()
        executor.set_inputs(arrays)
        return executor.run()

    def reset_state(self) -> None:
        """Set every state of a streaming or recurrent model back to its initial value."""
        with self._lock:
            if self._executor is not None:  # a new one starts there
                self._executor.reset_state()

    def _ready(self) -> Executor:
        """The executor, made at the first use: that is when this machine must be able to run the code."""
        if self.target["kind"] == "cuda":
            gpu.check_not_forked()
            self._executor = self._executor or self._on_gpu()
        if self._executor is None:
            try:
                self._executor = self._on_cpu()
            except MemoryError:
                wanted = self.memory.feature_maps
                raise QnnError(f"the model's feature maps take {wanted} bytes, more than are free here") from None
        return self._executor

    def _on_cpu(self) -> Executor:
        check_runnable(self.features, self._variant["architecture"])
        library, weights = self._load_code()
        model = self.inputs, self.outputs, self._states, self._checks
        if weights is None:
            return MachineExecutor(library, *model, self.kernels, self.num_threads)
        return ProgramExecutor(library, weights, self._variant["program"], *model, self.num_threads)

    def _on_gpu(self) -> Executor:
        check_runnable(self.features, self._variant["architecture"])
        gpu.check_runnable(self.target)
        from . import gpu_executor, gpu_runtime  # on CPUs they would only take memory

        gpu_runtime.load()
        with gpu_runtime.compiling():
            library, _ = self._load_code()
        model = self.inputs, self.outputs, self._states, self._checks
        return gpu_executor.DeviceExecutor(library, *model, self.kernels)

    # ---- measure -------------------------------------------------------------------------------------------------

    def time(self, number: int = 10, repeat: int = 20, inputs: Sequence[np.ndarray] | None = None) -> Timing:
        """Wall-clock seconds per call: `repeat` averages over `number` calls each, on zeros unless inputs are given."""
        with self._lock:
            return Timing(self._with_sample(inputs).seconds(number, repeat))

    def profile(self, repeat: int = 20, inputs: Sequence[np.ndarray] | None = None) -> list[LayerProfile]:
        """Median seconds of each kernel over `repeat` runs, in the order they run."""
        with self._lock:
            seconds = self._with_sample(inputs).profile(repeat)
        return [LayerProfile(kernel, value) for kernel, value in zip(self.kernels, seconds, strict=True)]

    def _with_sample(self, inputs: Sequence[np.ndarray] | None) -> Executor:
        """The executor with its inputs set: zeros unless given; of a batch of any size the first sample."""
        arrays = check_inputs(inputs or [np.zeros(spec.shape, spec.dtype) for spec in self.inputs], self.inputs)
        executor = self._ready()
        executor.set_inputs([a[:1] if spec.dynamic_batch else a for a, spec in zip(arrays, self.inputs, strict=True)])
        return executor

    # ---- look inside, keep ---------------------------------------------------------------------------------------

    def source(self, kind: str = "tir") -> str:
        """The program as "tir" (scheduled TVMScript), "ll" (LLVM IR of what runs on the CPU) or "asm"; of a GPU "cuda",
        "ptx" and, as "asm", its own instructions. Raises QnnError after `load`, TargetError without CUDA's tools.
        """
        on_gpu = self.target["kind"] == "cuda"
        kinds = ("tir", "ll", "asm", "cuda", "ptx") if on_gpu else ("tir", "ll", "asm")
        if kind not in kinds:
            hint = "; build for a GPU, 'sm_80', to see its source" if kind in ("cuda", "ptx") else ""
            raise QnnError(f"source kind must be {', '.join(kinds[:-1])} or {kinds[-1]}, found {kind!r}{hint}")
        if self.tir is None:
            raise QnnError("a loaded .qnn file holds no source; build the model from its file to see it")
        if kind == "tir":
            return str(self.tir.script())
        assert self._built is not None
        module = self._built.executable.mod
        if not on_gpu or kind == "ll":
            return "\n".join(part.inspect_source(kind) for part in [module, *module.imports] if part.kind == "llvm")
        from . import cuda_compiler

        source, architecture = cuda_compiler.source_of(module), str(self.target["arch"])
        if kind == "cuda":
            return source
        return (cuda_compiler.ptx if kind == "ptx" else cuda_compiler.machine_code)(source, architecture)

    def save(self, path: str | os.PathLike, sign: PrivateKey | None = None) -> None:
        """Write everything into one `.qnn` file, signed if a key is given.

        Raises ArtifactError; nothing half-written is left behind.

        sign: an Ed25519 private key: the path of a PEM file, its bytes, or a key of the package cryptography; the
              passphrase of an encrypted one is taken from the environment variable QNN_EXT_SIGN_PASSPHRASE
        """
        if not self._saved_with:
            raise ArtifactError("this engine was loaded from a file; copy that file instead")
        artifact.write(path, self._common, self._saved_with, self._states, sign)

    def __repr__(self) -> str:
        return f"Engine({self.source_name!r}, {len(self.kernels)} kernels, target {target_name(self.target)})"


def load(path: str | os.PathLike, num_threads: int | None = None, verify: PublicKey | None = None) -> Engine:
    """The engine in a `.qnn` file; no frontend and no compiler is needed. Of a file compiled for several targets the
    fastest is taken that this CPU can run. The file holds machine code: load only what you trust.

    verify: an Ed25519 public key, as a PEM file's path or its bytes: a file that was not signed with its private key,
            or altered since, is refused before anything in it is used

    Raises ArtifactError (damaged file, other signature), TargetError (this CPU lacks instructions the file was built
    for).
    """
    with artifact.opened(path, verify) as file:
        common = {key: value for key, value in file.description.items() if key != "variants"}
        variants = file.description["variants"]
        index = _choose(variants)
        _check_memory(running_bytes(file.description, index))
        engine = Engine(common, variants[index], file.states(), lambda: code, num_threads)
        if engine.target["kind"] == "cuda":
            from . import gpu_runtime

            gpu_runtime.load()
            with gpu_runtime.compiling():
                file.keep_kernels(index)
                code = file.code(index)
        else:
            code = file.code(index)
    engine.variants = [dict(variant["target"]) for variant in variants]
    engine.memories = [memory_of(variant) for variant in variants]
    return engine


def _check_memory(wanted: int) -> None:
    """Raise ArtifactError where the machine cannot have so many bytes."""
    here = memory_bytes()
    if here is not None and wanted > here:
        raise ArtifactError(f"the model takes {wanted / 1e9:.1f} GB to run, this machine has {here / 1e9:.1f} GB")


def _runs_here(variant: Mapping[str, Any]) -> bool:
    return can_run(variant) and gpu.can_run(variant["target"])


def _choose(variants: Sequence[dict[str, Any]]) -> int:
    """The first variant this machine can run. Raises TargetError."""
    for index, variant in enumerate(variants):
        if _runs_here(variant):
            return index
    last = variants[-1]
    if len(variants) == 1 or last["target"]["kind"] == "cuda":
        check_runnable(last["features"], last["architecture"])
        gpu.check_runnable(last["target"])
    inside = ", ".join(target_name(variant["target"]) for variant in variants)
    missing = missing_features(last["features"]) or [last["architecture"]]
    raise TargetError(
        f"this CPU can run none of the targets inside ({inside}); even the last needs {', '.join(missing)}. "
        f"Compile again with the target 'native' here, or add {advised_target()}, which any CPU of this kind runs"
    )
