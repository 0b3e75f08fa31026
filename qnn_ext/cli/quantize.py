"""`qnn-ext quantize`: a float model and data in, an integer `.qnn` file out; on request also ranges and a report."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..compiling.coverage import coverage
from ..errors import QnnError, QuantizationError, QuantizationWarning
from ..evaluation.metrics import load_metric
from ..module import QnnModule
from ..op.base import constant_value
from ..passes.bodies import every_binding
from ..passes.rewrite import operands
from ..quantize.accuracy import QuantizedAccuracy
from ..quantize.analysis import Analysis, analyze
from ..quantize.config import QConfig, replace_fields
from ..quantize.control import KEEP, control_accuracy
from ..quantize.dataset import ImageFolder
from ..quantize.fields import CALIBRATE_MODES
from ..quantize.judge import DROP_TYPES, Metric
from ..quantize.report import decibel, search_to_json, to_json, trial_cells, trial_header, write_report
from ..quantize.stages import Stages, stages
from ..quantize.table import CalibrationTable
from ..quantize.trials import SearchReport
from ..report import analysis_data, build_report, write_page
from ..running.engine import Engine
from . import progress
from .c_library import CNames, c_library, emit_options
from .common import (
    FILE,
    build_options,
    bytes_text,
    compile_model,
    count_text,
    import_model,
    json_option,
    normalize_option,
    note_data,
    out,
    print_json,
    target_names,
)
from .formats import ImportOptions, recognize
from .outputs import check_compiled, check_output, destination
from .settings import parse_settings, settings_option
from .texts import fluency, perplexities, read_texts

_SHOWN_LAYERS = 5
_FLAGS = ("balance", "equalize", "bias_correction", "dynamic", "symmetric", "weight_only", "embeddings")


@dataclass(frozen=True)
class _Request:
    """What the command line requests, besides the configuration."""

    data: Any
    validation: Any
    table: Path | None
    report: Path | None
    samples: int
    min_sqnr: float | None
    metric: str | None
    max_drop: float | None
    drop_type: str
    keep: str
    work: Path | None
    texts: list[list[int]] | None

    @property
    def searches(self) -> bool:
        """Whether an accuracy is required."""
        return self.min_sqnr is not None or self.metric is not None or self.max_drop is not None

    def load_metric(self) -> Metric | None:
        """What --max-drop is about. Raises InputError."""
        if self.metric is not None:
            metric: Any = load_metric(self.metric)  # a function of other things where labels are given
            found: Metric = metric
            return found
        return None if self.max_drop is None or self.texts is None else fluency(self.texts)


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "-d",
    "--data",
    type=FILE,
    help="Calibration data: .npz with an array per input, .npy, or a folder of such files or of images.",
)
@normalize_option("How pixels of images are converted to input values.")
@click.option("--calibrate-mode", type=click.Choice(CALIBRATE_MODES), help="How ranges are found. Default: auto.")
@click.option("--percentile", type=float, help="Share of values inside the range, for --calibrate-mode percentile.")
@click.option("--per-tensor", is_flag=True, help="One scale per weight. Default: one per output channel.")
@click.option("--symmetric", is_flag=True, help="Activations without zero points.")
@click.option(
    "--balance", is_flag=True, help="Give channels of activations factors that weights undo. Default: measured."
)
@click.option(
    "--equalize",
    is_flag=True,
    help="Equalize the ranges of neighbouring layers (cross-layer equalization) before calibration.",
)
@click.option("--bias-correction", is_flag=True, help="Correct biases for the mean error of quantized weights.")
@click.option("--dynamic", is_flag=True, help="Find ranges of activations at run time: needs no data.")
@click.option(
    "--weight-only",
    is_flag=True,
    help="Quantize weights in groups and leave activations float: needs no data. For language models.",
)
@click.option("--bits", type=click.Choice(["2", "4", "8"]), help="Bits of weights. Default: 8.")
@click.option(
    "--group-size",
    type=int,
    metavar="N",
    help="Values of a weight with one scale, for --weight-only and --dynamic. Default: a row.",
)
@click.option("--embeddings", is_flag=True, help="With --weight-only or --group-size, quantize embeddings as well.")
@click.option(
    "--skip", multiple=True, metavar="PATTERN", help="Layers to keep in float, such as `*.attention.*`. Repeatable."
)
@settings_option
@click.option(
    "--min-sqnr",
    type=float,
    metavar="DB",
    help="Search for settings, and for layers to keep in more bits or float, until every output has this SQNR.",
)
@click.option(
    "--metric",
    metavar="MODULE:FUNCTION",
    help="Search until this function of a model loses at most --max-drop. It calls the model with arrays and returns a "
    "number, higher for a better model. Also FILE.py:FUNCTION.",
)
@click.option(
    "--max-drop",
    type=float,
    metavar="X",
    help="By how much --metric may be lower than in float; without it, by how much --perplexity may be higher.",
)
@click.option(
    "--drop-type",
    type=click.Choice(DROP_TYPES),
    default="absolute",
    show_default=True,
    help="Whether --max-drop is in the metric's units, or a share of the float model's: 0.01 is one percent.",
)
@click.option(
    "--validation",
    type=FILE,
    help="Data that --min-sqnr is measured on, as --data. Default: --data, of which a fourth does not calibrate.",
)
@click.option(
    "--keep",
    type=click.Choice(KEEP),
    default="auto",
    show_default=True,
    help="Where a search keeps layers that need more than 8 bits.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the measurements of a search: with the same folder, an interrupted search goes on.",
)
@click.option(
    "--table", type=FILE, help="Calibration table (JSON): written if --data is given, otherwise read instead of data."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Folder for a report of the errors, with histograms and a ranking of the layers, and page.html, which "
    "`qnn-ext report` would write. Needs --data.",
)
@click.option(
    "--report-samples",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Number of batches that the report is based on.",
)
@click.option(
    "--perplexity",
    "texts",
    type=FILE,
    help="Texts, one on each line: show a language model's perplexity on them before and after.",
)
@click.option(
    "--tokenizer", type=FILE, help="Of --perplexity, as `qnn-ext generate` takes it. Default: lines are tokens."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Default: MODEL's name with .qnn, in the current folder. With --emit c, the folder of the C library.",
)
@emit_options
@build_options
@json_option
def quantize(
    model: Path,
    data: Path | None,
    normalize: str,
    skip: tuple[str, ...],
    settings: tuple[str, ...],
    min_sqnr: float | None,
    metric: str | None,
    max_drop: float | None,
    drop_type: str,
    validation: Path | None,
    keep: str,
    work: Path | None,
    table: Path | None,
    report: Path | None,
    report_samples: int,
    texts: Path | None,
    tokenizer: Path | None,
    output: Path | None,
    emit: str,
    name: str | None,
    weights: str | None,
    shared: bool,
    target: str,
    threads: int | None,
    importing: ImportOptions,
    as_json: bool,
    **flags: Any,
) -> None:
    """Quantize a float MODEL to integers and compile it to one .qnn file, or to a C library.

    MODEL: .onnx, .tflite, PyTorch .pt2, TorchScript .pt, or MXNet -symbol.json, in float32 or float16.

    \b
    Examples:
      qnn-ext quantize model.onnx --data calibration.npz -o model.qnn
      qnn-ext quantize model.onnx --data photos/ --calibrate-mode mse --report report/
      qnn-ext quantize model.onnx --data calibration.npz --table ranges.json
      qnn-ext quantize model.onnx --table ranges.json --skip 'logits*'
      qnn-ext quantize model.onnx --data calibration.npz --min-sqnr 30 --work trials/
      qnn-ext quantize model.onnx --data calibration.npz --metric task.py:accuracy --max-drop 0.5
      qnn-ext quantize model.onnx --data calibration.npz --emit c -o model/ --target cortex-m4
      qnn-ext quantize model.onnx --dynamic
      qnn-ext quantize model.pt2 --weight-only --bits 4 --group-size 32 --embeddings
      qnn-ext quantize model.pt2 --dynamic --bits 4 --group-size 32 --data tokens.npz --set weight_rounding=gptq
      qnn-ext quantize model.pt2 --weight-only --bits 4 --data tokens.npz --perplexity texts.txt --max-drop 0.1
    """
    form = recognize(model)
    if form == "qnn":
        raise QnnError(f"{model} is already compiled: quantize the float model it was made from")
    config = _config(target, skip, settings, flags)
    source, judged = (
        ImageFolder(path, normalize) if path is not None and normalize != "auto" else path
        for path in (data, validation)
    )
    measured = None if texts is None else read_texts(texts, tokenizer)
    goal = min_sqnr, metric, max_drop, drop_type
    request = _Request(source, judged, table, report, report_samples, *goal, keep, work, measured)
    _check(request, config)
    library = c_library(emit, output, model, CNames(name, weights, shared), threads or 1, None)
    if library is not None and (report is not None or texts is not None):
        raise QnnError(f"{'--report' if report is not None else '--perplexity'} runs the result: leave out --emit c")
    output = output or Path(model.with_suffix(".qnn").name)
    if library is None:
        check_compiled(output, [model, data, validation, table, importing.params], as_json)
    if data is not None and table is not None:
        check_output(table, [model, data, validation, importing.params])
    started = time.perf_counter()
    module = import_model(model, form, importing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", QuantizationWarning)
        done, analysis, written, search = _quantize(module, config, request, model.name)
    if library is not None:
        engine = compile_model(done.result, target, threads or 1, library.write, code=False)
        size = library.size
    else:
        with destination(output) as place:
            engine = compile_model(done.result, target, threads, partial(Engine.save, path=place))
            size = place.stat().st_size
    if report is not None:
        about = build_report(engine, done.result, analysis_data(analysis, config), name=model.name)
        write_page(report / "page.html", [about], model.name)
        written.append(report / "page.html")
    about_ranges = (str(warning.message) for warning in caught if issubclass(warning.category, QuantizationWarning))
    shown = list(dict.fromkeys(about_ranges))
    with progress.stages("measuring accuracy"):
        accuracy = done.measured(engine if library is None and target == "native" else None)
    summary = {
        "model": str(model),
        "output": str(output),
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 3),
        "sites": len(done.table),
        "weights": None if not config.grouped else {"before": _constants(module), "after": _constants(done.result)},
        "notes": [note_data(note) for note in done.result.notes],
        "warnings": shown,
        "written": [str(path) for path in written],
        "accuracy": None if accuracy is None else accuracy.to_json(),
        "analysis": None if analysis is None else to_json(analysis),
        "search": None if search is None else search_to_json(search),
        "library": None if library is None else library.summary(),
        "perplexity": None
        if measured is None
        else perplexities(measured, compile_model(module, target, threads), engine),
        **_coverage(done.result),
    }
    if as_json:
        print_json(summary)
    else:
        _print(out(aside=str(output) == "-"), summary, accuracy, analysis, search)


# ---- the configuration -------------------------------------------------------------------------------------------


def _config(target: str, skip: tuple[str, ...], settings: tuple[str, ...], flags: dict[str, Any]) -> QConfig:
    """The QConfig from the options: flags first, then --set. Raises QuantizationError, click.BadParameter."""
    values: dict[str, Any] = {"target": target_names(target)[0]}
    values |= {name: flags[name] for name in ("calibrate_mode", "percentile") if flags[name] is not None}
    values |= {name: True for name in _FLAGS if flags[name]}
    values |= {"nbit_weight": int(flags["bits"])} if flags["bits"] else {}
    values |= {"group_size": flags["group_size"]} if flags["group_size"] is not None else {}
    if flags["per_tensor"]:
        values["per_channel"] = False
    given = parse_settings(settings)
    overrides = {pattern: {"precision": "float32"} for pattern in skip}
    if overrides:
        given["overrides"] = {**given.get("overrides", {}), **overrides}
    return replace_fields(QConfig(), {**values, **given})


def _check(request: _Request, config: QConfig) -> None:
    """Raise QuantizationError for incompatible options."""
    if request.data is None and request.report is not None:
        raise QuantizationError("--report measures errors on data: give --data")
    if (config.dynamic or config.grouped) and (request.table is not None or request.report is not None):
        raise QuantizationError(
            "--dynamic and --weight-only calibrate no ranges of activations: leave out --table and --report"
        )
    if not request.searches and (request.work is not None or request.validation is not None or request.keep != "auto"):
        raise QuantizationError("--validation, --keep and --work are for a search: give --min-sqnr, or --metric")
    if request.metric is not None and request.max_drop is None:
        raise QuantizationError("--metric and --max-drop belong together: give both, or neither")
    if request.max_drop is not None and request.metric is None and request.texts is None:
        raise QuantizationError("--max-drop belongs together with --metric or --perplexity: give one of them")
    if request.drop_type != "absolute" and request.max_drop is None:
        raise QuantizationError("--drop-type says what --max-drop is: give both, or neither")
    if request.searches and request.data is None and not (config.grouped and request.validation is not None):
        raise QuantizationError("a search calibrates on data: give --data")
    if request.data is None and request.table is not None and not request.table.exists():
        raise QuantizationError(f"{request.table}: no such calibration table; give --data to make it")


# ---- the work ----------------------------------------------------------------------------------------------------


def _quantize(
    module: QnnModule, config: QConfig, request: _Request, name: str
) -> tuple[Stages, Analysis | None, list[Path], SearchReport | None]:
    """The stages, the analysis if a report is requested, the files written so far, and what a search tried."""
    table = CalibrationTable.load(request.table) if request.data is None and request.table is not None else None
    shown, search = Console(stderr=True).is_terminal, None
    if not request.searches:
        done = stages(module, None, request.data, config, table, progress=shown)
    else:
        found = control_accuracy(
            module,
            dataset=request.data,
            config=config,
            validation_data=request.validation,
            min_sqnr=request.min_sqnr,
            metric=request.load_metric(),
            max_drop=request.max_drop,
            drop_type=request.drop_type,
            keep=request.keep,
            work=request.work,
            progress=shown,
        )
        done, search = found.stages, found.report
        config = found.config
    written = []
    if request.table is not None and request.data is not None:
        done.table.save(request.table)
        written.append(request.table)
    if request.report is None:
        return done, None, written, search
    with progress.stages("analyzing") as tell:
        analysis = analyze(
            done["annotate"],
            done.table,
            request.data,
            config,
            request.samples,
            tell,
        )
        written += write_report(
            analysis, request.report, f"Quantization of {name}", _described(config, done.table), search
        )
    return done, analysis, written, search


def _described(config: QConfig, table: CalibrationTable) -> list[str]:
    """The settings that differ from the defaults, for the report."""
    default = QConfig()
    names = [item.name for item in fields(QConfig)]
    changed = [f"{name}={getattr(config, name)!r}" for name in names if getattr(config, name) != getattr(default, name)]
    notes = [f"QConfig({', '.join(changed)})"]
    return [*notes, "The figures are from before bias correction."] if table.biases else notes


def _constants(module: QnnModule) -> int:
    """The bytes of a module's constants."""
    found = {expr for binding, _ in every_binding(module.ir) for expr in operands(binding.value)}
    return sum(array.nbytes for array in map(constant_value, found) if array is not None)


