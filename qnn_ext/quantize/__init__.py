"""Post-training quantization: a float model, a QConfig and data (or a calibration table) become an integer model.

with quantize.qconfig(calibrate_mode="kl_divergence") as config:
    integers = quantize.quantize(qnn_ext.from_onnx("model.onnx"), dataset=batches)
"""

from .config import LayerConfig, QConfig, current_config, qconfig
from .dataset import Batches, ImageFolder, batches
from .ranges import Range, integer_range, qparams_of
from .table import CalibrationTable, fingerprint

__all__ = [
    "Batches",
    "CalibrationTable",
    "ImageFolder",
    "LayerConfig",
    "QConfig",
    "Range",
    "batches",
    "current_config",
    "fingerprint",
    "integer_range",
    "qconfig",
    "qparams_of",
]
