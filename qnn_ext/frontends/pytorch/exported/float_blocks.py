"""Weights of NVFP4: floats of 4 bits (e2m1) in blocks with scales, which torchao keeps as tensors of its own class.
Their arithmetic is no part of a program; a weight is read as integers, twice its floats, with half of its scales."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._guards import detect_fake_mode
from tvm import relax

from .... import op as qnn
from ....errors import ModelFormatError
from ....limits import charge
from ....numerics.packed import pack
from ....op.base import constant

_LARGEST = 12
"""Twice the largest float of 4 bits."""


@dataclass(frozen=True)
class FloatBlocks:
    """w[n, k] = q[n, k] · scale[n, ⌊k / group⌋]; q: integers from −12 to 12"""

    values: np.ndarray
    scale: np.ndarray

    def dequantized(self) -> relax.Call:
        """The matrix in float32; its integers stay packed, see `passes.blockwise`."""
        depth, blocks = self.values.shape[1], self.scale.shape[1]
        parts = constant(pack(self.values, "int8")), constant(self.scale), constant(np.zeros((), np.int32))
        return qnn.blockwise_dequantize(*parts, depth, "int8", depth // blocks)


def without_blocks(program: Any, source: str) -> tuple[Any, dict[str, FloatBlocks]]:
    """The program with tensors without values in place of such weights, which PyTorch can decompose, and the weights by
    name."""
    found = {name: blocks for name, one in program.state_dict.items() if (blocks := _blocks(name, one, source))}
    if not found:
        return program, {}
    module = copy.deepcopy(program.graph_module)
    for node, original in zip(module.graph.nodes, program.graph.nodes, strict=True):
        node.name = original.name  # the copy renames what is called as a function of Python's is, such as `input`
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    mode = detect_fake_mode([node.meta.get("val") for node in places])
    state = dict(program.state_dict)
    for node, spec in zip(places, program.graph_signature.input_specs, strict=True):
        if spec.target in found:
            weight = state[spec.target]
            empty = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
            state[spec.target] = torch.nn.Parameter(empty, requires_grad=False)
            node.meta["val"] = mode.from_tensor(empty) if mode is not None else empty
    plain = torch.export.ExportedProgram(
        module,
        module.graph,
        program.graph_signature,
        state,
        program.range_constraints,
        program.module_call_graph,
        program.example_inputs,
        program.constants,
        verifiers=program.verifiers,
    )
    return plain, found


def _blocks(name: str, weight: Any, source: str) -> FloatBlocks | None:
    """Such a weight's integers and scales. None for other weights, and where activations are to be NVFP4, too."""
    if type(weight).__name__ != "NVFP4Tensor" or weight.ndim != 2 or not weight.qdata.is_contiguous():
        return None
    if getattr(weight, "act_quant_kwargs", None) is not None:
        return None
    charge(weight.shape, f"weight '{name}'")
    try:
        with torch.no_grad():
            real, scale = weight.dequantize(torch.float32).numpy(), weight.get_hp_scales().numpy()
        scale = scale.reshape(real.shape[0], -1).astype(np.float32)
        steps = np.repeat(scale, real.shape[1] // scale.shape[1], axis=1) / 2
        values = np.rint(np.divide(real, steps, out=np.zeros_like(real), where=steps != 0))
        if not np.isfinite(scale).all() or np.abs(values).max(initial=0) > _LARGEST:
            raise ValueError("its scales must be finite")
    except Exception as error:  # parts that do not fit each other
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelFormatError(
            f"{source}: weight '{name}' (NVFP4Tensor) is damaged: {reason}; quantize the model again"
        ) from error
    return FloatBlocks(values.astype(np.int8), scale / 2)
