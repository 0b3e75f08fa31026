"""MXNet: random symbols in the fused form of its quantizer. MXNet 1.9.1 itself, which no current Python supports, is
the oracle if the variable QNN_EXT_MXNET_PYTHON names an interpreter that has it; see `qnn_ext.evaluation.mxnet`."""

from __future__ import annotations

import os

from qnn_ext.frontends.mxnet import from_mxnet
from qnn_ext.frontends.mxnet.importer import CONVERTERS
from qnn_ext.module import QnnModule

from ..recipe import Case, Frontend, Oracle
from . import operators  # noqa: F401  (they fill the registry)
from .builder import GENERATORS, make
from .client import run_mxnet

FLOAT = "a float operator: tests/frontends/mxnet/data has MXNet's results"
REFUSED = "refused: MXNet itself computes it incorrectly"


def load(case: Case, sum_mode: str = "intended") -> QnnModule:
    return from_mxnet(case.content, case.facts["params"], case.facts["shapes"], sum_mode=sum_mode)


def load_as_mxnet(case: Case) -> QnnModule:
    """With the defects of MXNet 1.9.1."""
    return load(case, "mxnet")


EXCLUDED = {
    **{name: FLOAT for name in CONVERTERS if "quantize" not in name and not name.startswith("_sg_")},
    "RNN": "a float operator: tests/frontends/mxnet/test_recurrent.py compares it with PyTorch",
    "_contrib_quantized_conv": REFUSED,
    "_contrib_quantized_fully_connected": REFUSED,
}
FRONTEND = Frontend(
    name="mxnet",
    operators=tuple(GENERATORS),
    dtypes=("int8", "uint8"),
    make=make,
    load=load,
    supported=tuple(CONVERTERS),
    excluded=EXCLUDED,
    oracles=(Oracle("MXNet", load_as_mxnet, run_mxnet),) if os.environ.get("QNN_EXT_MXNET_PYTHON") else (),
)
