"""autotvm.task: the products of a model whose kernels can be tuned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ...autotune import Space, make_task, space_of
from ...autotune import Task as NativeTask
from ...autotune import extract_from_program as native_tasks
from ...errors import TuningWarning
from ...quantize.config import plain_operator
from ...targets.names import make_target
from ...topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload
from ..absent import refuse
from ..expressions import Op
from ..modules import module_of
from ..targets import compute_dtype, resolved


class ConfigEntity:
    """One configuration: its index in the space, and what it is."""

    def __init__(self, index: int, configuration: Any) -> None:
        self.index, self.configuration = index, configuration

    def __repr__(self) -> str:
        return f"{self.configuration},{self.index}"


class ConfigSpace:
    """All configurations of a task, those of least predicted cost first."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def __len__(self) -> int:
        return len(self._space)

    def get(self, index: int) -> ConfigEntity:
        return ConfigEntity(index, self._space.configurations[index])

    def index_of(self, configuration: Any) -> int:
        """The position of a configuration; −1 if it is not legal any more."""
        found = self._space.configurations
        return found.index(configuration) if configuration in found else -1


class Task:
    """A product to tune."""

    def __init__(self, native: NativeTask) -> None:
        self.native = native
        self.name, self.target, self.target_host = native.kernel, native.target, None
        self.args: tuple[Any, ...] = (native.workload,)
        self.kwargs: dict[str, Any] = {}
        self.workload = (native.kernel, native.workload)
        self.config_space = ConfigSpace(space_of(native))

    @property
    def flop(self) -> float:
        """Operations of one execution."""
        return self.native.gops * 1e9

    def instantiate(self, config: Any) -> None:
        refuse("task.instantiate", "qnn_ext.build makes the schedule of a kernel; engine.source() shows it")

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, {self.native})"


def extract_from_program(
    mod: Any,
    params: Mapping[str, Any] | None = None,
    target: Any = None,
    target_host: Any = None,
    ops: Sequence[Op | str] | None = None,
) -> list[Task]:
    """The tasks of a model, those with the most work first.

    ops: only those of these operators: "nn.conv2d", "nn.dense", "nn.batch_matmul"; of qnn's alike

    A model without tasks, such as a float model for a CPU without fused multiply-adds, has a warning. Raises
    TargetError.
    """
    attributes = resolved(target)
    module = module_of(mod).model(params, compute_dtype(attributes))
    names = None if ops is None else [op if isinstance(op, str) else op.name for op in ops]
    tuned = None if names is None else [name for name in names if _is_product(plain_operator(name))]
    tasks = native_tasks(module, attributes, ops=tuned)
    if not tasks:
        warnings.warn(
            "the model has no products of these operators to tune for this target; a float model has some on x86 with "
            "AVX2 and FMA, on other CPUs once it is quantized, with relay.quantize",
            TuningWarning,
            stacklevel=2,
        )
    return [Task(task) for task in tasks]


def extract_from_multiple_program(
    mods: Sequence[Any],
    params: Sequence[Mapping[str, Any] | None],
    target: Any = None,
    target_host: Any = None,
    ops: Sequence[Op | str] | None = None,
) -> list[Task]:
    """The tasks of several models, each once."""
    found: dict[Any, Task] = {}
    for mod, given in zip(mods, params, strict=True):
        for task in extract_from_program(mod, given, target, target_host, ops):
            found.setdefault(task.native.key(), task)
    return list(found.values())


def _is_product(name: str) -> bool:
    return name.startswith("conv") or name in ("dense", "batch_matmul")


def create(task_name: str, args: Sequence[Any], target: Any = None, target_host: Any = None) -> Task:
    """The task of one workload of qnn_ext.topi_int8. Templates of AutoTVM by name raise NotHonouredError."""
    if len(args) == 1 and isinstance(args[0], (Conv2dWorkload, DenseWorkload, BatchMatmulWorkload)):
        native = make_task(args[0], make_target(resolved(target)))
        if native is not None:
            return Task(native)
    refuse(f"autotvm.task.create({task_name!r}, …)", "take tasks from autotvm.task.extract_from_program")


def template(task_name: str, func: Any = None) -> Any:
    """Raises NotHonouredError: there are no templates."""
    refuse("autotvm.template", "te schedules are gone from TVM; a kernel is an implementation in qnn_ext.topi_int8")


def get_config() -> Any:
    """Raises NotHonouredError: there are no templates to ask for their configuration."""
    refuse("autotvm.get_config", "te schedules are gone from TVM; autotune.space_of(task) has the configurations")
