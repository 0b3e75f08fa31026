"""Comparisons with other runtimes: same model, input and threads, each runtime in its own process, in turns."""
