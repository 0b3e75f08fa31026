"""A compiled model as a C library: sources, objects and weights in a folder, for programs without Python and TVM."""

from __future__ import annotations

from .exporting import Exported, export_c

__all__ = ["Exported", "export_c"]
