"""The exceptions that users of qnn_ext may see. Each message names the node, what was found and what to do."""

from __future__ import annotations


class QnnError(Exception):
    """Base class of all errors raised by qnn_ext.

    A message is a single line of text, whatever names from a file it contains: unprintable characters are shown as
    replacement characters.
    """

    def __str__(self) -> str:
        return "".join(char if char.isprintable() else "\ufffd" for char in super().__str__().strip())


class ModelFormatError(QnnError):
    """The file is not what it claims to be: empty, truncated, corrupt, or of another format."""


class LimitError(ModelFormatError):
    """The model needs more time or memory than `qnn_ext.Limits` allows: raise the limit named in the message, or reject
    the file."""


class UnsupportedOperatorError(QnnError):
    """The model uses an operator, an operator version or a dtype combination qnn_ext does not implement."""


class ShapeError(QnnError):
    """A tensor has the wrong shape, rank, or dtype for where it is used."""


class OpenShapeError(ShapeError):
    """A model leaves sizes of an input open that must be fixed. name: the input's; dims: its sizes, or their names"""

    def __init__(self, message: str, name: str, dims: tuple[int | str, ...]) -> None:
        super().__init__(message)
        self.name, self.dims = name, dims


class InputError(QnnError):
    """An input given to an engine has an unknown name, a wrong shape or a wrong dtype, or is missing."""


class TargetError(QnnError):
    """The target is unknown, or this machine lacks what the artifact was built for: instructions, a GPU, its driver."""


class ArtifactError(QnnError):
    """A `.qnn` file cannot be read or written."""


class QuantizationError(QnnError):
    """A float model cannot be quantized as requested: wrong data set, calibration table, configuration or ranges."""


class NothingMarkedError(QuantizationError):
    """A float model has nothing to quantize, or the configuration keeps all of it in float."""


class AccuracyError(QuantizationError):
    """No setting keeps the accuracy requested. The message names the best one; `report` has all that were tried."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class QuantizationWarning(UserWarning):
    """Something to look at after quantizing: a tensor that is always zero, a layer left in float."""


class TuningError(QnnError):
    """Tuning cannot continue or its log cannot be read: no worker, no server, no file, or nothing to tune."""


class TuningWarning(UserWarning):
    """Something to look at after tuning: records that were ignored, tasks that could not be measured."""
