"""Two kinds of plots: the ratio of latencies per model, and per model every layer's fraction of peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qnn_ext.files.storage import replacing

from .comparison import Comparison
from .goals import goal_of
from .layers import CLASSES
from .results import Result


def write_plots(folder: Path, results: Sequence[Result]) -> list[Path]:
    """Write ratios.png and layers/MODEL.png. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = [_ratios(folder / "ratios.png", results)]
    for result in results:
        measured = [found for found in result.comparisons if found.layers and found.peaks]
        if measured and any(layer.macs for layer in measured[0].layers):
            (folder / "layers").mkdir(exist_ok=True)
            path = folder / "layers" / f"{result.model.path.name}.png"
            written.append(_layers(path, result.model.path.name, measured))
    return [path for path in written if path is not None]


def _ratios(path: Path, results: Sequence[Result]) -> Path | None:
    """Bars per model, one per number of threads, with marks at the goals."""
    import matplotlib.pyplot as plt

    shown = [result for result in results if any(found.ratio() for found in result.comparisons)]
    if not shown:
        return None
    threads = sorted({found.threads for result in shown for found in result.comparisons})
    height = 0.8 / len(threads)
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.32 * len(shown)), layout="constrained")
    for index, count in enumerate(threads):
        ratios = [(result.at(count).ratio() or 0.0) if result.at(count) else 0.0 for result in shown]  # type: ignore
        places = [row + (index - (len(threads) - 1) / 2) * height for row in range(len(shown))]
        axes.barh(places, ratios, height, label=f"{count} thread{'s' if count > 1 else ''}", color=f"C{index}")
    goals = [goal_of(result.model.name) for result in shown]
    rows = range(len(shown))
    axes.scatter([goal.must for goal in goals], rows, marker="|", s=120, color="black", label="must", zorder=3)
    axes.scatter([goal.aim for goal in goals], rows, marker="|", s=120, color="tab:red", label="aim", zorder=3)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(list(rows), [result.model.path.name for result in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("latency of the best other runtime / ours")
    axes.legend(fontsize=8)
    return _save(figure, path)


def _layers(path: Path, name: str, measured: Sequence[Comparison]) -> Path:
    """A bar per layer: as wide as the share of time it takes, as high as the fraction of peak it runs at."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(measured), 1, figsize=(11, 3.2 * len(measured)), layout="constrained", squeeze=False
    )
    for axes, found in zip(grid[:, 0], measured, strict=True):
        total, left, seen = sum(layer.seconds for layer in found.layers), 0.0, set()
        for layer in found.layers:
            width = 100 * layer.seconds / total
            label = layer.kind if layer.kind not in seen else None
            color = f"C{CLASSES.index(layer.kind)}"
            high = 100 * layer.of_peak(found.peaks)
            axes.bar(left, high, width, align="edge", color=color, label=label, edgecolor="white", linewidth=0.3)
            if width > 3:
                axes.annotate(layer.shape, (left + width / 2, high), rotation=90, fontsize=6, ha="center", va="bottom")
            seen.add(layer.kind)
            left += width
        axes.set(xlim=(0, 100), ylim=(0, 130), ylabel=f"% of peak, {found.threads} T", xlabel="% of the time")
        axes.axhline(100, color="grey", linewidth=0.8)
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    grid[0, 0].set_title(name, fontsize=9)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    with replacing(path) as file:
        figure.savefig(file, dpi=120, format="png")
    plt.close(figure)
    return path
