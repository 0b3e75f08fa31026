"""Targets: their names, CPUs, GPUs, this machine, and the tools that compile and link for them."""
