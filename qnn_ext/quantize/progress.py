"""What is being done, on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class shown:
    """A function that shows what is being done, on a line with a clock if `wanted`. numbered: behind how many there
    were"""

    def __init__(self, wanted: bool, numbered: bool = False) -> None:
        self._progress: Any = None
        if wanted:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            text = TextColumn(f"{'{task.completed:.0f} ' if numbered else ''}{{task.description}}")
            columns = SpinnerColumn(), text, TimeElapsedColumn()
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Callable[[str], None]:
        if self._progress is None:
            return lambda text: None
        self._progress.start()
        task = self._progress.add_task("", total=None)
        return lambda text: self._progress.update(task, description=text.replace("[", "("), advance=1)

    def __exit__(self, *error: Any) -> None:
        if self._progress is not None:
            self._progress.stop()
