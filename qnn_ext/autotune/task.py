"""Tasks: the distinct products of a model whose kernels have decisions to make, each with its number of occurrences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import IRModule
from tvm.target import Target

from ..compiling.build import TargetLike, qnn_pipeline
from ..compiling.describe import kernels_of
from ..errors import TuningError
from ..module import QnnModule
from ..passes import lower
from ..passes.bodies import with_bodies
from ..quantize.config import plain_operator
from ..quantize.stages import bind_parameters
from ..targets.backend import threads_of
from ..targets.names import make_target, required_features
from ..topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Workload, candidates
from ..topi_int8.strategy import Implementation
from ..topi_int8.workload import workload_from


@dataclass(frozen=True)
class Task:
    """One product to tune: every layer that computes it gets the same kernel.

    workload: what is computed
    target:   for which CPU and how many threads
    kernel:   name of the implementation
    weight:   number of layers of the model that compute it
    layers:   their names
    """

    workload: Workload
    target: Target = field(hash=False)
    kernel: str
    weight: int = 1
    layers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """One short line: operator and sizes."""
        return describe(self.workload)

    @property
    def gops(self) -> float:
        """Billions of operations per execution; a multiply-accumulate counts as two."""
        return 2 * self.workload.macs / 1e9

    @property
    def implementation(self) -> Implementation:
        """The implementation named `kernel`. Raises TuningError if the target does not have it (any more)."""
        for item in candidates(self.workload, self.target):
            if item.name == self.kernel:
                return item
        raise TuningError(f"{self.name}: there is no kernel {self.kernel!r} for this target; extract the tasks again")

    def key(self) -> tuple[Any, ...]:
        """What a record must share with the task to apply to it."""
        return self.kernel, self.workload, record_target(self.target)

    def __str__(self) -> str:
        return f"{self.name} ×{self.weight}, {self.gops:.3f} GOP, {self.kernel}"


def make_task(workload: Workload, target: Target) -> Task | None:
    """The task of one workload with the kernel that `build` would choose; None if that has nothing to decide."""
    best = candidates(workload, target)[0]
    return Task(workload, target, best.name) if best.tiles is not None else None


def extract_from_program(
    module: QnnModule,
    target: TargetLike = "native",
    params: Mapping[str, Any] | None = None,
    threads: int | None = None,
    ops: Sequence[str] | None = None,
) -> list[Task]:
    """The tasks of a model, those with the most work first.

    module:  an imported model
    target:  as for `qnn_ext.build`
    params:  values of inputs that are weights: name → array
    threads: as `num_threads` of `qnn_ext.build`: a kernel for two threads differs from one for a single thread
    ops:     only of these operators: "conv2d", "dense" or "batch_matmul", with or without a dialect before it

    Layers that compute the same workload are one task, with a weight. Kernels without decisions, such as generic
    fallbacks, are left out. Raises TargetError, TuningError for ops without kernels to tune, and QuantizationError for
    params that do not fit.
    """
    if params:
        module = bind_parameters(module, params)
    kinds = None if ops is None else {_workload_kind(name) for name in ops}
    resolved = make_target(target, threads)

    def lowered_of(mod: IRModule) -> IRModule:
        return with_bodies(lower(qnn_pipeline(mod, resolved), resolved), lowered_of)

    lowered = lowered_of(module.ir)
    layers: dict[tuple[Workload, str], list[str]] = {}
    for kernel in kernels_of(lowered):
        if kernel.workload:
            layers.setdefault((workload_from(kernel.workload), kernel.implementation), []).append(kernel.layer)
    tasks = [
        Task(workload, resolved, name, len(names), tuple(names))
        for (workload, name), names in layers.items()
        if kinds is None or type(workload) in kinds
        if any(item.name == name and item.tiles is not None for item in candidates(workload, resolved))
    ]
    return sorted(tasks, key=lambda task: -task.weight * task.gops)


_KINDS = {"conv": Conv2dWorkload, "dense": DenseWorkload, "batch_matmul": BatchMatmulWorkload}


def _workload_kind(operator: str) -> type[Workload]:
    """The workload of an operator's products. Raises TuningError for operators without."""
    name = plain_operator(operator)
    kind = _KINDS.get("conv" if name.startswith("conv") else name)
    if kind is None:
        raise TuningError(f"ops: {operator!r} has no kernels to tune; conv2d, dense and batch_matmul have")
    return kind


def summary(tasks: Sequence[Task]) -> str:
    """One line: the number of tasks and of layers, by kernel."""
    kernels = Counter(task.kernel for task in tasks)
    return (
        f"{len(tasks)} tasks for {sum(task.weight for task in tasks)} layers, "
        f"{sum(task.weight * task.gops for task in tasks):.2f} GOP: "
        + ", ".join(f"{count} {name}" for name, count in kernels.most_common())
    )


# ---- workloads and targets as JSON has them ----------------------------------------------------------------------


def target_key(target: Target) -> dict[str, Any]:
    """The properties of a target that determine a kernel's speed: kind, CPU, instruction sets, threads."""
    return {
        "kind": target.kind.name,
        "cpu": str(target.attrs.get("mcpu", "")),
        "features": required_features(target),
        "threads": threads_of(target.attrs),
    }


def record_target(target: Target) -> tuple[Any, ...]:
    """The part of a record's key that says for which target it is."""
    return tuple(sorted(_frozen(target_key(target)).items()))


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def describe(workload: Workload) -> str:
    """One short line: operator and sizes."""
    if isinstance(workload, Conv2dWorkload):
        kernel = "×".join(map(str, workload.kernel))
        text = f"conv {workload.height}×{workload.width}×{workload.in_channels}→{workload.out_channels} {kernel}"
        text += f" /{workload.strides[0]}" if workload.strides != (1, 1) else ""
        text += f" dilated {workload.dilation[0]}" if workload.dilation != (1, 1) else ""
        text += f" groups {workload.groups}" if workload.groups > 1 else ""
        return text + (f" batch {workload.batch}" if workload.batch > 1 else "")
    if isinstance(workload, BatchMatmulWorkload):
        return f"batch_matmul {workload.batch}×{workload.m}×{workload.k}×{workload.n}"
    return f"dense {workload.m}×{workload.k}×{workload.n}"
