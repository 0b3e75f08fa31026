"""A model in several runtimes, each in a process of its own, timed in turns on the same inputs; and their energy.

Nothing here imports TVM's compiler: `qnn-ext bench` uses it on boards.
"""
