"""TFLite frontend: `from_tflite`. Its reader needs the `tflite` schema package, imported when a file is read."""

from .importer import from_tflite

__all__ = ["from_tflite"]
