"""The outcome for one file: refused, imported, run with equal results; or a failure."""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from qnn_ext import QnnError

from .formats import Format

REFUSED, IMPORTED, RAN, REFUSED_LATER = "refused", "imported", "ran equal", "refused at build or run"
GOOD = (REFUSED, IMPORTED, RAN, REFUSED_LATER)
EXCEPTION, MEMORY, DIFFERENT, MESSAGE = "exception", "memory", "different", "message"
CRASH, TIMEOUT = "crash", "timeout"
BAD = (CRASH, TIMEOUT, MEMORY, EXCEPTION, DIFFERENT, MESSAGE)

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Verdict:
    """The outcome, one of GOOD or BAD; for a bad one, what happened, and `stack`, by which equal failures are
    recognized; for a refusal, the source file that refuses."""

    outcome: str
    detail: str = ""
    stack: str = ""

    @property
    def key(self) -> str:
        """Failures with the same key are one finding."""
        return f"{self.outcome}: {self.stack}"

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


def check(form: Format, data: bytes, run: bool) -> Verdict:
    """Read the file and, if requested, run the result."""
    try:
        subject = form.read(data)
    except QnnError as error:
        return refusal(error, REFUSED)
    except Exception as error:
        return failure(error)
    if not run:
        return Verdict(IMPORTED)
    from .execute import execute  # imports TVM

    return execute(subject, data)


def refusal(error: QnnError, outcome: str) -> Verdict:
    """A message must be one informative line; running out of memory does not count as a check."""
    cause: BaseException | None = error
    while isinstance(cause, QnnError):
        cause = cause.__cause__
    if isinstance(cause, MemoryError) or "bad_alloc" in str(error):
        return Verdict(MEMORY, str(error)[:500], stack_of(cause or error))
    if not str(error) or "\n" in str(error).strip():
        return Verdict(MESSAGE, repr(str(error))[:500], stack_of(error))
    return Verdict(outcome, stack=_refusing_file(error))


def _refusing_file(error: BaseException | None) -> str:
    """The innermost qnn_ext source file, with its folder, whose own check or call into a framework failed."""
    own = ["?"]
    while error is not None:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        own += [file for file in files if "qnn_ext/" in file]
        error = error.__cause__
    return "/".join(Path(own[-1]).parts[-2:])


def failure(error: Exception) -> Verdict:
    """An exception that is not one of ours."""
    is_memory = isinstance(error, MemoryError) or "bad_alloc" in str(error)
    return Verdict(MEMORY if is_memory else EXCEPTION, f"{type(error).__name__}: {error}"[:500], stack_of(error))


def stack_of(error: BaseException) -> str:
    """The exception's type and the innermost three frames within qnn_ext."""
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__} at {innermost(frames)}"


def innermost(frames: list[tuple[str, str]]) -> str:
    """The last three qnn_ext frames as (file, function), outermost first; any frames if there are none."""
    own = [(file, name) for file, name in frames if "qnn_ext/" in file.replace("\\", "/")] or frames
    return " < ".join(f"{Path(file).name}:{name}" for file, name in reversed(own[-3:]))
