"""global_scale: one chosen threshold for every tensor. Needs no data."""

from __future__ import annotations

import numpy as np

from ..ranges import Range
from .base import Extremes, ExtremesCalibrator, Position, calibrator


@calibrator("global_scale")
class GlobalScale(ExtremesCalibrator):
    """−global_scale … global_scale, whatever the data. Source: Relay's quantize, calibrate_mode="global_scale"."""

    needs_data = False

    def _add(self, statistic: Extremes, array: np.ndarray, batch: Position | None) -> None:
        return

    def _range(self, statistic: Extremes) -> Range:
        return Range(-self.settings.global_scale, self.settings.global_scale, self.mode)
