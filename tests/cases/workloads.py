"""Matrix products of awkward shapes, and one small kernel of every kind."""

from __future__ import annotations

from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload

DENSE = [
    (1, 64, 16),
    (1, 1280, 1001),
    (1, 5, 1),
    (2, 17, 10),
    (13, 64, 64),
    (31, 33, 40),
    (197, 48, 96),  # a prime number of rows
    (64, 256, 100),
]


BATCH_MATMUL = [
    (1, 1, 8, 16),
    (3, 7, 17, 10),
    (12, 32, 64, 32),
    (2, 37, 64, 37),
    (4, 16, 5, 1),
    (1, 128, 40, 129),
]


WORKLOADS = {
    "dense": DenseWorkload(5, 19, 27, "int8", "int8"),
    "conv2d": Conv2dWorkload(2, 9, 11, 8, 12, (3, 3), (2, 1), (1, 0, 2, 1), (1, 2), 2, "int8", "int8"),
    "depthwise": Conv2dWorkload(1, 7, 9, 16, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 16, "int8", "int8"),
    "batch_matmul": BatchMatmulWorkload(3, 5, 12, 7, "int8", "int8"),
}
