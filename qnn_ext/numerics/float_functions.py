"""The functions of one float32 that have a framework's bits, by name: ONNX Runtime's, some of which are MLAS's and some
Eigen's, XNNPACK's and those of LiteRT's recurrent layers."""

from __future__ import annotations

from . import eigen, litert, mlas, xnnpack

FUNCTIONS = {one.__name__: one for one in (*mlas.FUNCTIONS, *eigen.FUNCTIONS, *xnnpack.FUNCTIONS, *litert.FUNCTIONS)}
