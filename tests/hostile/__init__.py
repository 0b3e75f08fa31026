"""Hostile values: operators that address memory, divide, shift, cast or look up by values known at run time.

`onnx_cases`, `tflite_cases` and `pytorch_cases` list the operators with the values they are given. `test_hostile.py`
runs each on every CPU variant, memory between guard pages, and some on the emulated GPU; `test_complete.py` says
whether an operator was forgotten.
"""
