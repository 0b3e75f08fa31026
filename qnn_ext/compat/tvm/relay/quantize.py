"""relay.quantize."""

from ...absent import absent
from ...quantizing import QConfig, current_qconfig, prerequisite_optimize, qconfig, quantize

__all__ = ["QConfig", "current_qconfig", "prerequisite_optimize", "qconfig", "quantize"]

_STAGES = "qnn_ext.quantize.stages returns the module after each stage"

__getattr__ = absent(
    "relay.quantize",
    {
        **dict.fromkeys(("annotate", "calibrate", "partition", "realize", "collect_stats"), _STAGES),
        "quantize_context": "qnn_ext.quantize.sites lists what is quantized",
        "register_annotate_function": "annotate rules are in qnn_ext.quantize.annotate",
        "register_partition_function": "annotate rules are in qnn_ext.quantize.annotate",
    },
)
