"""The GPU benchmark: `python -m benchmarks.cuda`."""
