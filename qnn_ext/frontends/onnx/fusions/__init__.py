"""Chains of operators that ONNX Runtime makes one operator of, with bits of its own."""
