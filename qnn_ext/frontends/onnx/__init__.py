"""ONNX frontend: `from_onnx`. Its reader needs the `onnx` package, imported when a model is read."""

from .importer import from_onnx

__all__ = ["from_onnx"]
