"""Memory of a network in float32 and in 8 bits, split into weights and feature maps as in the paper on QNN.

A. Jain, S. Bhattacharya, M. Masuda, V. Sharma, Y. Wang: Efficient Execution of Quantized Deep Learning Models: A
Compiler Approach, 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import IRModule

from ..building import build
from ..compiling.build import TargetLike
from ..module import QnnModule
from ..op.base import shape_of
from ..passes.bodies import every_binding
from ..passes.footprint import peak, tensor_bytes
from ..passes.inline import inlined
from ..passes.rewrite import op_name, operands
from ..quantize.compare import random_batches
from ..quantize.config import QConfig
from ..quantize.stages import is_quantized
from ..running.engine import Engine
from ..running.model import target_name


@dataclass(frozen=True)
class Footprint:
    """Bytes of one build of a network.

    weights:          all constants as the kernels read them, see `qnn_ext.running.model.Memory`
    feature_maps:     the most that activations and scratch buffers take at the same time
    all_feature_maps: those of all kernels together, as if no memory were used twice
    """

    weights: int
    feature_maps: int
    all_feature_maps: int


@dataclass(frozen=True)
class MemorySplit:
    """A network on one target.

    computed: whether there is no float build, so that `float32` counts 4 bytes for each weight of the model and for
              each value of the integer build's tensors
    """

    model: str
    target: str
    float32: Footprint
    int8: Footprint
    computed: bool


def memory_split(
    model: QnnModule,
    target: TargetLike = "native",
    num_threads: int | None = None,
    float_model: QnnModule | None = None,
    qconfig: QConfig | None = None,
) -> MemorySplit:
    """The memory of a network on a target, in float32 and in integers; it need not run here.

    model:       a quantized module; or a float one, which is quantized with random data: no size depends on values
    float_model: the float version of a quantized module; without, its figures are computed
    qconfig:     how to quantize
    """
    if is_quantized(model):
        integers = build(model, target, num_threads)
    else:
        float_model = model
        integers = build(model, target, num_threads, qconfig=qconfig, dataset=list(random_batches(model, 1)))
    floating = None if float_model is None else build(float_model, target, num_threads)
    return split_of(model, integers, floating)


def split_of(model: QnnModule, integers: Engine, floating: Engine | None) -> MemorySplit:
    """The memory of engines that were built in this process."""
    float32 = _in_float32(model, integers.tir) if floating is None else _footprint(floating)
    name = target_name(integers.target)
    return MemorySplit(model.source, name, float32, _footprint(integers), floating is None)


def _footprint(engine: Engine) -> Footprint:
    return Footprint(engine.memory.weights, engine.memory.feature_maps, _all_feature_maps(engine.tir, 0))


def _in_float32(model: QnnModule, lowered: IRModule) -> Footprint:
    """What a quantized model would take in float32: the same weights, the same tensors between its kernels."""
    weights = {
        operand: 4 * math.prod(shape_of(operand))
        for binding, _ in every_binding(inlined(model.ir))
        for operand in operands(binding.value)
        if isinstance(operand, tvm.ir.expr.GenericConst) and shape_of(operand)
    }
    return Footprint(sum(weights.values()), peak(lowered, 4)[0], _all_feature_maps(lowered, 4))


def _all_feature_maps(lowered: IRModule, least: int) -> int:
    """Bytes of the inputs and of all that kernels write; each value counts for at least so many."""
    written = (binding.var.ty for binding, _ in every_binding(lowered) if op_name(binding.value) == "call_tir")
    inputs = (param.ty for param in lowered["main"].params)
    return sum(tensor_bytes(ty, least) for ty in (*inputs, *written))
