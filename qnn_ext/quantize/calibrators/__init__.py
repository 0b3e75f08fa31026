"""Calibrators: how a tensor's range is derived from its values, one small class for each `calibrate_mode`."""

from . import entropy, extremes, global_scale, kl_divergence, percentile  # noqa: F401  (register themselves)
from .auto import Auto
from .base import CALIBRATORS, Calibrator, HistogramCalibrator, Position, Settings, calibrator, make_calibrator
from .output_error import OutputError

__all__ = [
    "CALIBRATORS",
    "Auto",
    "Calibrator",
    "HistogramCalibrator",
    "OutputError",
    "Position",
    "Settings",
    "calibrator",
    "make_calibrator",
]
