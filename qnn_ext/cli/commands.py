"""The commands by name, each imported when it is used, and the exit codes of how they end."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

import click
from click.shell_completion import CompletionItem, shell_complete

from .. import __version__
from ..errors import QnnError

COMMANDS = {  # name -> module, function, and what `qnn-ext --help` says, as importing them all takes seconds
    "accuracy": ("accuracy", "accuracy_", "Compare a model's accuracy in its framework, in float and in 8 bits."),
    "bench": ("bench", "bench", "Time a model, and each of its kernels."),
    "cache": ("cache", "cache", "Show or clear the cache of builds."),
    "compare": ("compare", "compare_", "Show how far two models or builds are apart on the same data."),
    "compile": ("compile", "compile_", "Compile a model to one .qnn file."),
    "completion": ("completion", "completion", "Print a shell's completion script."),
    "doctor": ("doctor", "doctor", "Show what this machine can run, and what is missing."),
    "generate": ("generate", "generate_", "Continue a text with a language model."),
    "inspect": ("inspect", "inspect", "Show what a model holds, and what stays float and why."),
    "memory": ("memory", "memory_", "Show what weights and feature maps take in float32 and in 8 bits."),
    "quantize": ("quantize", "quantize", "Quantize a float model and compile it."),
    "report": ("report", "report", "Write a page about a model: graph, time, memory, errors."),
    "run": ("run", "run", "Run a model on images or arrays."),
    "tune": ("tune", "tune_", "Find the fastest configurations of a model's kernels."),
}


COMPLETE = "_QNN_EXT_COMPLETE"
"""The variable that a shell's script sets when it asks the program for completions."""


class _Commands(click.Group):
    """Imports a command when it is used: on a board, `run` and `bench` do without TVM's compiler."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __package__), function)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        known = [CompletionItem(name, help=text) for name, (_, _, text) in COMMANDS.items()]
        return [item for item in known if item.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="qnn-ext")
def cli() -> None:
    """Compile and run quantized neural networks as integer programs: TFLite, ONNX, PyTorch, MXNet.

    \b
    Examples:
      qnn-ext inspect mobilenet.tflite
      qnn-ext compile mobilenet.tflite -o mobilenet.qnn
      qnn-ext run mobilenet.qnn --input photo.jpg --labels labels.txt
      qnn-ext bench mobilenet.qnn --profile
      qnn-ext report mobilenet.tflite --profile
      qnn-ext quantize float.onnx --data calibration.npz -o integers.qnn
      qnn-ext compare float.onnx integers.qnn --data held_out.npz
      qnn-ext accuracy float.onnx --data photos/
    """


def run_command(args: Sequence[str] | None) -> int:
    """Run a command; returns its exit code."""
    for stream in _outputs():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SPELLED)
    try:
        code = _completed() if COMPLETE in os.environ else _outcome(args)
        for stream in _outputs():
            stream.flush()
        return code
    except (BrokenPipeError, SystemExit):  # the reader of our output is gone; click and rich then end like this
        return _SIGPIPE
    except OSError:  # a full disk, already reported
        return 1
    finally:
        _drop_unwritten()


def _completed() -> int:
    """Answer a shell that asks for completions."""
    return 0 if shell_complete(cli, {}, "qnn-ext", COMPLETE, os.environ[COMPLETE]) == 0 else 1


def _outcome(args: Sequence[str] | None) -> int:
    try:
        return int(cli.main(args=None if args is None else list(args), prog_name="qnn-ext", standalone_mode=False) or 0)
    except click.exceptions.Abort:  # click's form of KeyboardInterrupt
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        raise
    except (QnnError, OSError) as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return 1


_SIGPIPE = 128 + 13

_SPELLINGS = {"×": "x", "·": "*", "µ": "u", "→": "->", "…": "...", "−": "-", "²": "2", "≤": "<=", "≥": ">="}


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """What a terminal shows for characters that its encoding lacks: what they stand for, or a question mark."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(_SPELLINGS.get(char, "?") for char in found), error.end


_SPELLED = "qnn_ext.spelled"
codecs.register_error(_SPELLED, _spelled)


def _outputs() -> list[TextIO]:
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _drop_unwritten() -> None:
    """Discard output that cannot be written: Python would complain about it at exit."""
    for stream in _outputs():
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as sink:
                os.dup2(sink.fileno(), stream.fileno())
