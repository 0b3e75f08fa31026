"""Writes the conformance data: builds every model, runs LiteRT on it, stores models, inputs and goldens in `data/`.

Usage: python tests/conformance/generate.py [family ...]    (all families by default; needs ai-edge-litert)
"""

from __future__ import annotations

import io
import json
import lzma
import sys
from typing import Any

import numpy as np
from cases import DATA
from tflite_models import FAMILIES
from tflite_models.builder import Spec
from tflite_models.runner import Recording, record


def same_bits(one: np.ndarray, two: np.ndarray) -> bool:
    """Equal shape, dtype and bytes: NaN equals itself, -0.0 is not 0.0."""
    return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()


def stack(trials: list[list[np.ndarray]], index: int) -> np.ndarray:
    """Tensor `index` of every trial, stacked along a new first axis."""
    return np.stack([values[index] for values in trials])


def describe(spec: Spec, recording: Recording, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Adds one case's arrays and returns its index entry."""
    entry: dict[str, Any] = {"name": spec.name, "trials": spec.trials}
    entry["input_count"], entry["output_count"] = len(recording.inputs[0]), len(recording.reference[0])
    arrays[f"{spec.name}/model"] = np.frombuffer(recording.model, dtype=np.uint8)
    for i in range(entry["input_count"]):
        arrays[f"{spec.name}/in{i}"] = stack(recording.inputs, i)
    differs = []
    for o in range(entry["output_count"]):
        reference = arrays[f"{spec.name}/ref{o}"] = stack(recording.reference, o)
        if recording.default_error:
            continue
        default = stack(recording.default, o)
        if not same_bits(reference, default):
            arrays[f"{spec.name}/def{o}"] = default
            differs.append(o)
    if differs:
        entry["default_differs"] = differs
    if recording.reference_kernels != "reference":
        entry["reference_kernels"] = recording.reference_kernels
    if spec.counted_by is not None:
        entry["counted_by"] = spec.counted_by
    if spec.stateful:
        entry["stateful"] = True
    if recording.default_error:
        entry["default_error"] = recording.default_error
    return entry


def condense(refused: dict[str, str], names: set[str]) -> dict[str, str]:
    """One entry OPERATOR/dtype/* where every variant of an operator and dtype is refused for the same reason."""
    result: dict[str, str] = {}
    for name, message in refused.items():
        group = name.rsplit("/", 1)[0] + "/"
        messages = {refused.get(other) for other in names if other.startswith(group)}
        result[f"{group}*" if messages == {message} else name] = message
    return result


def write_family(family: str) -> None:
    """Generates one family: `<family>.json` is the index, `<family>.npz.xz` the arrays."""
    arrays: dict[str, np.ndarray] = {}
    entries: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    seen: set[str] = set()
    for spec in FAMILIES[family]():
        if spec.name in seen:
            raise ValueError(f"two cases are called {spec.name}")
        seen.add(spec.name)
        recording = record(spec)
        if recording.reference_error:
            refused[spec.name] = recording.reference_error
        else:
            entries.append(describe(spec, recording, arrays))
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    DATA.mkdir(exist_ok=True)
    (DATA / f"{family}.npz.xz").write_bytes(lzma.compress(packed.getvalue(), preset=9))
    lines = [f"    {json.dumps(entry)}" for entry in entries]
    text = '{\n  "cases": [\n' + ",\n".join(lines) + '\n  ],\n  "not_allowed": '
    text += json.dumps(condense(refused, seen), indent=4).replace("\n}", "\n  }") + "\n}\n"
    (DATA / f"{family}.json").write_text(text)
    size = (DATA / f"{family}.npz.xz").stat().st_size // 1024
    print(f"{family}: {len(entries)} cases, {len(refused)} refused, {size} KiB")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or FAMILIES:
        write_family(chosen)
