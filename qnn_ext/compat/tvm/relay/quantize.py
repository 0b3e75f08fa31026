"""relay.quantize."""

from ...absent import absent
from ...quantizing import (
    QAnnotateKind,
    QConfig,
    QuantizeContext,
    annotate,
    calibrate,
    current_qconfig,
    kind2str,
    partition,
    prerequisite_optimize,
    qconfig,
    quantize,
    quantize_context,
    realize,
)
from ...quantizing import find_scale_by_kl as _find_scale_by_kl  # noqa: F401  # scripts call them
from ...quantizing import find_scale_by_percentile as _find_scale_by_percentile  # noqa: F401

__all__ = [
    "QAnnotateKind",
    "QConfig",
    "QuantizeContext",
    "annotate",
    "calibrate",
    "current_qconfig",
    "kind2str",
    "partition",
    "prerequisite_optimize",
    "qconfig",
    "quantize",
    "quantize_context",
    "realize",
]

_RULES = "annotate rules are in qnn_ext.quantize.annotate"

__getattr__ = absent(
    "relay.quantize",
    {
        "collect_stats": "qnn_ext.quantize.stages returns the module after each stage, with its calibration table",
        "register_annotate_function": _RULES,
        "register_partition_function": _RULES,
    },
)
