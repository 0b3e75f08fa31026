"""The analysis as a report: in Markdown, HTML and JSON, and a histogram of each tensor with the chosen range."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import QuantizationError
from ..files.storage import make_folder, replacing, write_text
from .analysis import Analysis, Fidelity, SiteReport
from .trials import SearchReport, Trial

HISTOGRAMS = "histograms"


@dataclass(frozen=True)
class _Table:
    """A heading, a description, and rows of text; `pictures`: a file for each row, if any."""

    title: str
    explanation: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    pictures: tuple[str, ...] = ()


def write_report(
    analysis: Analysis, folder: Path, title: str, notes: Sequence[str] = (), search: SearchReport | None = None
) -> list[Path]:
    """Write report.md, report.html, report.json and histograms/*.png to `folder`; returns the files written.

    title: what was quantized; notes: paragraphs under it, for example how it was quantized
    search: what was tried to reach a required accuracy, if it was a search
    Without matplotlib (extra "bench") there are no pictures, and the report says so. Raises QuantizationError if the
    folder cannot be written to.
    """
    make_folder(folder, QuantizationError)
    pictures = _write_histograms(analysis.sites, folder)
    notes = [*notes, *([] if pictures else ["No histograms: matplotlib is not installed (pip install matplotlib)."])]
    tables = [_outputs(analysis), _ranking(analysis), _layers(analysis), _sites(analysis, pictures)]
    found = to_json(analysis)
    if search is not None:
        tables.insert(0, _trials(search))
        found["search"] = search_to_json(search)
    contents = {
        "report.md": _markdown(title, notes, tables),
        "report.html": _html(title, notes, tables),
        "report.json": json.dumps(found, indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in contents.items():
        write_text(folder / name, text, QuantizationError)
    return [*(folder / name for name in contents), *(folder / name for name in pictures)]


def to_json(analysis: Analysis) -> dict[str, Any]:
    """The analysis as JSON values, without histograms; infinite SQNR, of equal tensors, is null."""
    sites = [{**asdict(replace(site, counts=np.empty(0), edges=np.empty(0)))} for site in analysis.sites]
    for site in sites:
        del site["counts"], site["edges"]
    return plain(
        {
            "samples": analysis.samples,
            "outputs": {name: asdict(found) for name, found in analysis.outputs.items()},
            "layers": [asdict(layer) for layer in analysis.layers],
            "ranking": [layer.layer for layer in analysis.ranking],
            "sites": sites,
        }
    )


def search_to_json(search: SearchReport) -> dict[str, Any]:
    """What a search tried, as JSON values; infinite SQNR is null."""
    chosen = None if search.chosen is None else search.trials.index(search.chosen)
    return plain(
        {
            "goal": search.goal,
            "reference": search.reference,
            "chosen": chosen,
            "trials": [{**asdict(trial), **_lists(trial)} for trial in search.trials],
            "noise": {
                layer: {str(bits): noise for bits, noise in found.items()} for layer, found in search.noise.items()
            },
        }
    )


def _lists(trial: Trial) -> dict[str, Any]:
    return {name: list(getattr(trial, name)) for name in ("in_4_bits", "in_8_bits", "in_16_bits", "in_float")}


def trial_header(search: SearchReport) -> tuple[str, ...]:
    """What stands above the cells of its trials."""
    layers = _LAYERS_IN_GROUPS if search.in_groups else _LAYERS
    return "setting", *layers, "in float", "SQNR", "metric", "time", "measured on"


_LAYERS, _LAYERS_IN_GROUPS = ("MAC in 8 bits", "in 16 bits"), ("bits a weight", "in 4 bits", "in 8 bits")


def trial_cells(trial: Trial, chosen: bool) -> tuple[str, ...]:
    """A trial as text: setting, how much of it has few bits, how many layers have more and are in float, SQNR, metric,
    seconds, what it was."""
    kind = "integers" if trial.compiled else "simulation"
    layers: tuple[str, ...] = (f"{100 * trial.share:.1f} %", str(len(trial.in_16_bits)))
    if trial.bits is not None:
        layers = f"{trial.bits:.2f}", str(len(trial.in_4_bits)), str(len(trial.in_8_bits))
    return (
        trial.setting,
        *layers,
        str(len(trial.in_float)),
        decibel(trial.sqnr),
        "" if trial.metric is None else f"{trial.metric:.6g}",
        "earlier" if trial.repeated else f"{trial.seconds:.1f} s",
        f"{kind}, chosen" if chosen else kind if not trial.reached else f"{kind}, enough",
    )


def plain(value: Any) -> Any:
    """As JSON values: null for what is not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- tables ------------------------------------------------------------------------------------------------------


def _trials(search: SearchReport) -> _Table:
    rows = tuple(trial_cells(trial, trial is search.chosen) for trial in search.trials)
    explanation = (
        f"What was tried to reach: {search.goal}. SQNR is that of the worst output; layers with more bits and in float "
        "are counted, and report.json names them."
    )
    return _Table("Search", explanation, trial_header(search), rows)


def _outputs(analysis: Analysis) -> _Table:
    rows = tuple((name, *_figures(found), f"{found.largest:.4g}") for name, found in analysis.outputs.items())
    explanation = f"The quantized model compared with the float one, on {analysis.samples} batches."
    return _Table("Outputs", explanation, ("output", "SQNR", "cosine", "largest error"), rows)


def _ranking(analysis: Analysis) -> _Table:
    rows = tuple(
        (str(rank), layer.layer, layer.operator, decibel(layer.alone.sqnr))
        for rank, layer in enumerate(analysis.ranking, start=1)
    )
    explanation = (
        "SQNR of the model's output when only this layer is quantized, worst first. A layer that costs much more than "
        'the others is a candidate for overrides={layer: {"precision": "float32"}}, or for another calibrator.'
    )
    return _Table("Layers by what each costs alone", explanation, ("", "layer", "operator", "output SQNR"), rows)


def _layers(analysis: Analysis) -> _Table:
    rows = tuple((layer.layer, layer.operator, *_figures(layer.together)) for layer in analysis.layers)
    explanation = "Result of each layer when everything is quantized, in execution order: how errors add up."
    return _Table("All layers together", explanation, ("layer", "operator", "SQNR", "cosine"), rows)


def _sites(analysis: Analysis, pictures: Sequence[str]) -> _Table:
    rows = tuple(
        (
            site.site,
            site.role,
            f"{site.dtype}" if site.bits == 8 else f"{site.dtype}, {site.bits} bits",
            f"{site.low:.4g} … {site.high:.4g}",
            *_figures(site.fidelity),
            f"{100 * site.saturated:.3g} %",
        )
        for site in analysis.sites
    )
    explanation = "Each quantized tensor on its own: how much its range clips, and how much rounding costs."
    header = ("tensor", "role", "dtype", "range", "SQNR", "cosine", "saturated")
    return _Table("Tensors", explanation, header, rows, tuple(pictures))


def _figures(found: Fidelity) -> tuple[str, str]:
    return decibel(found.sqnr), f"{found.cosine:.6f}"


def decibel(value: float) -> str:
    """36.1 dB; "exact" if nothing differs."""
    return "exact" if value == math.inf else f"{value:.1f} dB"


# ---- text --------------------------------------------------------------------------------------------------------


def _markdown(title: str, notes: Sequence[str], tables: Sequence[_Table]) -> str:
    parts = [f"# {title}", *notes]
    for table in tables:
        header = (*table.header, *(("histogram",) if table.pictures else ()))
        lines = [_markdown_row(header), "|" + "---|" * len(header)]
        for index, row in enumerate(table.rows):
            picture = (f"![]({table.pictures[index]})",) if table.pictures else ()
            lines.append(_markdown_row([cell.replace("|", "\\|") for cell in row] + list(picture)))
        parts += [f"## {table.title}", table.explanation, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:left}"
    "td:not(:first-child){white-space:nowrap}td:first-child{overflow-wrap:anywhere}img{height:7em}"
)


def _html(title: str, notes: Sequence[str], tables: Sequence[_Table]) -> str:
    escape = html.escape
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(note)}</p>" for note in notes)]
    for table in tables:
        parts += [f"<h2>{escape(table.title)}</h2>", f"<p>{escape(table.explanation)}</p>", "<table>"]
        header = (*table.header, *(("histogram",) if table.pictures else ()))
        parts.append(f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>")
        for index, row in enumerate(table.rows):
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
            if table.pictures:
                source = escape(table.pictures[index])
                cells += f'<td><a href="{source}"><img loading="lazy" src="{source}" alt="histogram"></a></td>'
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</table>")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    return f"{head}<style>{_STYLE}</style>\n" + "\n".join(parts) + "</html>\n"


# ---- pictures ----------------------------------------------------------------------------------------------------


def _write_histograms(sites: Sequence[SiteReport], folder: Path) -> list[str]:
    """Write a picture for each site; returns their names relative to `folder`, none if matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    make_folder(folder / HISTOGRAMS, QuantizationError)
    names = []
    for index, site in enumerate(sites):
        figure = Figure(figsize=(5, 2.4), layout="constrained")
        _draw(figure.subplots(), site)
        names.append(f"{HISTOGRAMS}/{index:03d}.png")
        with replacing(folder / names[-1], QuantizationError) as file:
            FigureCanvasAgg(figure).print_figure(file, dpi=90, format="png")
    return names


def _draw(axes: Any, site: SiteReport) -> None:
    """How often each value occurs, on a logarithmic scale; the chosen range, and in red the values outside it."""
    axes.stairs(site.counts, site.edges, fill=True, color="#4878a8")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set_xlim(site.edges[0], site.edges[-1])
    axes.axvspan(site.edges[0], max(site.low, site.edges[0]), color="#d05050", alpha=0.15, lw=0)
    axes.axvspan(min(site.high, site.edges[-1]), site.edges[-1], color="#d05050", alpha=0.15, lw=0)
    for end in (site.low, site.high):
        axes.axvline(end, color="#b02020", lw=1.2)
    axes.set_title(f"{site.site}\n{site.dtype}: {site.low:.4g} … {site.high:.4g}", fontsize=8)
    axes.tick_params(labelsize=7)
