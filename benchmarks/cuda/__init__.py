"""The benchmark of GPUs: `python -m benchmarks.cuda`."""
