"""Fuzzing of everything that reads a model file: `python -m tests.fuzz --format tflite --seconds 60`.

A case is a seed file and a list of mutations, both drawn from (seed, number), so that a case is made again from these
two. Long-lived children import case after case within limits of memory and CPU time; some of what they accept is built,
run on hostile inputs and compared with the interpreter. What fails is minimized and written with how to repeat it.
"""
