"""The run as Markdown: latencies and ratios, fraction of peak per class of layers, costs, int8 against float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .comparison import OURS, OURS_FLOAT32, Comparison
from .goals import goal_of
from .layers import CLASSES, by_class
from .results import Machine, Result, spread
from .runners import PEERS

TITLES = [peer.title for peer in PEERS]


def markdown(machine: Machine, results: Sequence[Result]) -> str:
    """All tables."""
    threads = sorted({found.threads for result in results for found in result.comparisons})
    sections = [_machine_text(machine)]
    for count in threads:
        sections.append(_section(f"Latency, {_threads(count)}", _latency(results, count)))
    for count in threads:
        sections.append(_section(f"Share of the peak by class, {_threads(count)}", _classes(results, count)))
    sections += [
        _section("Build, size, memory", _costs(results)),
        _section("int8 against float32 of the same network", _against_float(results)),
        _section("What failed", _failures(results)),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _section(title: str, lines: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines) if lines else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A Markdown table whose first `texts` columns are text and the others numbers; empty without rows."""
    if not rows:
        return []
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def _machine_text(machine: Machine) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [f"{machine.cpu}, {machine.cores} cores. {versions}."]
    for count, peaks in machine.peaks.items():
        speeds = [f"{instruction} {speed / 1e9:.0f} GOP/s" for instruction, speed in peaks.items()]
        speeds += [f"{place} {speed / 1e9:.1f} GB/s" for place, speed in machine.reads.get(count, {}).items()]
        lines.append(f"{_threads(count)}: {', '.join(speeds)}.")
    return "  \n".join(lines)


# ---- latency -----------------------------------------------------------------------------------------------------


def _latency(results: Sequence[Result], threads: int) -> list[str]:
    rivals = [title for title in TITLES if any(title in _times(result, threads) for result in results)]
    rows = []
    for result in results:
        found = result.at(threads)
        if result.error:
            rows.append([result.model.path.name, "", f"failed: {result.error}", *[""] * (len(rivals) + 6)])
        elif found and result.compiled:
            macs = result.compiled.macs
            cells = [_ms(found, name) for name in (OURS, *rivals)]
            ratio, least = found.ratio(), found.ratio(least=True)
            goal = goal_of(result.model.name)
            rows.append(
                [
                    result.model.path.name,
                    f"{macs / 1e6:.1f}",
                    *cells,
                    _number(ratio),
                    _number(least),
                    f"{goal.must:g} / {goal.aim:g}",
                    goal.verdict(ratio) if ratio is not None else "",
                    _percent(found.of_peak()),
                    _percent(spread(found)),
                ]
            )
    names = [f"{rival} ms" for rival in rivals]
    header = [
        "model",
        "MMAC",
        "qnn_ext ms",
        *names,
        "best / ours",
        "of minima",
        "must / aim",
        "goal",
        "of peak",
        "spread",
    ]
    note = [
        "Medians. best / ours: the fastest other runtime's latency divided by ours; of minima: the same for the "
        "fastest part of each runtime's turns. of peak: the time that our products would take at the peak of "
        "their instructions, as a share of ours. spread: the middle half of our turns divided by the median.",
        "",
    ]
    return note + _table(header, rows) if rows else []


def _times(result: Result, threads: int) -> dict:
    found = result.at(threads)
    return found.times if found else {}


def _ms(found: Comparison, name: str) -> str:
    if name in found.failures:
        return "failed"
    return f"{found.times[name].median * 1e3:.4g}" if name in found.times else ""


# ---- layers ------------------------------------------------------------------------------------------------------


def _classes(results: Sequence[Result], threads: int) -> list[str]:
    rows = []
    for result in results:
        found = result.at(threads)
        if not found or not found.layers:
            continue
        shares = by_class(found.layers, found.peaks)
        cells = []
        for kind in CLASSES:
            share = shares.get(kind)
            time = f"({100 * share.of_time:.0f} %)" if share else ""
            speed = f"{100 * share.of_peak:.0f} % " if share and share.of_peak else ""
            cells.append(speed + time)
        rows.append([result.model.path.name, *cells])
    lines = _table(["model", *CLASSES], rows)
    return ["Speed as a share of the peak; in parentheses, the share of the model's time.", "", *lines] if lines else []


