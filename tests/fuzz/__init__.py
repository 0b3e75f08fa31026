"""Fuzzing of everything that reads a model file: `python -m tests.fuzz --format tflite --seconds 60`.

A case is a seed file and a list of mutations, both drawn from (seed, number), which is enough to recreate it.
Long-lived child processes import case after case under memory and CPU time limits; some of what they accept is built,
run on hostile inputs and compared with the interpreter. Failures are minimized and written along with the command to
repeat them.
"""
