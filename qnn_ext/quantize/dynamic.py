"""Dynamic quantization: weights are integers, activations are quantized at run time with their actual range.

Every tensor that a product reads gets a scale from its own smallest and largest value, per tensor and call, as in
ONNX's DynamicQuantizeLinear. No calibration data are needed; finding the range costs one pass over the tensor. Biases
and everything between products stay float, in the kernels of the products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..errors import QuantizationError
from ..module import QnnModule
from ..op import compound
from ..op.base import constant, definition_of
from ..op.observe import OBSERVE
from ..passes.bodies import everywhere
from ..passes.rewrite import Emit, rewrite
from .annotate import Site, annotate, sites
from .config import QConfig
from .ranges import integer_range
from .realize import realize
from .weights import weight_range


def dynamic(folded: QnnModule, config: QConfig) -> QnnModule:
    """`folded` (float32) with integer products: dense, matmul, convolutions; or their simulation (`do_simulation`).

    Tensors that `annotate` marks as operands of a product are quantized, weights with the scales that `config` asks
    for; marks on other tensors are dropped. Raises QuantizationError if the config asks for power-of-two scales, which
    only calibrated ranges have, or leaves nothing to quantize.
    """
    if config.power_of_two:
        raise QuantizationError(
            "quantization_formula='cambricon' needs scales that are powers of two, which ranges found at run time are "
            "not: leave dynamic out, or choose 'google'"
        )
    annotated = annotate(folded, config)
    by_name = {site.name: site for site in sites(annotated)}

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if definition_of(value) is not OBSERVE:
            return None
        site = by_name[str(value.attrs["site"])]
        if site.role == "weight":
            return None
        return quantize_at_run_time(value.args[0], site, emit) if site.role == "input" else value.args[0]

    def changed(mod: IRModule) -> IRModule:
        return rewrite(mod, rule)

    marked = replace(annotated, ir=everywhere(annotated.ir, changed))
    table = {
        site.name: weight_range(site.value, site.axis, config.weight_scale, site.bits, site=site.name)
        for site in by_name.values()
        if site.value is not None
    }
    return realize(marked, table, config)


def quantize_at_run_time(x: Any, site: Site, emit: Emit) -> Any:
    """dequantize(quantize(x)) with the smallest scale that covers x.

    asymmetric: s = (max(x, 0) − min(x, 0)) / (q_high − q_low), z = saturate(rint(q_low − min(x, 0) / s))
    symmetric:  s = max |x| / (2^(bits−1) − 1), z the middle of the integers

    A tensor of zeros has s = 1.
    """
    low, high = integer_range(site.dtype, site.bits, site.symmetric)
    zero_point: Any
    if site.symmetric:
        middle = (low + high + 1) // 2
        largest = emit(relax.op.max(emit(relax.op.abs(x))))
        ends = emit(relax.op.stack([constant(np.float32(0)), largest]))
        scale = emit(qnn.range_scale(ends, high - middle))
        zero_point = constant(np.int32(middle))
    else:
        ends = compound.value_ends(x, emit)
        scale = emit(qnn.range_scale(ends, high - low))
        zero_point = emit(relax.op.clip(emit(qnn.range_zero_point(ends, scale, low, site.dtype)), low, high))
    integers = emit(qnn.quantize(x, scale, zero_point, out_dtype=site.dtype))
    if site.bits < np.iinfo(site.dtype).bits or site.symmetric:
        integers = emit(relax.op.clip(integers, low, high))
    return emit(qnn.dequantize(integers, scale, zero_point))
