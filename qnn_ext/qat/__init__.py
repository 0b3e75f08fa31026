"""Quantization-aware training of PyTorch modules.

    prepared = qat.prepare(network, example, qat.QatConfig(weight_bits=4))
    ...                                          # train it as any module
    qat.freeze(prepared)                         # for the last epochs, if wanted
    program = qat.convert(prepared)              # a torch.export program of integers
    module = qnn_ext.from_pytorch(program)       # or qat.to_onnx(program, "network.onnx")

torchao's prepare_qat_pt2e and convert_pt2e are not underneath: they fold batch normalization as if its eps were 1e-5
and its momentum 0.1 (torchao 0.18), and take minutes to compile patterns. The result has the form of theirs, PT2E's.
"""

from ..frontends.pytorch.common import import_torch

import_torch()

from .config import QatConfig  # noqa: E402
from .converting import convert, freeze  # noqa: E402
from .exporting import to_onnx  # noqa: E402
from .preparing import notes, prepare  # noqa: E402
from .runtimes import Agreement, agreement  # noqa: E402
from .schemes import FakeBias, FakeQuantize, Scheme  # noqa: E402

__all__ = [
    "Agreement",
    "FakeBias",
    "FakeQuantize",
    "QatConfig",
    "Scheme",
    "agreement",
    "convert",
    "freeze",
    "notes",
    "prepare",
    "to_onnx",
]
