"""The register tile that the model of costs chooses, against the best of all legal ones, per product of some models.

    python -m benchmarks.tiles [MODEL ...] [--json FILE] [--markdown FILE] [--within 1.6] [--only SUBSTRING]

Every distinct workload of the models is built alone, with bias and requantize behind it, once with each legal tile that
the model predicts to be within a factor of the best, and all are timed in turns on one thread: the minimum over many
short batches counts, so that other processes disturb little. Without models: the workloads in `workloads.json`, those
of ResNet-50, MobileNetV1, V2 and V3, DeepLab, BERT and ViT. `--save-workloads FILE` writes such a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

WORKLOADS = Path(__file__).with_name("workloads.json")
BATCH_SECONDS = 2e-4  # shorter than a time slice
ROUNDS = 6
CANDIDATES = 24  # tiles timed in turns; their code is compiled together


@dataclass
class Measured:
    """Seconds of one workload by tile, (rows, columns, blocks), in the order of predicted cost: the default first."""

    workload: Any
    seconds: dict[tuple[int, int, int], float]

    @property
    def default(self) -> tuple[int, int, int]:
        return next(iter(self.seconds))

    @property
    def best(self) -> tuple[int, int, int]:
        return min(self.seconds, key=lambda tile: self.seconds[tile])

    @property
    def ratio(self) -> float:
        """The default's time over the best one's."""
        return self.seconds[self.default] / self.seconds[self.best]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": workload_to(self.workload),
            "tiles": [[*tile, value] for tile, value in self.seconds.items()],
        }

    def gops(self, tile: tuple[int, int, int]) -> float:
        return 2 * self.workload.macs / self.seconds[tile] / 1e9


# ---- workloads ---------------------------------------------------------------------------------------------------


def workloads_of(path: Path, cpu: str) -> list[Any]:
    """The distinct products of a model for which the target's kernels have tiles."""
    from qnn_ext.build import qnn_pipeline
    from qnn_ext.cli.formats import ImportOptions, read_module, recognize
    from qnn_ext.kernels import kernels_of
    from qnn_ext.passes import lower
    from qnn_ext.target import make_target
    from qnn_ext.topi_int8 import select

    target = make_target(cpu, 1)
    module = read_module(path, recognize(path), ImportOptions())
    kernels = kernels_of(lower(qnn_pipeline(module.ir, target), target))
    found = dict.fromkeys(workload_from(kernel.workload) for kernel in kernels if kernel.workload)
    return [workload for workload in found if select(workload, target).tiles is not None]


def workload_from(fields: dict[str, Any]) -> Any:
    """A workload from what JSON keeps of it: "type" and the fields, lists for tuples."""
    from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload

    types = {kind.__name__: kind for kind in (Conv2dWorkload, DenseWorkload, BatchMatmulWorkload)}
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return types[values.pop("type")](**values)


def workload_to(workload: Any) -> dict[str, Any]:
    """The inverse of `workload_from`."""
    return {"type": type(workload).__name__, **asdict(workload)}


def describe(workload: Any) -> str:
    """One short line: operator and sizes."""
    if hasattr(workload, "kernel"):
        kernel = "×".join(map(str, workload.kernel))
        text = f"conv {workload.height}×{workload.width}×{workload.in_channels}→{workload.out_channels} {kernel}"
        text += f" /{workload.strides[0]}" if workload.strides != (1, 1) else ""
        text += f" dilated {workload.dilation[0]}" if workload.dilation != (1, 1) else ""
        text += f" groups {workload.groups}" if workload.groups > 1 else ""
        return text + (f" batch {workload.batch}" if workload.batch > 1 else "")
    if hasattr(workload, "batch"):
        return f"batch_matmul {workload.batch}×{workload.m}×{workload.k}×{workload.n}"
    return f"dense {workload.m}×{workload.k}×{workload.n}"


# ---- measurement -------------------------------------------------------------------------------------------------


def measure(workload: Any, cpu: str, within: float, rounds: int = ROUNDS) -> Measured | None:
    """Time the legal tiles of a workload; None where its kernel has none."""
    from qnn_ext.target import make_target
    from qnn_ext.topi_int8 import select

    target = make_target(cpu, 1)
    implementation = select(workload, target)
    if implementation.tiles is None:
        return None
    costs = implementation.tiles(workload)
    lowest = min(costs.values())
    kept = [tile for tile, cost in costs.items() if cost <= within * lowest]
    seconds: dict[Any, float] = {}
    for start in range(0, len(kept), CANDIDATES):
        group = kept[start : start + CANDIDATES]
        # The default is in every group, so that the groups' times compare.
        seconds |= _race(workload, target, [*dict.fromkeys([kept[0], *group])], rounds, seconds.get(kept[0]))
    return Measured(workload, {(t.rows, t.columns, t.blocks): seconds[t] for t in kept})


