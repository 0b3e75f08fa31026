"""Findings: failures with the same stack, confirmed in a separate child process, minimized and written."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .cases import Case, Corpus
from .check import CRASH, MEMORY, TIMEOUT, Verdict
from .formats import Format


@dataclass
class Finding:
    """Failures with one key.

    case:      the case with the fewest mutations
    count:     how many failures there were
    confirmed: whether the case alone, in a new process, fails in the same way
    """

    case: Case
    verdict: Verdict
    count: int = 1
    confirmed: bool = True
    path: Path | None = None

    def name(self) -> str:
        """A short file name that gives the kind and the place."""
        place = re.sub(r"[^A-Za-z0-9]+", "-", self.verdict.stack.split(" < ")[0]).strip("-").lower()[:60]
        return f"{self.verdict.outcome}-{place}-{zlib.crc32(self.verdict.key.encode()):08x}"


class Findings:
    """All findings of a run by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, Finding] = {}

    def add(self, case: Case, verdict: Verdict) -> None:
        """Count a failure."""
        known = self.by_key.get(verdict.key)
        if known is None:
            self.by_key[verdict.key] = Finding(case, verdict)
            return
        known.count += 1
        if len(case.mutations) < len(known.case.mutations):
            known.case, known.verdict = case, verdict


def minimized(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The case with as few mutations as still make it fail: halves are left out, then quarters, … then single ones
    (Zeller's delta debugging on the list of mutations)."""
    mutations, parts = list(case.mutations), 2
    while len(mutations) >= 2:
        size = -(-len(mutations) // parts)
        for start in range(0, len(mutations), size):
            fewer = mutations[:start] + mutations[start + size :]
            if fails(replace(case, mutations=tuple(fewer))):
                mutations, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(mutations))
    return replace(case, mutations=tuple(mutations))


def settle(finding: Finding, check: Callable[[Case], Verdict], check_alone: Callable[[Case], Verdict]) -> None:
    """Confirm a finding in another process, a fresh one where processes die, then minimize it. A case that fails
    without being run is recorded as one that need not be."""
    # A mere exception leaves nothing behind in the child that could affect other cases
    confirm = check_alone if finding.verdict.outcome in (CRASH, TIMEOUT, MEMORY) else check
    alone = confirm(finding.case)
    finding.confirmed = alone.key == finding.verdict.key
    if not finding.confirmed:
        return

    def fails(case: Case) -> bool:
        return check(case).key == finding.verdict.key

    if finding.case.run and fails(replace(finding.case, run=False)):
        finding.case = replace(finding.case, run=False)
    finding.case = minimized(finding.case, fails)


def write(finding: Finding, form: Format, corpus: Corpus, format_name: str, folder: Path) -> None:
    """The damaged file, and beside it what happened and the command that repeats it."""
    folder.mkdir(parents=True, exist_ok=True)
    finding.path = folder / (finding.name() + form.suffix)
    finding.path.write_bytes(corpus.content(form, finding.case))
    description = {
        "command": f"python -m tests.fuzz --format {format_name} --check {finding.path}",
        "confirmed": finding.confirmed,
        "count": finding.count,
        **finding.verdict.to_json(),
        "case": finding.case.to_json(),
    }
    finding.path.with_suffix(".json").write_text(json.dumps(description, indent=1) + "\n")
