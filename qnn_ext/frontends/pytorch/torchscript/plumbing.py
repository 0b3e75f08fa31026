"""TorchScript's own plumbing, evaluated at import: constants, lists, tuples, numbers, sizes. No tensor arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....errors import UnsupportedOperatorError
from .values import Reference, Traced, plain, traced_in

# Queries about a tensor that its type answers: asked of the example
QUESTIONS = frozenset((
    "aten::device", "aten::dim", "aten::dtype", "aten::get_device", "aten::is_complex", "aten::is_contiguous",
    "aten::is_floating_point", "aten::is_quantized", "aten::len", "aten::ndimension", "aten::numel", "aten::q_scale",
    "aten::q_zero_point", "aten::qscheme", "aten::requires_grad", "aten::size", "aten::stride", "prim::device",
    "prim::dtype", "prim::is_cuda", "prim::is_nested", "prim::is_quantized", "prim::layout", "prim::requires_grad",
    "prim::shape", "prim::type",
))  # fmt: skip

# Arithmetic on numbers, strings and constant tensors, and newly created tensors: PyTorch evaluates these
ARITHMETIC = frozenset((
    "aten::Bool", "aten::Float", "aten::FloatImplicit", "aten::Int", "aten::IntImplicit", "aten::Scalar",
    "aten::ScalarImplicit", "aten::__and__", "aten::__contains__", "aten::__derive_index", "aten::__getitem__",
    "aten::__not__", "aten::__or__", "aten::__range_length", "aten::__xor__", "aten::abs", "aten::add", "aten::all",
    "aten::any", "aten::arange", "aten::as_tensor", "aten::broadcast_tensors", "aten::ceil", "aten::clamp",
    "aten::clone", "aten::cos",
    "aten::cumsum", "aten::detach", "aten::div", "aten::eq", "aten::exp", "aten::eye", "aten::floor",
    "aten::floor_divide", "aten::floordiv", "aten::fmod", "aten::format", "aten::full", "aten::full_like", "aten::ge",
    "aten::gt", "aten::hamming_window", "aten::hann_window", "aten::index", "aten::item", "aten::join", "aten::le",
    "aten::lift_fresh", "aten::linspace", "aten::list", "aten::log", "aten::logical_and", "aten::logical_not",
    "aten::logical_or", "aten::lower", "aten::lt", "aten::masked_fill", "aten::max", "aten::meshgrid", "aten::min",
    "aten::mul", "aten::ne", "aten::neg", "aten::new_full", "aten::new_ones", "aten::new_zeros", "aten::ones",
    "aten::ones_like", "aten::outer", "aten::pow", "aten::range", "aten::reciprocal", "aten::remainder",
    "aten::round", "aten::rsqrt", "aten::rsub", "aten::scalar_tensor", "aten::select", "aten::sin", "aten::slice",
    "aten::sorted", "aten::sqrt", "aten::sub", "aten::sum", "aten::tensor", "aten::to", "aten::tril", "aten::triu",
    "aten::type_as", "aten::upper", "aten::warn", "aten::where", "aten::zeros", "aten::zeros_like",
    "prim::NumToTensor", "prim::max", "prim::min",
))  # fmt: skip


def _get_item(values: Sequence[Any]) -> Any:
    container, index = values
    return container[_fixed(index)]


def _tuple_slice(values: Sequence[Any]) -> Any:
    return values[0][_fixed(values[1]) : _fixed(values[2])]


def _fixed(index: Any) -> Any:
    """An index, which must not depend on the inputs. Raises UnsupportedOperatorError."""
    if isinstance(index, Traced):
        raise UnsupportedOperatorError("which item of a list is read depends on a size known only at run time")
    return plain(index)


def _dict(values: Sequence[Any]) -> Any:
    return dict(zip(map(plain, values[0::2]), values[1::2], strict=True))


def _some(values: Sequence[Any]) -> Any:
    if values[0] is None:
        raise UnsupportedOperatorError("the model unwraps an optional value that is None for these example inputs")
    return values[0]


def _raise(values: Sequence[Any]) -> Any:
    message = " ".join(str(plain(value)) for value in values)
    raise UnsupportedOperatorError(f"the model itself raises an error for these example inputs: {message}")


def _print(values: Sequence[Any]) -> Any:
    return None


# kind -> function from the operands (including traced tensors) to the result; several outputs form a tuple
STRUCTURE: dict[str, Callable[[Sequence[Any]], Any]] = {
    "prim::ListConstruct": list,
    "prim::TupleConstruct": tuple,
    "prim::TupleIndex": _get_item,
    "prim::TupleSlice": _tuple_slice,
    "prim::DictConstruct": _dict,
    "aten::dict": lambda values: dict(*values),
    "aten::__is__": lambda values: values[0] is values[1],
    "aten::__isnot__": lambda values: values[0] is not values[1],
    "aten::_unwrap_optional": _some,
    "prim::unchecked_unwrap_optional": _some,
    "prim::unchecked_cast": lambda values: values[0],
    "prim::data": lambda values: values[0],
    "prim::profile": lambda values: values[0],
    "prim::Uninitialized": lambda values: None,
    "prim::annotate": lambda values: values[0],
    "prim::RaiseException": _raise,
    "prim::Print": _print,
    "aten::wait": lambda values: values[0],
    "aten::warn": _print,
    # what runs the model: a script, for inference, whatever this process does
    "aten::_get_tracing_state": lambda values: False,
    "aten::has_torch_function": lambda values: False,
    "aten::is_autocast_cpu_enabled": lambda values: False,
    "aten::is_autocast_enabled": lambda values: False,
    "aten::is_grad_enabled": lambda values: False,
    "aten::is_scripting": lambda values: True,
}


def _changing(change: Callable[..., None]) -> Callable[[Sequence[Any]], Any]:
    """An operator that changes its container, which some overloads return."""

    def run(values: Sequence[Any]) -> Any:
        change(*values)
        return values[0]

    return run


def _set_item(container: Any, index: Any, value: Any) -> None:
    container[_fixed(index)] = value


def _delete(container: Any, index: Any) -> None:
    del container[_fixed(index)]


def _extend(items: Any, more: Any) -> None:
    items.extend(more)


# the same where the first operand is a list or dictionary that changes, or a dictionary
CONTAINERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "aten::Delete": _changing(_delete),
    "aten::_set_item": _changing(_set_item),
    "aten::add_": _changing(_extend),
    "aten::append": _changing(lambda items, value: items.append(value)),
    "aten::clear": _changing(lambda container: container.clear()),
    "aten::extend": _changing(_extend),
    "aten::insert": _changing(lambda items, index, value: items.insert(_fixed(index), value)),
    "aten::items": lambda values: list(values[0].items()),
    "aten::keys": lambda values: list(values[0]),
    "aten::pop": lambda values: values[0].pop(*map(_fixed, values[1:2]), *values[2:]),
    "aten::reverse": _changing(lambda items: items.reverse()),
    "aten::update": _changing(lambda container, more: container.update(more)),
    "aten::values": lambda values: list(values[0].values()),
}

# the same where it is a dictionary or holds traced tensors, otherwise PyTorch's own operator
HOLDERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "aten::__contains__": lambda values: plain(values[1]) in values[0],
    "aten::__getitem__": _get_item,
    "aten::get": lambda values: values[0].get(*values[1:]),
    "aten::len": lambda values: len(values[0]),
    "aten::list": lambda values: list(values[0]),
    "aten::slice": lambda values: values[0][slice(*map(_fixed, values[1:]))],
    "aten::add": lambda values: values[0] + values[1],
    "aten::mul": lambda values: values[0] * _fixed(values[1]),
}


def structural(kind: str, values: Sequence[Any]) -> tuple[bool, Any]:
    """(True, the result) where the operator only handles containers, (False, None) otherwise."""
    if kind in STRUCTURE:
        return True, STRUCTURE[kind](values)
    if not values or not isinstance(values[0], (list, tuple, dict)):
        return False, None
    if kind in CONTAINERS:
        return True, CONTAINERS[kind](values)
    if kind in HOLDERS and (isinstance(values[0], dict) or any(traced_in(values))):
        return True, HOLDERS[kind](values)
    return False, None


def attribute(owner: Any, name: str) -> Any:
    """prim::GetAttr: an attribute of a module, which keeps its path, or of an object in one."""
    target = owner.target if isinstance(owner, Reference) else owner
    value = getattr(target, name)
    if isinstance(value, (Traced, bool, int, float, str, list, tuple, dict)) or value is None:
        return value
    path = owner.path_of(name) if isinstance(owner, Reference) else name
    return value if type(value).__name__ in ("Tensor", "Parameter") else Reference(value, path)