def _race(workload: Any, target: Any, tiles: Sequence[Any], rounds: int, reference: float | None) -> dict[Any, float]:
    """Minimum seconds of each tile, timed in turns; scaled so that the first tile takes `reference`, if given."""
    import tvm

    from qnn_ext.topi_int8 import select

    implementation = select(workload, target)
    functions, arguments = {}, []
    rng = np.random.default_rng(0)
    shared: list[Any] = []
    for index, tile in enumerate(tiles):
        function, arrays = build_kernel(workload, target, implementation.with_tile(tile), rng)
        functions[f"tile{index}"] = function.with_attr("global_symbol", f"tile{index}")
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        shared = shared or tensors
        arguments.append([shared[0], *tensors[1:-1], shared[-1]])
    executable = tvm.compile(tvm.IRModule(functions), target=target).jit()
    best = [float("inf")] * len(tiles)
    counts = []
    for index, args in enumerate(arguments):
        once = executable.time_evaluator(f"tile{index}", tvm.cpu(), number=1, repeat=3)(*args).min
        counts.append(max(1, int(BATCH_SECONDS / max(once, 1e-7))))
    racing = list(range(len(tiles)))
    for turn in range(4 * rounds):
        if turn == rounds:  # the rest of the time for those that may win, and the default
            racing = [index for index in racing if index == 0 or best[index] < 1.15 * min(best)]
        for index in racing:
            timer = executable.time_evaluator(f"tile{index}", tvm.cpu(), number=counts[index], repeat=4)
            best[index] = min(best[index], timer(*arguments[index]).min)
    scale = reference / best[0] if reference else 1.0
    return {tile: value * scale for tile, value in zip(tiles, best, strict=True)}


def build_kernel(workload: Any, target: Any, implementation: Any, rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """A serial PrimFunc of the product with bias and requantize to uint8, and arrays for its parameters."""
    from tvm import te
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule

    from qnn_ext.topi_int8.generic.elementwise import Constants, Operand, elementwise
    from qnn_ext.topi_int8.threads import serialize

    shapes = operand_shapes(workload)
    dtypes = (workload.data_dtype, workload.weight_dtype)
    x, w = (_random(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    if implementation.pack_weight is not None:
        w = implementation.pack_weight(workload, w)
    inputs = [te.placeholder(a.shape, str(a.dtype), f"operand{i}") for i, a in enumerate((x, w))]
    acc = implementation.compute(workload, *inputs, 3)
    shape = [int(size) for size in acc.shape]
    constants = Constants()
    bias = Operand(None, rng.integers(-1000, 1000, shape[-1], dtype=np.int32))
    biased = elementwise("add", [Operand(acc, None), bias], {}, shape, constants)
    # a scale that spreads the accumulators over the output's range
    scale = (rng.random(shape[-1], dtype=np.float32) + 1) / np.float32(100 * np.sqrt(workload.macs / np.prod(shape)))
    parameters = [np.float32(scale), np.int32(0), np.float32(1.0), np.int32(128)]
    rule = {"axis": -1, "rounding": "TONEAREST_EVEN", "compute_dtype": "float32", "out_dtype": "uint8"}
    operands = [Operand(biased, None), *(Operand(None, np.asarray(value)) for value in parameters)]
    out = elementwise("qnn.requantize", operands, rule, shape, constants)
    sch = Schedule(te.create_prim_func([*inputs, *constants.placeholders, out]))
    implementation.schedule(sch, workload, target)
    module = serialize(IRModule({"main": sch.mod["main"]}))
    return module["main"], [x, w, *constants.arrays, np.zeros(shape, "uint8")]


def operand_shapes(workload: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of both operands as a model holds them."""
    if hasattr(workload, "kernel"):
        weight = (workload.out_channels, *workload.kernel, workload.in_channels // workload.groups)
        return (workload.batch, workload.height, workload.width, workload.in_channels), weight
    leading = (workload.batch,) if hasattr(workload, "batch") else ()
    return (*leading, workload.m, workload.k), (*leading, workload.n, workload.k)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


# ---- output ------------------------------------------------------------------------------------------------------


def table(measured: Iterable[Measured]) -> str:
    """Markdown: one line per workload."""
    lines = ["| workload | default | GOP/s | best | GOP/s | ratio |", "|---|---|---|---|---|---|"]
    for item in measured:
        default, best = ("×".join(map(str, tile)) for tile in (item.default, item.best))
        lines.append(
            f"| {describe(item.workload)} | {default} | {item.gops(item.default):.0f} "
            f"| {best} | {item.gops(item.best):.0f} | {item.ratio:.2f} |"
        )
    return "\n".join(lines)


def summary(measured: Sequence[Measured]) -> str:
    """How many defaults are within 10 % of the best, the worst, and the cost over all workloads together."""
    close = sum(item.ratio <= 1.1 for item in measured)
    worst = max(measured, key=lambda item: item.ratio)
    defaults, bests = (sum(item.seconds[getattr(item, name)] for item in measured) for name in ("default", "best"))
    return (
        f"{close} of {len(measured)} defaults within 10 % of the best tile; "
        f"worst {worst.ratio:.2f} ({describe(worst.workload)}); all together {defaults / bests:.3f}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--cpu", default="native", help="target to build for; this machine must run its code")
    parser.add_argument("--within", type=float, default=1.6, help="time tiles up to this factor of the predicted best")
    parser.add_argument("--only", default="", help="only workloads whose description contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--save-workloads", type=Path, metavar="FILE", help="only write the models' workloads")
    options = parser.parse_args(argv)
    os.environ.setdefault("TVM_NUM_THREADS", "1")

    if options.models:
        found = [workload for path in options.models for workload in workloads_of(path, options.cpu)]
    else:
        found = [workload_from(fields) for fields in json.loads(WORKLOADS.read_text())]
    found = [workload for workload in dict.fromkeys(found) if options.only in describe(workload)]
    if options.save_workloads:
        options.save_workloads.write_text(
            "[\n" + ",\n".join(json.dumps(workload_to(workload)) for workload in found) + "\n]\n"
        )
        return 0
    measured: list[Measured] = []
    for workload in found:
        item = measure(workload, options.cpu, options.within, options.rounds)
        if item is not None:
            measured.append(item)
            print(table([item]).splitlines()[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps([item.record() for item in measured], indent=1) + "\n")
    print(summary(measured))
    if options.markdown:
        options.markdown.write_text(f"{table(measured)}\n\n{summary(measured)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
