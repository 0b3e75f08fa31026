"""The cases of all frontends, by name."""

from __future__ import annotations

from tests.hostile import onnx_cases, pytorch_cases, tflite_cases

CASES = {case.name: case for cases in (onnx_cases, tflite_cases, pytorch_cases) for case in cases.cases()}
