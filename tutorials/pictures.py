"""Plots of the tutorials. They are drawn where a tutorial is executed as a page of the documentation, with matplotlib;
as a script, which prints all that the plots show, a tutorial needs no matplotlib.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

BLUE, ORANGE, GREY = "#3b6fb6", "#d9822b", "#888888"


def drawn() -> bool:
    """Whether this is a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


@contextmanager
def axes(rows: int, columns: int, width: float, height: float) -> Iterator[np.ndarray]:
    """A grid of axes to draw on, shown in the page at the end."""
    from IPython.display import Image, display
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    yield figure.subplots(rows, columns, squeeze=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    display(Image(content.getvalue()))


def gallery(images: Sequence[Any], titles: Sequence[str], columns: int = 10, wrong: Sequence[bool] = ()) -> None:
    """Images in grey with a title each, in orange where it is wrong."""
    if not drawn():
        return
    rows = -(-len(images) // columns)
    with axes(rows, columns, 0.85 * columns, 1.05 * rows) as grid:
        for place in grid.flat:
            place.axis("off")
        for index, (place, image, title) in enumerate(zip(grid.flat, images, titles, strict=False)):
            place.imshow(np.squeeze(image), cmap="gray_r")
            is_wrong = index < len(wrong) and wrong[index]
            place.set_title(title, fontsize=9, color=ORANGE if is_wrong else "black")


def photos(images: Sequence[np.ndarray], titles: Sequence[str]) -> None:
    """Photos in colour side by side, (1, 3, H, W) with values from 0 to 1."""
    if not drawn():
        return
    width = 10 / len(images)
    height, across = images[0].shape[-2:]
    with axes(1, len(images), 10, width * height / across + 0.3) as grid:
        for place, image, title in zip(grid.flat, images, titles, strict=True):
            place.axis("off")
            place.imshow(np.clip(image[0].transpose(1, 2, 0), 0, 1))
            place.set_title(title, fontsize=9)


def bars(
    names: Sequence[str], values: Sequence[float], unit: str, others: Sequence[float] = (), legend: Any = ()
) -> None:
    """A horizontal bar for each name, and a second one beside it where there are others."""
    if not drawn():
        return
    with axes(1, 1, 7, 0.6 + (0.45 if len(others) else 0.3) * len(names)) as grid:
        place, rows = grid[0, 0], np.arange(len(names))
        height = 0.4 if len(others) else 0.7
        place.barh(rows - (height / 2 if len(others) else 0), values, height, color=BLUE)
        if len(others):
            place.barh(rows + height / 2, others, height, color=ORANGE)
            place.legend(legend, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        place.set_yticks(rows, names, fontsize=8)
        place.invert_yaxis()
        place.set_xlabel(unit)
        place.spines[["top", "right"]].set_visible(False)


def histogram(counts: np.ndarray, edges: np.ndarray, low: float, high: float, title: str) -> None:
    """A histogram of a tensor's values, with the range that its integers reach."""
    if not drawn():
        return
    with axes(1, 1, 7, 2.4) as grid:
        place = grid[0, 0]
        place.stairs(counts, edges, fill=True, color=BLUE)
        place.axvspan(low, high, color=ORANGE, alpha=0.15)
        for end in (low, high):
            place.axvline(end, color=ORANGE)
        place.set_yscale("log")
        place.set_title(f"{title}: the integers reach from {low:.3g} to {high:.3g}", fontsize=9)
        place.spines[["top", "right"]].set_visible(False)
