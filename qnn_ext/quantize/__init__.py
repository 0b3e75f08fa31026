"""Post-training quantization: a float model, a QConfig and data (or a calibration table) become an integer model.

    with quantize.qconfig(calibrate_mode="kl_divergence"):
        integers = quantize.quantize(qnn_ext.from_onnx("model.onnx"), dataset=batches)

The stages of `quantize`, each of which can be called separately: fold → annotate → calibrate → realize.
"""

from .accuracy import QuantizedAccuracy
from .analysis import analyze
from .annotate import Site, annotate, sites
from .balance import balance
from .bias_correction import correct_bias
from .calibrate import calibrate
from .config import LayerConfig, QConfig, current_config, qconfig
from .control import Controlled, control_accuracy
from .dataset import Batches, ImageFolder, batches
from .dynamic import dynamic
from .equalize import equalize
from .fold import fold
from .learned import round_weights
from .partition import partitions
from .pipeline import quantize
from .ranges import Range, integer_range, qparams_of
from .realize import realize, simulate
from .shards import Shards
from .smooth import smooth
from .stages import Stages, stages
from .table import CalibrationTable, fingerprint

__all__ = [
    "Batches",
    "CalibrationTable",
    "Controlled",
    "ImageFolder",
    "LayerConfig",
    "QConfig",
    "QuantizedAccuracy",
    "Range",
    "Shards",
    "Site",
    "Stages",
    "analyze",
    "annotate",
    "balance",
    "batches",
    "calibrate",
    "control_accuracy",
    "correct_bias",
    "current_config",
    "dynamic",
    "equalize",
    "fingerprint",
    "fold",
    "integer_range",
    "partitions",
    "qconfig",
    "qparams_of",
    "quantize",
    "realize",
    "round_weights",
    "simulate",
    "sites",
    "smooth",
    "stages",
]
