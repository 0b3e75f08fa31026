"""The command line: `qnn-ext quantize | compile | run | bench | compare | inspect`.

Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from .. import __version__
from ..errors import QnnError

__all__ = ["cli", "main"]

_COMMANDS = {  # name -> module and function
    "bench": ("bench", "bench"),
    "compare": ("compare", "compare_"),
    "compile": ("compile", "compile_"),
    "inspect": ("inspect", "inspect"),
    "quantize": ("quantize", "quantize"),
    "run": ("run", "run"),
    "tune": ("tune", "tune_"),
}


class _Commands(click.Group):
    """Imports a command when it is used: on a board, `run` and `bench` do without TVM's compiler."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, function = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __name__), function)
        return command


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
      qnn-ext quantize float.onnx --data calibration.npz -o integers.qnn
      qnn-ext compare float.onnx integers.qnn --data held_out.npz
    """


def main(args: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and turns its end into an exit code."""
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        return int(cli.main(args=None if args is None else list(args), prog_name="qnn-ext", standalone_mode=False) or 0)
    except click.exceptions.Abort:  # click's form of KeyboardInterrupt
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away: nothing to tell, and nowhere to tell it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (QnnError, OSError) as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return 1
