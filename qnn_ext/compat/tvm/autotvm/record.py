"""autotvm.record."""

from ...absent import absent
from ...tuning.logs import decode, encode, load_from_buffer, load_from_file, pick_best

__all__ = ["decode", "encode", "load_from_buffer", "load_from_file", "pick_best"]

__getattr__ = absent("autotvm.record", {"split_workload": "qnn-ext tune --log keeps one log for all"})
