"""Target strings of TVM's old command-line form, "llvm -mcpu=skylake-avx512", and what they mean to `build`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import tvm

from ..errors import TargetError
from ..targets.backend import THREADS
from ..targets.cpus import ARM_CPUS
from ..targets.cpus import attributes_of as cpu_attributes
from ..targets.families import X86, backend_of_architecture
from ..targets.features import host_cpu
from ..targets.gpus import is_name
from ..targets.names import description_of, make_target, required_features, target_architecture

_KEPT = ("mcpu", "mtriple", "mattr", "mfloat-abi", "arch", "num-cores")
_RENAMED = {"target": "mtriple", "num-cores": THREADS, "mabi": "mfloat-abi"}
_IGNORED = [
    "device",
    "keys",
    "libs",
    "model",
    "tag",
    "opt-level",
    "system-lib",
    "runtime",
    "link-params",
    "executor",
    "fast-math",
    "mfma",
    "unpacked-api",
    "max_num_threads",
    "thread_warp_size",
    "max_shared_memory_per_block",
    "registers_per_block",
    "max_threads_per_block",
]

BOARDS = {
    "rasp3b64": "rpi3",
    "rasp4b64": "rpi4",
    "rk3399": "cortex-a72",
    "ultra96": "cortex-a53",
    "thunderx": "thunderxt88",
}
"""Boards of `tvm.target.arm_cpu` with 64-bit systems -> our names."""

BOARDS_32 = {
    "rasp3b": "cortex-a53",
    "rasp4b": "cortex-a72",
    "pynq": "cortex-a9",
    "beagleai": "cortex-a15",
    "stm32mp1": "cortex-a7",
}
"""Boards of `tvm.target.arm_cpu` with 32-bit systems -> LLVM's name of their CPU."""

GPUS = {
    "1080ti": "sm_61",
    "titanx": "sm_61",
    "p100": "sm_60",
    "tx2": "sm_62",
    "v100": "sm_70",
    "t4": "sm_75",
    "2080ti": "sm_75",
    "a100": "sm_80",
    "3090": "sm_86",
    "h100": "sm_90",
}
"""Models of `tvm.target.cuda` -> architectures."""


class Target:
    """A target as Relay-era scripts make and pass it: `Target("llvm -mcpu=…")`, a dict, or another target.

    attrs: the attributes TVM 0.27 takes, as a dict with "kind"
    """

    _scopes: tuple[Target, ...] = ()

    def __init__(self, target: Any, host: Any = None) -> None:
        self._text = target if isinstance(target, str) else str(target)
        self.value = attributes_of(target)
        self.host = host

    @property
    def attrs(self) -> dict[str, Any]:
        return dict(self.value) if isinstance(self.value, dict) else {"kind": self.kind.name, "mcpu": self.value}

    @property
    def kind(self) -> SimpleNamespace:
        gpu = is_name(self.value) if isinstance(self.value, str) else self.value["kind"] == "cuda"
        return SimpleNamespace(name="cuda" if gpu else self.value["kind"] if isinstance(self.value, dict) else "llvm")

    @property
    def keys(self) -> list[str]:
        return ["cuda", "gpu"] if self.kind.name == "cuda" else ["cpu"]

    @property
    def mcpu(self) -> str:
        return str(self.attrs.get("mcpu", ""))

    @property
    def model(self) -> str:
        return "unknown"

    @property
    def device_name(self) -> str:
        return ""

    @classmethod
    def current(cls, allow_none: bool = True) -> Target | None:
        """The target of the innermost `with target:`."""
        if not cls._scopes and not allow_none:
            raise ValueError("there is no current target: enter one using `with target:`")
        return cls._scopes[-1] if cls._scopes else None

    def __enter__(self) -> Target:
        Target._scopes = (*Target._scopes, self)
        return self

    def __exit__(self, *_: Any) -> None:
        Target._scopes = Target._scopes[:-1]

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Target({self._text!r})"


def arm_cpu(model: str = "unknown", options: Any = None) -> Target:
    """tvm.target.arm_cpu: a board by name, for its 64-bit system if the name says so, else as in Relay for that of 32
    bits, with a warning. Raises TargetError for boards that are not known."""
    if model in BOARDS_32:
        other = f'; its 64-bit system is tvm.target.arm_cpu("{model}64")' if f"{model}64" in BOARDS else ""
        warnings.warn(
            f'arm_cpu("{model}") is a 32-bit system, for which TVM has no Python: models are built, but run from C and '
            f"not over RPC, see README.md, ARM boards{other}",
            UserWarning,
            stacklevel=2,
        )
        return Target({**cpu_attributes("armv7"), "mcpu": BOARDS_32[model]})
    name = BOARDS.get(model, model)
    if name not in ARM_CPUS and model not in BOARDS:
        known = ", ".join(map(repr, (*BOARDS, *BOARDS_32)))
        raise TargetError(
            f"arm_cpu: the board {model!r} is not known, only {known}; name its CPU: "
            "tvm.target.Target('llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a73')"
        )
    return Target(name)


