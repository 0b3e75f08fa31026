"""autotvm.measure: builders and runners with autotvm's arguments; processes and connections are made when measuring."""

from __future__ import annotations

import enum
import os
from typing import Any, NamedTuple

from ... import autotune
from ...autotune.measure import BATCH_SECONDS, Result
from ..absent import refuse
from ..remote import RPCSession, connect_tracker

BUILD_SECONDS, RUN_SECONDS = 60.0, 30.0
"""Least timeouts: AutoTVM's default of 10 seconds was made for smaller compilations."""


class MeasureErrorNo(enum.IntEnum):
    """Why a measurement failed."""

    NO_ERROR = 0
    INSTANTIATION_ERROR = 1
    COMPILE_HOST = 2
    COMPILE_DEVICE = 3
    RUNTIME_DEVICE = 4
    WRONG_ANSWER = 5
    BUILD_TIMEOUT = 6
    RUN_TIMEOUT = 7
    UNKNOWN_ERROR = 8


_NUMBERS = {
    "compile": MeasureErrorNo.COMPILE_HOST,
    "wrong": MeasureErrorNo.WRONG_ANSWER,
    "timeout": MeasureErrorNo.RUN_TIMEOUT,
    "crash": MeasureErrorNo.RUNTIME_DEVICE,
    "run": MeasureErrorNo.RUNTIME_DEVICE,
}


def error_number(error: str) -> MeasureErrorNo:
    """The number of an error of `autotune.Result`."""
    return _NUMBERS.get(error.partition(":")[0], MeasureErrorNo.UNKNOWN_ERROR) if error else MeasureErrorNo.NO_ERROR


class MeasureInput(NamedTuple):
    """What was measured."""

    target: Any
    task: Any
    config: Any


class MeasureResult(NamedTuple):
    """Seconds, or the error in their place."""

    costs: tuple[Any, ...]
    error_no: int
    all_cost: float = 0.0
    timestamp: float = 0.0


def result_of(result: Result) -> MeasureResult:
    """A result in autotvm's form."""
    return MeasureResult((result.error or result.seconds,), int(error_number(result.error)))


class LocalBuilder:
    """Compiles on this machine. Of its arguments, `timeout` (at least a minute) and `n_parallel` count."""

    def __init__(
        self,
        timeout: float = 10,
        n_parallel: int | None = None,
        build_kwargs: Any = None,
        build_func: Any = "default",
        do_fork: bool = False,
        runtime: Any = None,
    ) -> None:
        if build_func == "ndk":
            refuse('LocalBuilder(build_func="ndk")', "kernels are linked for Linux; Android is not supported")
        self.timeout, self.n_parallel = timeout, n_parallel

    def native(self) -> autotune.LocalBuilder:
        return autotune.LocalBuilder(max(self.timeout, BUILD_SECONDS), self.n_parallel)


class LocalRunner:
    """Times on this machine. Every candidate takes turns with the default configuration, so that nothing has to cool
    down; the results of all are checked."""

    def __init__(
        self,
        timeout: float = 10,
        number: int = 4,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.1,
        enable_cpu_cache_flush: bool = False,
        module_loader: Any = None,
    ) -> None:
        self.timeout, self.number, self.repeat = timeout, number, repeat
        self.min_repeat_ms = min_repeat_ms

    def _timing(self) -> dict[str, Any]:
        return {
            "number": None if self.min_repeat_ms else self.number,
            "repeat": self.repeat,
            "min_repeat_ms": self.min_repeat_ms or BATCH_SECONDS * 1e3,
            "timeout": max(self.timeout, RUN_SECONDS),
        }

    def native(self) -> autotune.LocalRunner:
        return autotune.LocalRunner(**self._timing())


class RPCRunner(LocalRunner):
    """Times on servers that report to a tracker; connects when it measures. Raises TuningError then."""

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        timeout: float = 10,
        n_parallel: int | None = None,
        number: int = 4,
        repeat: int = 3,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.1,
        enable_cpu_cache_flush: bool = False,
        module_loader: Any = None,
    ) -> None:
        super().__init__(timeout, number, repeat, min_repeat_ms)
        self.key, self.host, self.port, self.n_parallel = key, host, port, n_parallel

    def native(self) -> autotune.RPCRunner:
        return autotune.RPCRunner(self.key, self.host, self.port, self.n_parallel, **self._timing())


class MeasureOption:
    """A builder and a runner, made at the first measurement and kept for the next tasks."""

    def __init__(self, builder: Any, runner: Any) -> None:
        self.builder, self.runner = builder, runner
        self._native: autotune.MeasureOption | None = None

    def native(self) -> autotune.MeasureOption:
        """The option for qnn_ext.autotune."""
        if self._native is None:
            runner = self.runner.native() if hasattr(self.runner, "native") else self.runner
            builder = self.builder.native() if hasattr(self.builder, "native") else self.builder
            self._native = autotune.MeasureOption(builder, runner)
        return self._native

    def close(self) -> None:
        """End its processes."""
        if self._native is not None:
            self._native.close()
            self._native = None


def measure_option(builder: Any = "local", runner: Any = "local") -> MeasureOption:
    """A builder and a runner; "local": with their defaults."""
    return MeasureOption(
        LocalBuilder() if builder == "local" else builder, LocalRunner() if runner == "local" else runner
    )


def request_remote(
    device_key: str, host: str | None = None, port: int | None = None, priority: int = 1, timeout: float = 60
) -> RPCSession:
    """A session on a server with this key; the tracker is by default TVM_TRACKER_HOST and …_PORT."""
    host = host or os.environ["TVM_TRACKER_HOST"]
    port = port or int(os.environ["TVM_TRACKER_PORT"])
    return connect_tracker(host, port).request(device_key, priority=priority, session_timeout=timeout)
