"""Calibrators: how the range of a tensor follows from its values, one small class for each `calibrate_mode`."""

from . import auto, entropy, extremes, global_scale, kl_divergence, mse, percentile  # noqa: F401  (register themselves)
from .base import CALIBRATORS, Calibrator, HistogramCalibrator, Settings, calibrator, make_calibrator

__all__ = ["CALIBRATORS", "Calibrator", "HistogramCalibrator", "Settings", "calibrator", "make_calibrator"]
