"""A long-lived child process that checks files one after another: `python -m tests.fuzz.worker SETTINGS`, started by
`pool`.

It takes jobs as lines of JSON on stdin: {"range": [first, last]} or {"case": …}; it writes to stdout "+ NUMBER" when it
starts a file, "= VERDICT" when the file is done, "." when the job is. Other output, and the stack of a crash, go to
stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from .check import failure


@dataclass(frozen=True)
class Settings:
    """Settings shared by parent and children.

    seconds: CPU time that a file may take
    memory:  bytes of address space that a file may take beyond what the libraries have
    """

    format: str
    corpus: str
    seed: int
    run_every: int
    seconds: float
    memory: int
    warm: bool = True
    """Whether the corpus may be trusted to be harmless: its smallest file is then run before the limits apply."""

    def to_json(self) -> str:
        """As a command-line argument."""
        return json.dumps(asdict(self))


class Worker:
    """Everything a child keeps while it lives."""

    def __init__(self, settings: Settings, out: TextIO) -> None:
        from .cases import Corpus
        from .check import check
        from .formats import find

        self.settings, self.out, self.check = settings, out, check
        self.format = find(settings.format)
        self.corpus = Corpus(Path(settings.corpus))
        if settings.warm:  # thread pools and caches are created before the limits apply
            check(self.format, min(self.corpus.files.values(), key=len), run=bool(settings.run_every))

    def serve(self, jobs: TextIO) -> None:
        """Take jobs until there are no more."""
        from .cases import Case

        faulthandler.enable(all_threads=False)  # only now, because TVM takes over SIGSEGV when it is imported
        self._say("ready")
        for line in jobs:
            job = json.loads(line)
            if "range" in job:
                for number in range(*job["range"]):
                    self._one(
                        number, self.corpus.case(self.format, self.settings.seed, number, self.settings.run_every)
                    )
            else:
                self._one(job["number"], Case.from_json(job["case"]))
            self._say(f". {_address_space()}")

    def _one(self, number: int, case: Any) -> None:
        self._say(f"+ {number}")
        os.ftruncate(2, 0)
        content = self.corpus.content(self.format, case)  # making the file is not subject to the limits
        limit = _address_space() + self.settings.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, self.settings.seconds)
        lack: MemoryError | None = None
        try:
            verdict = self.check(self.format, content, case.run)
        except MemoryError as error:  # too little memory was left even to build the verdict
            lack = error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if lack is not None:
            verdict = failure(lack)
        self._say(f"= {json.dumps(verdict.to_json())}")

    def _say(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


def _address_space() -> int:
    """Bytes that this process has mapped."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    """Serve the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=json.loads)
    settings = Settings(**parser.parse_args().settings)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # library output must not look like a verdict
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its children
    # When a file's time is up, the stack is written, and then the signal's default action ends the process
    faulthandler.register(signal.SIGPROF, all_threads=True, chain=True)
    Worker(settings, out).serve(sys.stdin)


if __name__ == "__main__":
    main()
