"""Hostile values: operators that address memory, divide, shift, cast or look up by run-time values.

`onnx_cases`, `tflite_cases` and `pytorch_cases` list the operators and their values. `test_hostile.py` runs each on
every CPU variant, with memory between guard pages, and some on the emulated GPU; `test_complete.py` checks that no
operator is forgotten.
"""
