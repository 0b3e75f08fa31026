"""PyTorch's eager mode quantization: random modules of quantized operators, traced to TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from qnn_ext.frontends.pytorch import from_pytorch
from qnn_ext.frontends.pytorch.torchscript import converters  # noqa: F401  (they fill the registry)
from qnn_ext.frontends.pytorch.torchscript.registry import CONVERTERS
from qnn_ext.module import QnnModule

from ..recipe import Case, FrameworkRefuses, Frontend, Oracle, Recipe
from .operators import GENERATORS, TorchBuilder

warnings.filterwarnings("ignore", module="torch")
torch.set_num_threads(1)

FLOAT = "a float operator: tests/frontends/pytorch/torchscript compare it with PyTorch"
NEEDS_MODULE = "a module with its own packed parameters: tests/frontends/pytorch/torchscript/test_dynamic.py"
TABLES = "a constant table: tests/frontends/pytorch/torchscript/test_embedding.py compares it with PyTorch"
WITH_MODULES = """
quantized::linear_dynamic quantized::linear_dynamic_fp16 quantized::linear_relu_dynamic
quantized::linear_relu_dynamic_fp16 aten::quantized_gru aten::quantized_lstm
quantized::conv_transpose3d quantized::conv1d_relu quantized::conv3d_relu quantized::conv3d quantized::dropout
quantized::batch_norm quantized::batch_norm1d quantized::batch_norm1d_relu quantized::batch_norm2d
quantized::batch_norm2d_relu quantized::batch_norm3d quantized::batch_norm3d_relu quantized::batch_norm_relu
quantized::max_pool1d quantized::max_pool2d aten::quantized_max_pool1d aten::quantized_max_pool2d
quantized::conv_transpose1d quantized::conv_transpose2d quantized::prelu quantized::quantized_lstm_cell_dynamic
quantized::quantized_gru_cell_dynamic quantized::quantized_rnn_tanh_cell_dynamic
quantized::quantized_rnn_relu_cell_dynamic
"""


class Program(torch.nn.Module):
    """A module that runs the steps of a recipe in order; tensors go by number."""

    def __init__(self, steps: list[tuple[Callable[..., Any], tuple[int, ...]]], outputs: list[int]) -> None:
        super().__init__()
        self.steps, self.outputs = steps, outputs
        modules = [step for step, _ in steps if isinstance(step, torch.nn.Module)]
        self.held = torch.nn.ModuleList(modules)

    def forward(self, *args: torch.Tensor) -> Any:
        tensors = list(args)
        for step, operands in self.steps:
            tensors.append(step(*(tensors[index] for index in operands)))
        return tuple(tensors[index] for index in self.outputs)


def make(recipe: Recipe) -> Case:
    """The case of a recipe."""
    torch.manual_seed(recipe.seed)
    builder = TorchBuilder(recipe)
    for step in recipe.steps:
        builder.draw.begin(step.seed)
        GENERATORS[step.operator](builder)
    steps, order = builder.program()
    outputs = [order[value.key] for value in builder.results()]
    case = builder.case(Program(steps, outputs))
    case.facts.update(quantized=[(v.scale, v.zero) if v.quantized else None for v in builder.inputs])
    return case


def tensors(case: Case, values: list[np.ndarray]) -> list[torch.Tensor]:
    """One trial's inputs as PyTorch expects them."""
    made = []
    for array, qparams in zip(values, case.facts["quantized"], strict=True):
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        made.append(torch._make_per_tensor_quantized_tensor(tensor, *qparams) if qparams else tensor)
    return made


def load(case: Case) -> QnnModule:
    """Traced and imported, for the engine with which PyTorch runs it."""
    engine = "fbgemm"
    torch.backends.quantized.engine = engine
    example = tuple(tensors(case, case.trials[0]))
    with torch.no_grad():
        try:
            traced = torch.jit.trace(case.content.eval(), example, check_trace=False)
        except RuntimeError as error:  # PyTorch runs the model to trace it
            raise FrameworkRefuses(str(error)) from error
    return from_pytorch(traced, example, engine=engine)


def run_torch(case: Case) -> list[list[np.ndarray]]:
    """PyTorch's outputs of every trial."""
    torch.backends.quantized.engine = "fbgemm"
    results = []
    for values in case.trials:
        with torch.no_grad():
            try:
                found = case.content.eval()(*tensors(case, values))
            except RuntimeError as error:
                raise FrameworkRefuses(str(error)) from error
        results.append([(t.int_repr() if t.is_quantized else t).numpy() for t in found])
    return results


EXCLUDED = {
    **{name: FLOAT for name in CONVERTERS if name.startswith("aten::")},
    **dict.fromkeys(WITH_MODULES.split(), NEEDS_MODULE),
    **{name: TABLES for name in CONVERTERS if name.startswith("quantized::embedding")},
}
FRONTEND = Frontend(
    name="pytorch",
    operators=tuple(GENERATORS),
    dtypes=("uint8",),
    make=make,
    load=load,
    supported=tuple(CONVERTERS),
    excluded={name: why for name, why in EXCLUDED.items() if name not in GENERATORS},
    oracles=(Oracle("PyTorch", load, run_torch),),
)