def _coverage(module: QnnModule) -> dict[str, Any]:
    found = coverage(module)
    in_float = [{"layer": one.layer, "operator": one.operator, "macs": one.macs} for one in found.in_float]
    shares = {"integer_share": found.share, "share_in_8_bits": found.share_in_8_bits}
    return {"macs": found.macs, **shares, "in_float": in_float}


# ---- what is shown -----------------------------------------------------------------------------------------------


def _print(
    console: Console,
    summary: dict[str, Any],
    accuracy: QuantizedAccuracy | None,
    analysis: Analysis | None,
    search: SearchReport | None,
) -> None:
    share, narrow = (_percent(summary[name]) for name in ("integer_share", "share_in_8_bits"))
    macs = f"{share} of {count_text(summary['macs'])} MAC in integers, {narrow} in 8 bits"
    console.print(
        f"{summary['model']} → {summary['output']}: {bytes_text(summary['bytes'])}, {summary['seconds']:.1f} s",
        markup=False,
    )
    if summary["weights"] is None:
        console.print(f"{summary['sites']} tensors quantized, {macs}")
    else:
        sizes = [bytes_text(summary["weights"][when]) for when in ("before", "after")]
        console.print(f"weights {' → '.join(sizes)}, {macs}")
    if summary["perplexity"] is not None:
        before, after = (summary["perplexity"][when] for when in ("before", "after"))
        console.print(f"perplexity {before:.4g} → {after:.4g}")
    for layer in summary["in_float"]:
        if layer["operator"].startswith("qnn.blockwise_"):
            continue
        console.print(f"float: {layer['operator']} '{layer['layer']}': {count_text(layer['macs'])} MAC", markup=False)
    for text in summary["warnings"]:
        console.print(f"warning: {text}", markup=False)
    if search is not None:
        _print_search(console, search)
    if analysis is not None:
        _print_analysis(console, analysis)
    if accuracy is not None:
        for name, found in accuracy.outputs.items():
            console.print(f"{name}: {decibel(found.sqnr)}, cosine {found.cosine:.6f}", markup=False)
        console.print(f"measured on {accuracy.samples} of the batches it was quantized with")
    shown = [path for path in summary["written"] if not path.endswith(".png")]
    if shown:
        console.print(f"written: {', '.join(shown)}", markup=False)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def _print_search(console: Console, search: SearchReport) -> None:
    table = Table(title=f"tried, for {search.goal}", title_justify="left")
    headers = trial_header(search)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number in (0, len(headers) - 1) else "right", overflow="fold")
    for trial in search.trials:
        table.add_row(*trial_cells(trial, trial is search.chosen))
    console.print(table)


def _print_analysis(console: Console, analysis: Analysis) -> None:
    table = Table(title="layers that cost most when quantized alone", title_justify="left")
    for header in ("layer", "operator"):
        table.add_column(header, overflow="fold")
    for header in ("output alone", "layer, all quantized"):
        table.add_column(header, justify="right")
    for layer in analysis.ranking[:_SHOWN_LAYERS]:
        table.add_row(layer.layer, layer.operator, decibel(layer.alone.sqnr), decibel(layer.together.sqnr))
    console.print(table)
