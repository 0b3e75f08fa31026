"""Instruction counts on emulated ARM CPUs: our int8 and float32 against plain float32 and LiteRT. Other load on the
machine does not change them.

    python -m benchmarks.arm [--models resnet50 FILE ...] [--targets rpi4 ...] [--layers] [--json FILE] [--no-litert]

Each convolution and dense layer of a model is counted separately: as int8 with bias and requantize, as float32 with
bias and relu, and as plain float32, which TVM's loops compute; all compiled for the target and one thread. A model's
count is the sum over its layers. The limit of float32 is one instruction for every four products (fmla). The whole int8
model is counted as well, and LiteRT's inference of the same file on the same emulated CPU, with the kernels it chooses
there. `resnet50` means that network's layers; the default is `resnet50` plus the TFLite models of ../shared/models
where that folder exists, otherwise the bundled ones.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

import qnn_ext
from benchmarks.layers import shape_text
from qnn_ext.cli.common import out
from qnn_ext.files.storage import write_text
from tests.arm.count import Counts, counted
from tests.arm.engines import emulated

from . import litert
from .layers import Layer, build, layers_of, resnet50

CPUS = {"rpi3": "cortex-a53", "rpi4": "cortex-a72", "rpi5": "cortex-a76", "graviton3": "max", "armv7": "cortex-a7"}
"""Targets -> QEMU's CPUs."""

DIRECT = "rpi5"
"""A target on which every convolution is one kernel: the others' may be products between Winograd's transforms."""

GOALS = {"rpi3": 1.4, "rpi4": 1.4, "rpi5": 3.0, "graviton3": 5.0, "armv7": 1.4}
"""The goal: how many times fewer instructions int8 takes than plain float32."""

FLOATS = 4
"""Products of float32 in one instruction."""

MODELS = ("kws_ref_model", "vww_96_int8", "mobilenet_v1_0.25_128_quant", "tf2_mobilenet_v2_1.0_224_ptq")
SHARED = Path(__file__).parents[3] / "shared" / "models" / "tflite"
RESNET50 = "resnet50"


@dataclass(frozen=True)
class LayerCount:
    """Instructions of one layer, which occurs `times` in the model. `implementation`: the int8 kernel."""

    shape: str
    times: int
    int8: int
    float32: int
    plain: int
    macs: int
    implementation: str
    float_implementation: str
    mnemonics: dict[str, int]

    @property
    def ratio(self) -> float:
        return self.plain / self.int8

    @property
    def of_limit(self) -> float:
        """The share of float32's instructions that it could not do without."""
        return self.macs / FLOATS / self.float32


@dataclass
class Result:
    """One model on one target. Counts are None where there is nothing to run or it cannot run: `notes` says why."""

    model: str
    target: str
    layers: list[LayerCount] = field(default_factory=list)
    whole: int | None = None
    litert: int | None = None
    litert_mnemonics: dict[str, int] = field(default_factory=dict)
    weight_bytes: int | None = None
    workspace_bytes: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def int8(self) -> int:
        return sum(layer.times * layer.int8 for layer in self.layers)

    @property
    def float32(self) -> int:
        return sum(layer.times * layer.float32 for layer in self.layers)

    @property
    def plain(self) -> int:
        return sum(layer.times * layer.plain for layer in self.layers)

    @property
    def of_limit(self) -> float:
        return sum(layer.times * layer.macs for layer in self.layers) / FLOATS / self.float32

    @property
    def ratio(self) -> float:
        return self.plain / self.int8


class Counting:
    """Counts layers, each once per target."""

    def __init__(self, with_litert: bool) -> None:
        self._layers: dict[tuple[Layer, str], LayerCount] = {}
        self._with_litert = with_litert

    def model(self, name: str, target: str) -> Result:
        """Count a model, or the layers of ResNet-50."""
        result = Result(Path(name).stem, target)
        if name == RESNET50:
            return self._add_layers(result, resnet50())
        engine = qnn_ext.build(qnn_ext.from_tflite(name), target, num_threads=1)
        assert engine._built is not None and engine._built.weights is not None
        result.weight_bytes = int(engine._built.weights.size)
        result.workspace_bytes = engine._variant.program.workspace
        result.whole = run(engine, target).total
        if self._with_litert and target != "armv7":
            try:
                counts = litert.instructions(Path(name), CPUS[target])
                result.litert, result.litert_mnemonics = counts.total, most_common(counts)
            except litert.Unavailable as reason:
                result.notes.append(f"LiteRT: {reason}")
        layers = layers_of(qnn_ext.build(qnn_ext.from_tflite(name), DIRECT, num_threads=1).kernels)
        return self._add_layers(result, layers)

    def _add_layers(self, result: Result, layers: Counter[Layer]) -> Result:
        for layer, times in layers.items():
            key = layer, result.target
            if key not in self._layers:
                self._layers[key] = self._layer(layer, result.target)
            one = self._layers[key]
            result.layers.append(LayerCount(**{**asdict(one), "times": times}))
        return result

    @staticmethod
    def _layer(layer: Layer, target: str) -> LayerCount:
        engines = [build(layer, kind, target) for kind in ("int8", "float32", "plain")]
        int8, float32, plain = (run(engine, target) for engine in engines)
        names = [max(engine.kernels, key=lambda kernel: kernel.macs or 0).implementation for engine in engines[:2]]
        counts = int8.total, float32.total, plain.total, layer.macs
        return LayerCount(shape_text(layer.workload()), 1, *counts, *names, most_common(int8))


