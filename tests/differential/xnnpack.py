"""TFLite with numerics="float32", the default, against XNNPACK: 8-bit graphs of the operators that it supports."""

from __future__ import annotations

from dataclasses import replace

from .recipe import Oracle
from .tflite import FRONTEND as TFLITE
from .tflite import XNNPACK, load_float32, of_xnnpack, run_xnnpack

FRONTEND = replace(
    TFLITE,
    name="xnnpack",
    operators=tuple(name for name in TFLITE.operators if name in XNNPACK),
    dtypes=("int8", "uint8"),
    load=load_float32,
    supported=tuple(XNNPACK),
    excluded={},
    oracles=(Oracle("LiteRT with XNNPACK", load_float32, run_xnnpack, of_xnnpack),),
)
