"""Progress on stderr while a command works: a bar with its stage and an estimate, or a spinner; silent without a
terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Tell: TypeAlias = Callable[[str, float], None]
"""Takes what is being done, and the share of all work that was done before, 0 to 1."""


@contextmanager
def step(text: str) -> Iterator[None]:
    """A spinner with a clock while the body runs, for work whose length is unknown."""
    console = _terminal()
    if console is None:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def stages(text: str) -> Iterator[Tell]:
    """A bar, with the time taken and an estimate of what is left, that the body moves with the function it is given."""
    console = _terminal()
    if console is None:
        yield lambda stage, share: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=1.0)

        def tell(stage: str, share: float) -> None:
            progress.update(task, description=f"{text}: {stage}", completed=min(1.0, share))

        yield tell


def _terminal() -> Console | None:
    """What to show progress on; None where stderr is no terminal, which takes no import to find out."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None


@dataclass
class Detail:
    """What is found out about the passes of a build.

    folder: where the module after each is written, if it is
    rows:   for each pass and whatever else takes time: "pass", "seconds", and what is "changed", None if it is no pass
    """

    folder: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