def cuda(model: str = "unknown", arch: str | None = None, options: Any = None) -> Target:
    """tvm.target.cuda: a GPU by architecture or model; with neither, this machine's."""
    return Target(arch or GPUS.get(model, "cuda"))


def attributes_of(target: Any) -> Any:
    """What `make_target` takes: a name of ours, or a dict."""
    if isinstance(target, Target):
        return target.value
    if isinstance(target, tvm.target.Target):
        return description_of(target)
    if isinstance(target, Mapping):
        return dict(target) if "kind" in target else attributes_of(_heterogeneous(list(target.values())))
    if isinstance(target, Sequence) and not isinstance(target, str):
        return attributes_of(_heterogeneous(list(target)))
    if not isinstance(target, str) or not target.strip():
        raise TargetError(f"a target must be a string, a dict or a Target, found {target!r}")
    kind, *options = shlex.split(target)
    if not options and kind not in ("llvm", "cuda"):
        return kind  # a name of ours, or a kind that `make_target` refuses
    attributes: dict[str, Any] = {"kind": kind}
    for name, value in _options(target, options):
        name = _RENAMED.get(name, name)
        if name in (*_KEPT, THREADS):
            attributes[name] = value.split(",") if name == "mattr" else int(value) if name == THREADS else value
        elif name == "device" and value == "arm_cpu":
            attributes.setdefault("arm", True)
        elif name not in _IGNORED:
            raise TargetError(f"target {target!r}: there is no option -{name}")
    return _completed(target, attributes)


def _options(target: str, words: list[str]) -> list[tuple[str, str]]:
    """The options of a target string, as -name=value or -name value."""
    found, index = [], 0
    while index < len(words):
        word = words[index]
        if not word.startswith("-"):
            raise TargetError(f"target {target!r}: {word!r} is no option; options begin with a dash")
        name, separator, value = word.lstrip("-").partition("=")
        if not separator and index + 1 < len(words) and not words[index + 1].startswith("-"):
            index += 1
            value = words[index]
        found.append((name, value))
        index += 1
    return found


def _completed(target: str, attributes: dict[str, Any]) -> dict[str, Any]:
    if attributes.pop("arm", False) and "mtriple" not in attributes:
        architecture = target_architecture(make_target({"kind": "llvm"}))
        if architecture not in ("aarch64", "arm"):
            raise TargetError(
                f"target {target!r}: this machine is no ARM; name the board's architecture with "
                "-mtriple=aarch64-linux-gnu"
            )
    return attributes


def _heterogeneous(targets: list[Any]) -> Any:
    """The device of a model that was split over devices: it now runs on one of them as a whole."""
    if not targets:
        raise TargetError("there is no target to build for: give at least one")
    return next((one for one in targets if "cuda" in str(one)), targets[0])


def resolved(target: Any) -> Any:
    """What `qnn_ext.build` takes for an old target; None: that of `with target:`, else "llvm"."""
    if target is None:
        target = Target.current() or "llvm"
    value = attributes_of(target)
    if value == {"kind": "llvm"}:
        _say_once()
    return value


_said: list[bool] = []


def _say_once() -> None:
    """ "llvm" alone is code for the oldest CPU of its kind, as it was in Relay; here that is some 20 times slower."""
    features = set(required_features(make_target("native"))) - set(required_features(make_target({"kind": "llvm"})))
    if features and not _said:
        _said.append(True)
        warnings.warn(
            f'target "llvm" is any CPU of this architecture: it leaves out {len(features)} instruction sets of this '
            f'one. "llvm -mcpu={host_cpu()}" is this machine, and several times faster',
            UserWarning,
            stacklevel=4,
        )


def compute_dtype(target: Any) -> str:
    """The arithmetic of Relay's requantize where nothing says: float32 on x86 with SSE 4.1, else int64."""
    made = make_target(target)
    x86 = backend_of_architecture(target_architecture(made)) is X86 and made.kind.name == "llvm"
    return "float32" if x86 and "sse4.1" in required_features(made) else "int64"