def run(engine: qnn_ext.Engine, target: str) -> Counts:
    """The instructions of one run on zeros."""
    emulated(engine, CPUS[target])
    with counted() as counts:
        engine(*(np.zeros(spec.shape, spec.dtype) for spec in engine.inputs))
    return counts[0]


def most_common(counts: Counts) -> dict[str, int]:
    """The most frequently executed instructions."""
    return dict(counts.mnemonics.most_common(10))


# ---- report ------------------------------------------------------------------------------------------------------


def table(results: list[Result]) -> Table:
    """One row per model and target, in thousands of instructions."""
    floats = ("float32", "of limit", "plain float32", "plain/float32")
    columns = ("model", "target", *floats, "int8", "plain/int8", "goal", "whole int8", "LiteRT", "LiteRT/int8")
    grid = Table(*columns, "weights", "workspace", title="Executed instructions, in thousands")
    for r in results:
        goal = GOALS[r.target]
        verdict = f"{goal:.1f} {'met' if r.ratio >= goal else 'missed'}"
        against = f"{r.litert / r.whole:.2f}" if r.litert and r.whole else "–"
        floats = thousands(r.float32), f"{r.of_limit:.0%}", thousands(r.plain), f"{r.plain / r.float32:.2f}"
        counts = *floats, thousands(r.int8), f"{r.ratio:.2f}", verdict, thousands(r.whole)
        grid.add_row(
            r.model,
            r.target,
            *counts,
            thousands(r.litert),
            against,
            *(kilobytes(size) for size in (r.weight_bytes, r.workspace_bytes)),
        )
    return grid


def layer_table(result: Result) -> Table:
    """One row per layer, the most expensive first."""
    title = f"{result.model} on {result.target}, thousands of instructions of each"
    columns = (
        "layer",
        "times",
        "float32",
        "of limit",
        "plain float32",
        "int8",
        "plain/int8",
        "float32 kernel",
        "int8 kernel",
    )
    grid = Table(*columns, title=title)
    for layer in sorted(result.layers, key=lambda layer: -layer.times * layer.int8):
        floats = thousands(layer.float32), f"{layer.of_limit:.0%}", thousands(layer.plain)
        counts = str(layer.times), *floats, thousands(layer.int8), f"{layer.ratio:.2f}"
        grid.add_row(layer.shape, *counts, layer.float_implementation, layer.implementation)
    return grid


def thousands(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e3:,.0f}"


def kilobytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e3:,.0f} KB"


def default_models() -> list[str]:
    """ResNet-50, and the real models or, where those are missing, the bundled ones."""
    real = [SHARED / f"{name}.tflite" for name in MODELS]
    bundled = Path(qnn_ext.__file__).parent / "data"
    found = [path for path in real if path.is_file()] or [bundled / "digits_cnn_int8.tflite"]
    return [*map(str, found), RESNET50]


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Count and report; returns the results as stored in JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arm", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", metavar="FILE", help=f"TFLite models, or {RESNET50}")
    parser.add_argument("--targets", nargs="+", choices=CPUS, default=list(CPUS))
    parser.add_argument("--layers", action="store_true", help="also print a table of the layers of each model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counts to this file")
    parser.add_argument("--no-litert", action="store_true", help="skip LiteRT")
    options = parser.parse_args(arguments)

    console, counting, results = out(), Counting(not options.no_litert), []
    for model in options.models or default_models():
        for target in options.targets:
            results.append(counting.model(model, target))
            if options.json:
                write_text(options.json, json.dumps([to_json(result) for result in results], indent=1) + "\n")
            if options.layers:
                console.print(layer_table(results[-1]))
            for note in results[-1].notes:
                console.print(f"{results[-1].model} on {target}: {note}")
    console.print(table(results))
    return [to_json(result) for result in results]


def to_json(result: Result) -> dict[str, Any]:
    """A result with its totals."""
    return {**asdict(result), "int8": result.int8, "float32": result.float32, "plain": result.plain}


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as reason:  # raised by the tests' emulator where something is missing
        raise SystemExit(str(reason)) from None
