"""python -m tests.fuzz: import damaged model files, run some of them, report failures."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import seeds
from .cases import Case, Corpus
from .check import BAD, GOOD, REFUSED, REFUSED_LATER, Verdict
from .findings import Finding, Findings, settle, write
from .formats import INSIDE, NAMES, find
from .pool import Pool, Single
from .worker import Settings


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--format",
        required=True,
        help=f"{', '.join(NAMES)}; pt2{INSIDE}, torchscript{INSIDE}: in the fuzzer's process instead of the one that "
        "from_pytorch starts for each file; or module:attribute of a Format",
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no file after this many seconds")
    parser.add_argument("--files", type=int, help="number of files, however long they take")
    parser.add_argument("--jobs", type=int, default=1, help="number of child processes")
    parser.add_argument("--seed", type=int, default=0, help="the same seed and format give the same files")
    parser.add_argument("--first", type=int, default=0, help="number of the first file, to continue where a run ended")
    parser.add_argument("--run-every", type=int, help="build and run every Nth file if it is accepted; 0: none")
    parser.add_argument("--corpus", type=Path, help="folder of files to damage instead of the built-in ones")
    parser.add_argument("--out", type=Path, help="folder to copy failing files to")
    parser.add_argument("--timeout", type=float, default=20.0, help="limit of CPU time for a file, in seconds")
    parser.add_argument("--memory", type=float, default=2.0, help="limit of address space for a file, in GiB")
    parser.add_argument("--check", type=Path, nargs="+", metavar="FILE", help="only check these files, undamaged")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args(argv)
    if options.check is None and options.files is None and math.isinf(options.seconds):
        parser.error("give a limit: --seconds N or --files N")
    return options


def main(argv: list[str] | None = None) -> int:
    """Returns 1 if something failed."""
    options = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="qnn-fuzz-") as scratch:
        folder = options.corpus or Path(scratch)
        if options.check:
            for number, path in enumerate(options.check):
                Path(scratch, str(number)).write_bytes(path.read_bytes())
            folder = Path(scratch)
        elif not options.corpus:
            seeds.write_in_child(options.format, folder)
        settings = Settings(
            format=options.format,
            corpus=str(folder.resolve()),
            seed=options.seed,
            run_every=find(options.format).run_every if options.run_every is None else options.run_every,
            seconds=options.timeout,
            memory=int(options.memory * (1 << 30)),
        )
        return check_files(options, settings) if options.check else fuzz(options, settings)


def check_files(options: argparse.Namespace, settings: Settings) -> int:
    """Each file unchanged, in its own process."""
    single, failed = Single(replace(settings, warm=False)), False
    for number, path in enumerate(options.check):
        verdict = single.check(Case(str(number), (), run=True), fresh=True)
        failed |= verdict.outcome in BAD
        print(f"{path}: {verdict.outcome}{f': {verdict.detail}' * bool(verdict.detail)}", file=sys.stdout)
    single.close()
    return int(failed)


def fuzz(options: argparse.Namespace, settings: Settings) -> int:
    """Run, confirm and minimize findings, report."""
    form, corpus = find(options.format), Corpus(Path(settings.corpus))
    console = Console(stderr=True)
    counts: Counter[str] = Counter()
    refusing: Counter[str] = Counter()
    findings, last = Findings(), None if options.files is None else options.first + options.files
    begin = time.monotonic()
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(options.format, total=None)
        try:
            for result in Pool(settings, options.jobs).results(options.first, last, begin + options.seconds):
                counts[result.verdict.outcome] += 1
                if result.verdict.outcome in (REFUSED, REFUSED_LATER):
                    refusing[result.verdict.stack] += 1
                if result.verdict.outcome in BAD:
                    findings.add(corpus.case(form, settings.seed, result.number, settings.run_every), result.verdict)
                if counts.total() % 50 == 0:
                    counted = ", ".join(f"{count} {name}" for name, count in counts.most_common())
                    progress.update(task, description=f"{options.format}: {counted}; {len(findings.by_key)} findings")
        finally:  # findings up to Ctrl-C are not lost
            seconds = time.monotonic() - begin
            single = Single(settings)
            for finding in findings.by_key.values():
                progress.update(task, description=f"{options.format}: minimizing {finding.name()}")
                settle(finding, single.check, lambda case: single.check(case, fresh=True))
                if options.out:
                    write(finding, form, corpus, options.format, options.out)
            single.close()
            report(options, settings.run_every, counts, refusing, list(findings.by_key.values()), seconds, console)
    return int(bool(findings.by_key))


def report(
    options: argparse.Namespace,
    run_every: int,
    counts: Counter[str],
    refusing: Counter[str],
    findings: list[Finding],
    seconds: float,
    console: Console,
) -> None:
    """Counts of all outcomes, the source files with the most refusals, then the findings."""
    total = counts.total()
    rate = total / seconds / options.jobs if seconds else 0.0
    if options.json:
        summary: dict[str, Any] = {
            "format": options.format, "seed": options.seed, "first": options.first, "files": total,
            "run_every": run_every, "seconds": round(seconds, 1), "files_per_second_and_job": round(rate, 1),
            "outcomes": {name: counts[name] for name in (*GOOD, *BAD)},
            "refused_by": dict(refusing.most_common()),
            "findings": [_described(finding) for finding in findings],
        }  # fmt: skip
        print(json.dumps(summary, indent=1))
        return
    table = Table(
        "outcome", "files", title=f"{options.format}, seed {options.seed}: {total} files, {rate:.0f}/s and job"
    )
    for name in (*GOOD, *BAD):
        table.add_row(name, str(counts[name]))
    for name, count in refusing.most_common(12):
        table.add_row(f"  refused by {name}", str(count))
    console.print(table)
    for finding in findings:
        shown = _described(finding)
        console.print(f"{shown['count']} × {shown['key']}", style="bold", markup=False)
        console.print(f"    {shown['detail']}\n    {shown['file'] or shown['case']}", markup=False)


def _described(finding: Finding) -> dict[str, Any]:
    verdict: Verdict = finding.verdict
    return {
        "key": verdict.key,
        "count": finding.count,
        "confirmed": finding.confirmed,
        "detail": verdict.detail[:300],
        "file": str(finding.path) if finding.path else None,
        "case": finding.case.to_json(),
    }


if __name__ == "__main__":
    sys.exit(main())
