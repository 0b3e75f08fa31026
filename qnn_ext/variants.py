"""What is told of a model compiled for one target: a name for the target, and the memory the model takes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .host import BASELINES, architecture_name


@dataclass(frozen=True)
class Memory:
    """Bytes that a model takes while it runs.

    weights:      all constants as the kernels read them: packed, and widened where the target's instructions want that
    feature_maps: what inputs, activations and scratch buffers take at the same time at most

    In TVM's virtual machine neither is known ahead: constants that kernels share count for each of them, and feature
    maps are the most that a single kernel reads and writes.
    """

    weights: int
    feature_maps: int


def memory_of(variant: Mapping[str, Any]) -> Memory:
    """The memory of one of the "variants" in a `.qnn` file's description."""
    kernels, program = variant["kernels"], variant["program"]
    if program:
        return Memory(program["weights"], program["workspace"])
    return Memory(sum(k["weight_bytes"] for k in kernels), max((k["data_bytes"] for k in kernels), default=0))


def target_name(target: Mapping[str, Any]) -> str:
    """A target as a few letters: LLVM's name of the CPU, "aarch64" or "armv7" for any of an architecture, "sm_80"."""
    if target.get("kind", "llvm") != "llvm":
        return str(target.get("arch", target["kind"]))
    cpu = str(target.get("mcpu", "generic"))
    architecture = architecture_name(str(target.get("mtriple", "")).split("-")[0])
    return BASELINES.get(architecture, cpu) if cpu == "generic" else cpu
