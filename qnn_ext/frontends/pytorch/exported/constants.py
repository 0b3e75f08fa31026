"""Constants of a program: kept as PyTorch's tensors, computed now where everything they depend on is constant.

Integer weights stay integers: operators that turn them into floats are never computed at import.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ....errors import ModelFormatError, UnsupportedOperatorError
from ....limits import charge, check_elements, most_folded
from ....op.base import constant
from ....processes.isolation import working_on
from ..common import check_quotient
from .complex_numbers import complex_constant
from .functional import is_mutable
from .values import array_of, is_any_of

INNER_TENSOR = "export.access_subclass_inner_tensor.default"
NOT_CONSTANT = object()
_MAX_BITS = 256  # bits of an integer computed from others: PyTorch's have 64
_LARGEST: dict[str, Callable[..., Sequence[int]]] = {
    **dict.fromkeys(("nonzero", "nonzero_numpy", "argwhere"), lambda x: (x.numel(), max(x.ndim, 1))),
    "masked_select": lambda x, mask: torch.broadcast_shapes(x.shape, mask.shape),
    "repeat_interleave": lambda repeats, *_: (max(int(repeats.sum()), 0),),
}
"""The largest shape of results whose shape tensors without values do not tell."""
_NEVER_FOLDED = (
    "quantized_decomposed.dequantize",
    "torchao.dequantize_affine",
    "aten.quantize_per_tensor",
    "aten.dequantize",
)


class Values(dict):
    """Node -> value; a constant tensor becomes a Relax constant at its first use as one."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[fx.Node, Any] = {}

    def keep(self, node: fx.Node, value: Any) -> None:
        """Set the value of a node: numbers as they are, anything else as a PyTorch constant."""
        if isinstance(value, (int, float, bool)):
            self[node] = value
        else:
            self.tensors[node] = value

    def known(self, node: fx.Node) -> Any:
        """The value of a node if it is a constant tensor or a number, else NOT_CONSTANT."""
        if node in self.tensors:
            return self.tensors[node]
        value = self.get(node, NOT_CONSTANT)
        return value if isinstance(value, (int, float, bool)) else NOT_CONSTANT

    def __missing__(self, node: fx.Node) -> Any:
        if node not in self.tensors:
            raise ModelFormatError(f"'{node}' is used before it is computed")
        self[node] = as_value(self.tensors[node])
        return self[node]

    def get(self, node: Any, default: Any = None) -> Any:
        return self[node] if node in self or node in self.tensors else default


def as_value(tensor: Any) -> Any:
    """PyTorch constants as Relax constants; numbers stay numbers."""
    if isinstance(tensor, (tuple, list)):
        return tuple(as_value(item) for item in tensor)
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UnsupportedOperatorError(
            f"a weight of type {type(tensor).__name__} whose arithmetic PyTorch does not export; put the weight's "
            "dequantize() in its place before the export, or quantize to int8, int4 or float8"
        )
    if tensor.layout != torch.strided:
        raise UnsupportedOperatorError(f"a constant of layout {tensor.layout} is not supported")
    return complex_constant(tensor) if tensor.dtype.is_complex else constant(array_of(tensor))


def fold(values: Values, node: fx.Node, name: str) -> Any:
    """The result of a node on constants, computed by PyTorch; NOT_CONSTANT where it depends on an input or turns
    integer weights into floats. Raises LimitError when it would be too big."""
    if any(values.known(arg) is NOT_CONSTANT for arg in node.all_input_nodes):
        return NOT_CONSTANT
    if is_any_of(name, _NEVER_FOLDED) or loses_integers(values, node, name):
        return NOT_CONSTANT
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.known)
    target: Any = node.target
    working_on(f"evaluating {name}")
    if isinstance(target, torch._ops.OpOverload):
        if kwargs.get("rounding_mode") == "trunc":
            check_quotient(*args[:2])
        _check_size(target, _own(node, args), kwargs)
    else:
        _check_number(target, args)
    with torch.no_grad():
        return target(*_own(node, args), **kwargs)


