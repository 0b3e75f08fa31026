"""Random graphs of quantized operators: the engine against the interpreter, both against the framework.

python -m tests.differential --frontend tflite --graphs 1000 --seed 0    a thousand graphs, seeds 0 … 999
python -m tests.differential --replay DIR/tflite-57.json                 one failure that --out has written

The exit code is 1 if anything differs, raises or dies. A seed gives the same graph everywhere. MXNet, which no current
Python supports, takes part if the variable QNN_EXT_MXNET_PYTHON names an interpreter that has it, see
qnn_ext.evaluation.mxnet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .campaign import Plan, Tally, recipe_from_json, run
from .judge import FRONTENDS, Task
from .workers import Pool

CPUS = ("avx512_vnni", "avx_vnni", "avx512", "avx2", "x86-64")
GPUS = ("sm_75", "sm_80", "sm_90")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = parse(arguments)
    if options.replay:
        return replay(options)
    plan = Plan(
        frontend=options.frontend,
        graphs=options.graphs,
        seed=options.seed,
        targets=tuple(options.targets),
        gpu=GPUS if options.gpu else (),
        build=options.build,
        every=options.every,
        jobs=options.jobs,
        out=options.out,
    )
    start = time.perf_counter()
    tally = with_progress(plan, quiet=options.json)
    seconds = time.perf_counter() - start
    if options.json:
        facts = {"frontend": plan.frontend, "graphs": plan.graphs, "seed": plan.seed, "wall seconds": round(seconds, 1)}
        print(json.dumps({**facts, **tally.as_json()}, indent=1, default=str))
    else:
        show(plan, tally, seconds)
    return int(bool(tally.failures))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frontend", choices=FRONTENDS, default="tflite")
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph; the others get the next ones")
    parser.add_argument(
        "--targets", nargs="*", default=list(CPUS), help="each graph is built for one of these, in turn"
    )
    parser.add_argument("--build", type=int, default=1, metavar="N", help="build one graph in N (default: all)")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="build one in N of these for all targets")
    parser.add_argument("--gpu", action="store_true", help="also run these on an emulated GPU")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder to write failures to")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of the table")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the recipe in a file written for a failure")
    return parser.parse_args(arguments)


def with_progress(plan: Plan, quiet: bool) -> Tally:
    """Run the plan, with a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty()) as progress:
        bar = progress.add_task(plan.frontend, total=plan.graphs)

        def advance(tally: Tally) -> None:
            counts = ", ".join(f"{count} {kind}" for kind, count in tally.kinds.most_common())
            progress.update(bar, completed=sum(tally.kinds.values()), description=f"{plan.frontend}: {counts}")

        return run(plan, advance)


def show(plan: Plan, tally: Tally, seconds: float) -> None:
    """Counts, and every failure."""
    console = Console()
    speed = plan.graphs / seconds
    counts = ", ".join(f"{count} {kind}" for kind, count in tally.kinds.most_common())
    last = plan.seed + plan.graphs - 1
    console.print(f"{plan.frontend}: seeds {plan.seed} … {last}: {counts}; {seconds:.0f} s, {speed:.1f} graphs/s")
    table = Table("against", "equal", "in part", "exempt by rule", "refused", "differs", "died")
    for against, verdicts in tally.against.items():
        plain = [verdicts[name] for name in ("equal", "equal in part", "refused", "differs")]
        rules, died = verdicts.total() - sum(plain), tally.died_frameworks[against]
        table.add_row(against, *map(str, (*plain[:2], rules, *plain[2:], died)))
    console.print(table)
    for outcome in tally.failures:
        console.print(f"[bold]{outcome.kind}[/bold] {outcome.what}\n  {outcome.recipe}", highlight=False)
        console.print(f"  {outcome.detail.strip()}", highlight=False, markup=False)
    for text, count in tally.refusals.most_common(5):
        console.print(f"refused {count}×: {text}", highlight=False, markup=False)


def replay(options: Any) -> int:
    """Run one failure again with the current code."""
    recipe = recipe_from_json(json.loads(options.replay.read_text())["recipe"])
    with Pool(1) as pool:
        outcome = pool.judge(Task(recipe.frontend, recipe.seed, tuple(options.targets), recipe=recipe))
    print(f"{recipe}\n{outcome.kind} {outcome.what} {outcome.detail}")
    return int(outcome.failed)


if __name__ == "__main__":
    sys.exit(main())
