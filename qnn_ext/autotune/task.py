"""Tasks: the distinct products of a model whose kernels have decisions to make, each with its number of occurrences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tvm import IRModule
from tvm.target import Target

from ..compiling.build import TargetLike, qnn_pipeline
from ..compiling.describe import kernels_of
from ..errors import TuningError
from ..module import QnnModule
from ..passes import lower
from ..passes.bodies import with_bodies
from ..targets.backend import threads_of
from ..targets.names import make_target, required_features
from ..topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Workload, candidates
from ..topi_int8.strategy import Implementation

_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (Conv2dWorkload, DenseWorkload, BatchMatmulWorkload)}


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
        return self.kernel, self.workload, tuple(sorted(_frozen(target_key(self.target)).items()))

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
) -> list[Task]:
    """The tasks of a model, those with the most work first.

    module:  an imported model
    target:  as for `qnn_ext.build`
    params:  for compatibility with AutoTVM; a module holds its weights itself
    threads: as `num_threads` of `qnn_ext.build`: a kernel for two threads differs from one for a single thread

    Layers that compute the same workload are one task, with a weight. Kernels without decisions, such as generic
    fallbacks, are left out. Raises TargetError.
    """
    if params:
        raise TuningError("extract_from_program: a QnnModule contains its weights: leave out params")
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
        if any(item.name == name and item.tiles is not None for item in candidates(workload, resolved))
    ]
    return sorted(tasks, key=lambda task: -task.weight * task.gops)


def summary(tasks: Sequence[Task]) -> str:
    """One line: the number of tasks and of layers, by kernel."""
    kernels = Counter(task.kernel for task in tasks)
    return (
        f"{len(tasks)} tasks for {sum(task.weight for task in tasks)} layers, "
        f"{sum(task.weight * task.gops for task in tasks):.2f} GOP: "
        + ", ".join(f"{count} {name}" for name, count in kernels.most_common())
    )


# ---- workloads and targets as JSON has them ----------------------------------------------------------------------


def workload_from(fields: Mapping[str, Any]) -> Workload:
    """A workload from its JSON form: "type" and the fields, lists for tuples. Raises KeyError, TypeError."""
    values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in fields.items()}
    return _TYPES[values.pop("type")](**values)


def workload_to(workload: Workload) -> dict[str, Any]:
    """The inverse of `workload_from`."""
    return {"type": type(workload).__name__, **asdict(workload)}


def target_key(target: Target) -> dict[str, Any]:
    """The properties of a target that determine a kernel's speed: kind, CPU, instruction sets, threads."""
    return {
        "kind": target.kind.name,
        "cpu": str(target.attrs.get("mcpu", "")),
        "features": required_features(target),
        "threads": threads_of(target.attrs),
    }


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
