"""PyTorch's PT2E models: random programs of torch.export with quantize and dequantize operators."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from qnn_ext.frontends.pytorch.exported import (
    converters,  # noqa: F401  (they fill the registry)
    from_exported_program,
)
from qnn_ext.frontends.pytorch.exported.registry import CONVERTERS
from qnn_ext.module import QnnModule

from ..recipe import Case, FrameworkRefuses, Frontend, Oracle
from . import elementwise, moves, products, qparams, rows  # noqa: F401  (they fill the registry)
from .builder import GENERATORS, make
from .enclosure import enclose

warnings.filterwarnings("ignore", module="torch")
torch.set_num_threads(1)

NO_TENSOR = "becomes a number at import, or a constant: tests/frontends/pytorch/exported/test_operators.py"
FILLED = """
aten.sym_size.int aten.sym_numel.default aten.numel.default aten.ones_like.default aten.zeros_like.default
aten.full_like.default aten.new_zeros.default aten.new_ones.default aten.new_full.default aten.zeros.default
aten.ones.default aten.full.default aten.arange.default aten.arange.start aten.arange.start_step
aten.scalar_tensor.default
"""
NO_OVERLOAD = "this PyTorch has no such overload, but programs of other versions may use it"
REFERENCE = "a quantized tensor of convert_to_reference_fx: tests/frontends/pytorch/exported/test_reference.py"
TORCHAO = "an operator of the package torchao: tests/frontends/pytorch/exported/test_dynamic.py"
PACKED = "weights packed by PyTorch: tests/frontends/pytorch/exported/test_torchao_packed.py compares it with PyTorch"
TABLES = "a constant table: tests/frontends/pytorch/torchscript/test_embedding.py compares it with PyTorch"
RECURRENT = "a float layer: tests/frontends/pytorch/exported/test_recurrent.py compares it with PyTorch"
NORMS = "a float reduction: tests/frontends/pytorch/exported/test_operators.py compares it with PyTorch"
WRITES = "writes into tensors: tests/frontends/pytorch/exported/test_states.py compares it with PyTorch"
WINDOWS = "a float operator that moves or adds: tests/frontends/pytorch/exported/test_operators.py"
WRITTEN = ("index_copy.default", "index_put.default", "select_scatter.default", "slice_scatter.default")
DEPENDENT = "tests/frontends/pytorch/exported/test_data_dependent.py compares it, and what follows it, with PyTorch"
DEPENDENTS = """
aten.argwhere.default aten.index.Tensor aten.masked_select.default aten.nonzero.default aten.nonzero_numpy.default
aten._unique2.default aten.where.default torchvision.nms.default
"""
VALUES = "a float operator: tests/frontends/pytorch/exported/test_operators.py compares it with PyTorch"
OF_VALUES = """
aten._embedding_bag.default aten._embedding_bag_forward_only.default aten.adaptive_max_pool3d.default
aten.all.default aten.all.dim aten.all.dims aten.any.default aten.any.dim aten.any.dims aten.mH.default
aten.celu.default aten.upsample_bilinear2d.vec aten.upsample_bicubic2d.vec
aten._upsample_bicubic2d_aa.default aten._upsample_bilinear2d_aa.default aten.histc.default
aten.pow.Scalar aten.pow.Tensor_Tensor aten.scatter_reduce.two
aten.repeat_interleave.Tensor aten.topk.default aten.unfold.default transformers.grouped_mm_fallback.default
"""
FOURIER = "tests/frontends/pytorch/exported/test_operators.py compares it: complex numbers are never outputs"
TO_COMPLEX_AND_BACK = "aten.imag.default aten.real.default aten.view_as_complex.default aten.view_as_real.default"
EXCLUDED = {
    **dict.fromkeys(DEPENDENTS.split(), DEPENDENT),
    **{f"aten.{name}": WRITES for name in WRITTEN},
    "aten.cumsum.default": NORMS,
    **dict.fromkeys(OF_VALUES.split(), VALUES),
    **{name: VALUES for name in CONVERTERS if "shift" in name},
    **{name: WINDOWS for name in CONVERTERS if name.startswith(("aten.grid_sampler", "aten.meshgrid", "aten.prod"))},
    "aten.affine_grid_generator.default": WINDOWS,
    **dict.fromkeys(("aten.im2col.default", "aten.col2im.default", "aten.max_unpool2d.default"), WINDOWS),
    **{name: NORMS for name in CONVERTERS if "norm" in name and name.startswith("aten.linalg")},
    **{name: RECURRENT for name in CONVERTERS if name.startswith(("aten.lstm", "aten.gru", "aten.rnn"))},
    **{name: FOURIER for name in CONVERTERS if name.startswith("aten._fft")},
    **dict.fromkeys(TO_COMPLEX_AND_BACK.split(), FOURIER),
    **dict.fromkeys(("aten.item.default", "aten._local_scalar_dense.default"), DEPENDENT),
    **dict.fromkeys(FILLED.split(), NO_TENSOR),
    **dict.fromkeys(("aten.special_softmax.int", "aten.float.default"), NO_OVERLOAD),
    "aten.quantize_per_tensor.default": REFERENCE,
    "aten.quantize_per_tensor.tensor_qparams": REFERENCE,
    "aten.dequantize.self": REFERENCE,
    **{name: TORCHAO for name in CONVERTERS if name.startswith("torchao.")},
    **{name: TABLES for name in CONVERTERS if name.startswith("quantized.embedding")},
    **{name: PACKED for name in CONVERTERS if "int4pack" in name},
}


def exported(case: Case) -> torch.export.ExportedProgram:
    """The case's program, exported once."""
    if "program" not in case.facts:
        example = tuple(tensors(case.trials[0]))
        with torch.no_grad():
            try:
                case.facts["program"] = torch.export.export(case.content.eval(), example, strict=False)
            except Exception as error:  # PyTorch's own tracing: exceptions there have no common base
                raise FrameworkRefuses(str(error)) from error
    program: torch.export.ExportedProgram = case.facts["program"]
    return program


def tensors(values: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in values]


def load(case: Case) -> QnnModule:
    """The module. If a product runs in float after all, no output has to match the interpreter bit for bit."""
    module = from_exported_program(exported(case))
    if any(note.operator == "matmul" or note.operator.startswith("nn.conv") for note in module.notes):
        case.steady = [False] * len(case.steady)
    return module


def run_torch(case: Case) -> list[list[np.ndarray]]:
    """PyTorch's outputs of every trial."""
    module = exported(case).module()
    results = []
    for values in case.trials:
        with torch.no_grad():
            try:
                found = module(*tensors(values))
            except (RuntimeError, IndexError) as error:
                raise FrameworkRefuses(str(error)) from error
        results.append([tensor.numpy() for tensor in found])
    return results


FRONTEND = Frontend(
    name="pt2e",
    operators=tuple(GENERATORS),
    dtypes=("int8", "uint8", "int8", "uint8", "int16", "uint16"),
    make=make,
    load=load,
    supported=tuple(CONVERTERS),
    excluded=EXCLUDED,
    oracles=(Oracle("PyTorch", load, run_torch, enclose=enclose),),
)
