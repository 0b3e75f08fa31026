"""TorchScript models: eager and FX graph mode quantization for fbgemm, x86, onednn and qnnpack."""

from .importer import from_script_module

__all__ = ["from_script_module"]
