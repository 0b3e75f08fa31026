"""`--emit c`: its options, and what the commands say about the folder that it wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ArtifactError, QnnError
from ..files.container import parse_json
from ..running.model import Memory, target_name
from .common import code_text, note_data, out, print_json, spec_data

if TYPE_CHECKING:
    from ..export_c import Exported
    from ..running.engine import Engine

WEIGHTS = ("embedded", "file")


def emit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --emit, and what --emit c takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--emit",
        type=click.Choice(("qnn", "c")),
        default="qnn",
        show_default=True,
        help="A .qnn file, or a C library: sources, object files and weights for programs without Python and TVM.",
    ),
    click.option("--name", help="What the C library's files and functions are named after. Default: MODEL's name."),
    click.option(
        "--weights",
        type=click.Choice(WEIGHTS),
        help="Where the C library's weights are: embedded in it, or in a file to map into memory. Default: embedded.",
    ),
    click.option("--shared", is_flag=True, help="Link the C library as a shared one, too."),
)


@dataclass(frozen=True)
class CNames:
    """The options that only --emit c has; None and False where they were not given."""

    name: str | None
    weights: str | None
    shared: bool


@dataclass
class CLibrary:
    """What to write, and what was written."""

    folder: Path
    names: CNames
    threads: int
    exported: Exported | None = None

    def write(self, engine: Engine) -> None:
        """Write the folder."""
        options = {"weights": self.names.weights or "embedded", "shared": self.names.shared, "threads": self.threads}
        self.exported = engine.export_c(self.folder, self.names.name, **options)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        assert self.exported is not None
        return sum((self.folder / file).stat().st_size for file in self.exported.files)

    def summary(self) -> dict[str, Any]:
        """What was written, as JSON values."""
        assert self.exported is not None
        return {"name": self.exported.name, "files": list(self.exported.files), **self.exported.library.summary()}

    def report(self, engine: Engine, model: Path, seconds: float, as_json: bool) -> None:
        """Print what was written."""
        assert self.exported is not None
        exported, library = self.exported, self.exported.library
        if as_json:
            print_json(self._described(engine, model, seconds))
            return
        console = out()
        console.print(f"{model} → {self.folder}/: C library {exported.name}, {seconds:.1f} s", markup=False)
        for one in library.compiled:
            size = code_text(asdict(one.size), Memory(len(one.data), one.workspace))
            console.print(f"{one.target}: {size}", markup=False)
        if exported.missing:
            console.print(f"not archived, `make` will do so: {exported.missing}", markup=False)
        if engine.notes:
            console.print(
                f"{len(engine.notes)} operators run in float: `qnn-ext inspect {model}` says why", markup=False
            )

    def _described(self, engine: Engine, model: Path, seconds: float) -> dict[str, Any]:
        return {
            "model": str(model),
            "output": str(self.folder),
            "seconds": round(seconds, 3),
            **self.summary(),
            "inputs": [spec_data(spec) for spec in engine.inputs],
            "outputs": [spec_data(spec) for spec in engine.outputs],
            "notes": [note_data(note) for note in engine.notes],
        }


def c_library(
    emit: str, output: Path | None, model: Path, names: CNames, threads: int, sign: Path | None
) -> CLibrary | None:
    """What --emit c is to write; None for a .qnn file. Raises QnnError for options that do not go together."""
    if emit != "c":
        given = [option for option, value in asdict(names).items() if value]
        if given:
            raise QnnError(f"--{given[0]} is for C libraries: add --emit c")
        return None
    if sign is not None:
        raise QnnError("--sign signs .qnn files: a C library is signed with the program that it becomes a part of")
    if output is None or str(output) == "-":
        raise QnnError("--emit c writes a folder: name it with -o DIR")
    if output.exists() and not output.is_dir():
        raise QnnError(f"{output}: is a file, and --emit c writes a folder")
    return CLibrary(output, names, threads)


# ---- inspect -----------------------------------------------------------------------------------------------------


def c_manifest(path: Path) -> Path | None:
    """The manifest of a C library's folder; None for anything else."""
    if not path.is_dir():
        return None
    found = [file for file in sorted(path.glob("*.json")) if file.with_suffix(".h").is_file()]
    return found[0] if found else None


def describe_c_library(folder: Path, as_json: bool) -> None:
    """Print what a C library takes, on each of its targets. Raises QnnError for a damaged manifest."""
    manifest = c_manifest(folder)
    assert manifest is not None
    try:
        data = parse_json(manifest.read_bytes(), manifest.name)
        rows = [
            (target_name(one["target"]), code_text(one["code"], Memory(**one["memory"])), ", ".join(one["features"]))
            for one in data["variants"]
        ]
        title = f"{folder}: C library {data['name']}, compiled from {data['source']} by qnn_ext {data['version']}"
        lines = [title, f"format {data['format']}, checksum {data['checksum']}"]
    except (OSError, LookupError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{manifest}: is damaged: {error!r}") from error
    if as_json:
        print_json({"model": str(folder), **data})
        return
    console = out()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    for target, size, features in rows:
        console.print(f"{target}: {size}; instruction sets: {features or 'baseline'}", markup=False)
