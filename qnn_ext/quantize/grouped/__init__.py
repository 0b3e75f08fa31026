"""Weights in groups: the matrices of a float model become integers of 2, 4 or 8 bits that stay packed; activations stay
float (weight-only) or are quantized row by row at run time (dynamic).

    grid       the scale and zero point of each group: "max", "mse", "hqq"
    fitting    the integers on them: the nearest, or GPTQ's
    scaling    AWQ's factors for channels
    layers     which weights; matrices: those that are none; moments: what they are multiplied by
    converting the module with them
"""

from .converting import quantize_groups
from .grid import Grid, GroupFormat, grid_of

__all__ = ["Grid", "GroupFormat", "grid_of", "quantize_groups"]
