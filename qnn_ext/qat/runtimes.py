"""agreement: whether every runtime computes the integers of a converted program."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from ..building import build
from ..frontends.onnx import from_onnx
from ..frontends.pytorch import from_pytorch
from ..interpreter import Interpreter
from .capture import tensors_of
from .converting import OPERATORS
from .exporting import to_onnx

_QUANTIZE, _DEQUANTIZE = OPERATORS.quantize_per_tensor.default, OPERATORS.dequantize_per_tensor.default


@dataclass(frozen=True)
class Agreement:
    """How a runtime's values differ from those that exact sums give."""

    runtime: str
    different: int  # values that are not equal
    total: int
    largest: float  # in steps of a value's integers; of a float output, absolute


def agreement(
    program: torch.export.ExportedProgram, example_inputs: Any = None, layers: bool = False
) -> list[Agreement]:
    """Compare runtimes with the interpreter, whose sums are exact, on the program and on its ONNX export.

    example_inputs: of the program's shapes; by default those it was exported with
    layers:         compare every quantized tensor, not only the outputs. This asks for more outputs, so that runtimes
                    join fewer operators than they do in the program itself

    Runtimes: PyTorch (in float32, between the integers), this package on this machine, from the program and from the
    ONNX model, and what is installed of ONNX Runtime, without and with its optimizations, and OpenVINO. On CPUs without
    VNNI the last two saturate sums of two products, unless weights have 7 bits or fewer; there OpenVINO also halves
    weights that meet signed activations.
    """
    inputs = program.example_inputs[0] if example_inputs is None else tensors_of(example_inputs)
    program, steps = with_layers(program, inputs) if layers else (program, _steps(program))
    arrays = [x.detach().cpu().numpy() for x in inputs]
    names = program.graph_signature.user_inputs
    shapes = {str(name): x.shape for name, x in zip(names, arrays, strict=True)}
    module = from_pytorch(program, shapes=shapes)
    exact = list(Interpreter(module).run(arrays).values())
    found = []
    for name, run in _runtimes(program, module, arrays).items():
        pairs = zip(exact, run(), strict=True)
        differences = [np.abs(y.astype(np.float64) - x.astype(np.float64)) for x, y in pairs]
        different, total = sum(int((d > 0).sum()) for d in differences), sum(d.size for d in differences)
        largest = max(float(d.max(initial=0)) / step for d, step in zip(differences, steps, strict=True))
        found.append(Agreement(name, different, total, largest))
    return found


def with_layers(
    program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
) -> tuple[torch.export.ExportedProgram, list[float]]:
    """A program that returns the integers of every quantized tensor, and their steps, which are 1."""
    module = copy.deepcopy(program.module())
    output = next(node for node in module.graph.nodes if node.op == "output")
    quantized = [node for node in module.graph.nodes if node.target is _QUANTIZE]
    output.args = (tuple(quantized),)
    module.graph._codegen = fx.graph.CodeGen()
    module.recompile()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, tuple(inputs)), [1.0] * len(quantized)


def _steps(program: torch.export.ExportedProgram) -> list[float]:
    """The scale of each output; 1 where it is not quantized."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    steps = []
    for node in output.all_input_nodes:
        while node.target is not _DEQUANTIZE and node.all_input_nodes:
            node = node.all_input_nodes[0]
        steps.append(float(node.args[1]) if node.target is _DEQUANTIZE else 1.0)
    return steps


def _runtimes(
    program: torch.export.ExportedProgram, module: Any, arrays: Sequence[np.ndarray]
) -> dict[str, Callable[[], list[np.ndarray]]]:
    model = to_onnx(program)
    content, feed = model.SerializeToString(), dict(zip((i.name for i in model.graph.input), arrays, strict=True))

    def in_pytorch() -> list[np.ndarray]:
        with torch.no_grad():
            results = program.module()(*map(torch.from_numpy, arrays))
        return [value.numpy() for value in torch.utils._pytree.tree_leaves(results)]

    def here(imported: Any) -> list[np.ndarray]:
        return list(build(imported).run(feed).values())

    found: dict[str, Callable[[], list[np.ndarray]]] = {
        "PyTorch": in_pytorch,
        "qnn_ext": lambda: here(module),
        "qnn_ext from ONNX": lambda: here(from_onnx(content)),
    }
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        levels = onnxruntime.GraphOptimizationLevel
        found["ONNX Runtime, not optimized"] = lambda: _in_onnxruntime(
            onnxruntime, content, feed, levels.ORT_DISABLE_ALL
        )
        found["ONNX Runtime"] = lambda: _in_onnxruntime(onnxruntime, content, feed, levels.ORT_ENABLE_ALL)
    try:
        import openvino
    except ImportError:
        pass
    else:
        found["OpenVINO"] = lambda: _in_openvino(openvino, content, arrays)
    return found


def _in_onnxruntime(onnxruntime: Any, content: bytes, feed: dict[str, np.ndarray], level: Any) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


def _in_openvino(openvino: Any, content: bytes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(list(arrays))
    return [results[output] for output in compiled.outputs]
