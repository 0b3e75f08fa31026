"""freeze and convert: a prepared module to a program of integers."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from torch import fx
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import QuantizationError, QuantizationWarning
from .capture import tensors_of
from .folding import corrected, moving_scale, norm_scale, unscaled
from .operators import module_of, parametric_nodes
from .preparing import set_arguments, state_of
from .schemes import FakeBias, FakeQuantize

OPERATORS = torch.ops.quantized_decomposed
_INT32 = torch.iinfo(torch.int32)


def freeze(module: fx.GraphModule, ranges: bool = True, statistics: bool = True) -> fx.GraphModule:
    """End the observing part of training, for its last epochs; the module is changed and returned.

    ranges:     scales and zero points, of weights too, stay what they are now
    statistics: batch normalizations use their moving statistics in training too, and become part of the products
                before them; their weights and biases still train

    Raises QuantizationError if a range to freeze has not been observed.
    """
    state_of(module)
    if statistics:
        for node in list(module.graph.nodes):
            if isinstance(_called(node), _BatchNorm):
                _freeze_norm(node)
        _drop_unused(module.graph)
        module.recompile()
    if ranges:
        for node in module.graph.nodes:
            if isinstance(_called(node), FakeQuantize):
                _freeze_range(node)
    return module


def convert(
    module: fx.GraphModule, example_inputs: Any = None, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """The program that a prepared and trained module stands for: 8-bit weights, int32 biases, quantize and dequantize
    operators (PT2E's form), which `qnn_ext.from_pytorch` and `to_onnx` take; `.module()` of it runs in PyTorch.

    example_inputs: tensors of the shapes that the program shall have, by default those given to `prepare`
    dynamic_shapes: as of `torch.export.export`

    The module is left as it is. In evaluation it computes the same integers, but for the rounding of its float32 sums:
    a value within n·2^-24·sum |x·w| of a tie, n being the number of products, may fall to the other side of it, one
    step away. With Cambricon's formula sums below 2^24 are exact. Fewer than 8 bits are stored in 8-bit dtypes and
    clipped to their range.

    Raises QuantizationError if a tensor has never been observed.
    """
    state = state_of(module)
    inputs = state.inputs if example_inputs is None else tensors_of(example_inputs)
    converted = freeze(copy.deepcopy(module).cpu().eval())
    with torch.no_grad():
        _to_integers(converted)
        return torch.export.export(converted, tuple(x.cpu() for x in inputs), dynamic_shapes=dynamic_shapes)


def _called(node: fx.Node) -> Any:
    """The module that a node calls."""
    return module_of(node) if node.op == "call_module" else None


def _drop_unused(graph: fx.Graph) -> None:
    """Remove nodes whose results nobody reads, but for what changes its operand."""
    graph.eliminate_dead_code(
        lambda node: (
            node.op in ("placeholder", "output")
            or bool(node.kwargs.get("inplace"))
            or getattr(node.target, "__name__", str(node.target)).endswith("_")
            or (node.op == "call_module" and not isinstance(module_of(node), (FakeQuantize, FakeBias, _BatchNorm)))
        )
    )


# ---- freeze ------------------------------------------------------------------------------------------------------


def _freeze_norm(node: fx.Node) -> None:
    """A batch normalization by its moving statistics, in the bias of the product before it if it is folded."""
    graph, layer, target = node.graph, module_of(node), str(node.target)
    if layer.running_var is None:
        return
    x: Any = node.args[0]
    if x.target is not unscaled:
        with graph.inserting_before(node):
            mean, variance = (graph.get_attr(f"{target}.running_{name}") for name in ("mean", "var"))
            gamma, shift = (graph.get_attr(f"{target}.{n}") if layer.affine else None for n in ("weight", "bias"))
            fixed = graph.call_function(F.batch_norm, (x, mean, variance, gamma, shift, False, 0.0, layer.eps))
        fixed.meta.update(node.meta)
        node.replace_all_uses_with(fixed)
        return
    product, s, _ = x.args
    assert s.target is moving_scale
    s.target = norm_scale
    correction = next(user for user in node.users if user.target is corrected)
    set_arguments(product, bias=correction.args[2])
    correction.replace_all_uses_with(product)


def _freeze_range(node: fx.Node) -> None:
    quantizer = module_of(node)
    if quantizer.frozen:
        return
    if quantizer.current:
        with torch.no_grad():
            quantizer.observe(value_of(node.all_input_nodes[0]))
    if (quantizer.minimum > quantizer.maximum).any():
        raise QuantizationError(
            f"{node.args[0]}: its range has not been observed; run the module in training mode on data first"
        )
    if not (quantizer.minimum.isfinite() & quantizer.maximum.isfinite()).all():
        raise QuantizationError(
            f"{node.args[0]}: its values are not finite; the data are not, or training has diverged"
        )
    quantizer.frozen = True


def value_of(node: fx.Node) -> torch.Tensor:
    """The value of a node that depends on parameters alone."""
    needed, pending = {node}, [node]
    while pending:
        for operand in pending.pop().all_input_nodes:
            if operand not in needed:
                needed.add(operand)
                pending.append(operand)
    module: Any = node.graph.owning_module
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    interpreter.env = {}
    for step in module.graph.nodes:
        if step in needed:
            interpreter.env[step] = interpreter.run_node(step)
    return interpreter.env[node]


# ---- convert -----------------------------------------------------------------------------------------------------


def _to_integers(module: fx.GraphModule) -> None:
    """Quantize and dequantize operators, and stored integers, in place of what stood for them in training."""
    graph = module.graph
    constants = parametric_nodes(graph)
    stands_for = [node for node in graph.nodes if isinstance(_called(node), (FakeQuantize, FakeBias))]
    results = []
    for node in stands_for:
        quantizer = _called(node)
        with graph.inserting_before(node):
            if isinstance(quantizer, FakeBias):
                results.append(_quantize_bias(module, node))
            elif node in constants:
                integers = _constant(
                    module, f"{node.name}_integers", _quantized(value_of(node.all_input_nodes[0]), quantizer)
                )
                results.append(_dequantize(module, integers, quantizer, node.name))
            else:
                scale, zero_point = (value.item() for value in quantizer.parameters_of_range())
                parameters = (scale, zero_point, *quantizer.scheme.limits, quantizer.scheme.dtype)
                integers = graph.call_function(OPERATORS.quantize_per_tensor.default, (node.args[0], *parameters))
                results.append(_dequantize(module, integers, quantizer, node.name))
    for node, result in zip(stands_for, results, strict=True):
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    _drop_unused(graph)
    module.delete_all_unused_submodules()
    module.recompile()


def _quantized(value: torch.Tensor, quantizer: FakeQuantize) -> torch.Tensor:
    scale, zero_point = quantizer.parameters_of_range()
    limits = (*quantizer.scheme.limits, quantizer.scheme.dtype)
    if quantizer.axis is None:
        return OPERATORS.quantize_per_tensor.default(value, scale.item(), zero_point.item(), *limits)
    return OPERATORS.quantize_per_channel.default(value, scale, zero_point, quantizer.axis, *limits)


def _dequantize(module: fx.GraphModule, integers: fx.Node, quantizer: FakeQuantize, name: str) -> fx.Node:
    limits = (*quantizer.scheme.limits, quantizer.scheme.dtype)
    return _real(module, integers, *quantizer.parameters_of_range(), quantizer.axis, limits, name)


def _real(
    module: fx.GraphModule,
    integers: fx.Node,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int | None,
    limits: tuple[Any, ...],
    name: str,
) -> fx.Node:
    """The real values of integers. axis: of the scales, if there are several; limits: smallest, largest, dtype."""
    call = module.graph.call_function
    if axis is None:
        return call(OPERATORS.dequantize_per_tensor.default, (integers, scale.item(), zero_point.item(), *limits))
    parameters = _constant(module, f"{name}_scale", scale), _constant(module, f"{name}_zero_point", zero_point)
    return call(OPERATORS.dequantize_per_channel.default, (integers, *parameters, axis, *limits))


def _quantize_bias(module: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A bias as int32, or as it is where that cannot hold it."""
    value, rounding = value_of(node.all_input_nodes[0]), module_of(node)
    integers, scale = rounding.integers(value), rounding.scale
    if integers is None:
        text = f"{node.name}: stays in float, being too large for int32 in units of its layer's products"
        warnings.warn(text, QuantizationWarning, stacklevel=4)
        return _constant(module, node.name, value)
    stored = _constant(module, f"{node.name}_integers", integers)
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    limits = (_INT32.min, _INT32.max, torch.int32)
    return _real(module, stored, scale, zeros, 0 if scale.ndim else None, limits, node.name)


def _constant(module: fx.GraphModule, name: str, value: torch.Tensor) -> fx.Node:
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, value)
    return module.graph.get_attr(name)