def _own(node: fx.Node, args: Any) -> Any:
    """The arguments, copied for an operator that writes to them. FakeTensorMode writes to small real tensors, too."""
    if not is_mutable(node):
        return args
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def loses_integers(values: Values, node: fx.Node, name: str) -> bool:
    """A cast of integer weights to float."""
    if not name.startswith(("aten.to.", "aten._to_copy.")) or not isinstance(node.args[0], fx.Node):
        return False
    source = values.known(node.args[0])
    is_weight = isinstance(source, torch.Tensor) and source.dtype in (torch.int8, torch.uint8) and source.ndim >= 2
    return is_weight and node.meta["val"].is_floating_point()


def _check_number(target: Any, args: Any) -> None:
    """Raises ModelFormatError when Python would compute an integer with absurdly many digits."""
    if target not in (operator.pow, operator.lshift) or not all(isinstance(arg, int) for arg in args):
        return
    base, exponent = args
    digits = exponent * abs(base).bit_length() if target is operator.pow else exponent + abs(base).bit_length()
    if digits > _MAX_BITS:
        raise ModelFormatError(f"an integer would have over {_MAX_BITS} bits: the program is damaged")


def _check_size(target: Any, args: Any, kwargs: Any) -> None:
    """Raises LimitError when a constant would become too big."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    largest = _LARGEST.get(target.__name__.split(".")[0])
    if target.__name__ == "index.Tensor" and any(one is not None and one.dtype == torch.bool for one in args[1]):
        largest = _selected
    if largest is not None:
        charge(check_elements(largest(*args), "a constant", "folded"), "a constant")
        return
    with FakeTensorMode(allow_non_fake_inputs=True):
        result = target(*args, **kwargs)
    tensors = result if isinstance(result, (tuple, list)) else [result]
    for item in tensors:
        if isinstance(item, torch.Tensor):
            charge(check_elements(item.shape, "a constant", "folded", exempt=most_folded()), "a constant")


def _selected(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Sequence[int]:
    """Of x[mask]: as many elements as x has, times those of indices beside the mask."""
    return (x.numel(), *(one.numel() for one in indices if one is not None and one.dtype != torch.bool))


def check_parts(tensors: Mapping[str, Any], source: str) -> None:
    """Raises ModelFormatError for weights made of several tensors, as torchao's are, that do not fit each other: their
    classes check that when they are made, but not when they are unpickled or changed."""
    for name, tensor in tensors.items():
        if not hasattr(tensor, "__tensor_flatten__"):
            continue
        try:
            parts, context = tensor.__tensor_flatten__()
            inner = {part: getattr(tensor, part) for part in parts}
            problem = next((f"{part} is {kind}" for part, one in inner.items() if (kind := _no_array(one))), None)
            if problem is None:
                whole = type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
                if whole.shape != tensor.shape:
                    problem = f"its parts make one of shape {tuple(whole.shape)}, not {tuple(tensor.shape)}"
        except Exception as error:
            problem = (str(error).strip().splitlines() or ["its parts have shapes or dtypes of no such weight"])[0]
        if problem is not None:
            raise ModelFormatError(
                f"{source}: weight {name!r} ({type(tensor).__name__}) is damaged: {problem}; quantize the model again"
            )


def _no_array(value: Any) -> str | None:
    """Why a value is no tensor with its values at hand; None if it is one."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}, not a tensor"
    if value.layout != torch.strided or value.device.type == "meta":
        return f"a tensor of layout {value.layout} on device {value.device}"
    return None


def inner_tensor(values: Values, node: fx.Node) -> torch.Tensor:
    """A part of a weight that is a tensor subclass, such as torchao's integers, scales and zero points."""
    source, attribute = node.args
    tensor = values.known(source) if isinstance(source, fx.Node) else source
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or attribute not in flatten()[0]:
        raise UnsupportedOperatorError(f"reading {attribute!r} of a {type(tensor).__name__} is not supported")
    return getattr(tensor, str(attribute))
