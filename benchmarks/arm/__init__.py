"""Instruction counts of models on emulated ARM CPUs: int8, float32 and LiteRT."""