# ---- costs -------------------------------------------------------------------------------------------------------


def _costs(results: Sequence[Result]) -> list[str]:
    rows = []
    rivals = [title for title in TITLES if any(title in found.memory for found in _comparisons(results))]
    for result in results:
        if not result.compiled:
            continue
        builds = result.compiled.builds.values()
        largest = max(builds, key=lambda build: build.bytes)
        first = result.comparisons[0] if result.comparisons else None
        rows.append(
            [
                result.model.path.name,
                _percent(result.compiled.integer_share),
                f"{result.compiled.import_seconds:.1f}",
                " / ".join(f"{build.seconds:.1f}" for build in builds),
                f"{largest.bytes / 1024:.0f}",
                f"{result.model.bytes / 1024:.0f}",
                f"{largest.bytes / result.model.bytes:.2f}",
                _megabytes(max(filter(None, (build.peak_bytes for build in builds)), default=None)),
                *[_peak_memory(first, name) for name in (OURS, *rivals)],
                *_agreement(first),
            ]
        )
    threads = " / ".join(str(count) for count in next(iter(results)).compiled.builds) if rows else ""  # type: ignore
    header = ["model", "integer MAC", "import s", f"build s ({threads} T)", ".qnn KB", "model KB", "ratio", "build MB"]
    header += [f"{name} MB" for name in ("qnn_ext", *rivals)] + ["equal values", "largest difference", "against"]
    note = (
        "Memory: the most that is resident in a process that loads the model and runs it, the runtime's own share "
        "included; behind the plus, what the model adds to it."
    )
    return [note, "", *_table(header, rows)] if rows else []


def _comparisons(results: Sequence[Result]) -> Iterator[Comparison]:
    return (found for result in results for found in result.comparisons)


def _peak_memory(found: Comparison | None, name: str) -> str:
    memory = found.memory.get(name) if found else None
    if memory is None or memory.peak is None:
        return ""
    added = f" (+{_megabytes(memory.peak - memory.base)})" if memory.base is not None else ""
    return _megabytes(memory.peak) + added


def _agreement(found: Comparison | None) -> list[str]:
    if found is None or found.agreement is None:
        return ["", "", ""]
    equal, largest = found.agreement
    return [f"{100 * equal:.4g} %", f"{100 * largest:.2g} % of range" if largest else "0", found.reference or ""]


# ---- float -------------------------------------------------------------------------------------------------------


def _against_float(results: Sequence[Result]) -> list[str]:
    rivals = [f"{title} float32" for title in TITLES]
    rivals = [name for name in rivals if any(name in found.times for found in _comparisons(results))]
    rows = []
    for result in results:
        for found in result.comparisons:
            floats = [name for name in (OURS_FLOAT32, *rivals) if name in found.times]
            if OURS in found.times and floats:
                ours = found.times[OURS].median
                cells = [_ms(found, name) for name in (OURS_FLOAT32, *rivals)]
                ratios = [_number(found.times[n].median / ours) if n in floats else "" for n in (OURS_FLOAT32, *rivals)]
                rows.append([result.model.path.name, str(found.threads), _ms(found, OURS), *cells, *ratios])
    header = ["model", "threads", "qnn_ext ms", *(f"{name} ms" for name in (OURS_FLOAT32, *rivals))]
    header += [f"{name} / int8" for name in (OURS_FLOAT32, *rivals)]
    return _table(header, rows)


# ---- failures ----------------------------------------------------------------------------------------------------


def _failures(results: Sequence[Result]) -> list[str]:
    rows = []
    for result in results:
        name = result.model.path.name
        rows += [[name, OURS, "", result.error]] if result.error else []
        rows += [[name, OURS_FLOAT32, "", result.float_error]] if result.float_error else []
        for found in result.comparisons:
            rows += [[name, runtime, str(found.threads), reason] for runtime, reason in found.failures.items()]
    return _table(["model", "runtime", "threads", "reason"], rows, texts=4)


def _optional(form: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else form(value)


_number = _optional(lambda value: f"{value:.2f}")
_percent = _optional(lambda value: f"{100 * value:.0f} %")
_megabytes = _optional(lambda value: f"{value / 1e6:.0f}")
