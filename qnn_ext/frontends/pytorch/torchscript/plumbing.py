"""TorchScript's own plumbing, evaluated at import: constants, lists, tuples, numbers, sizes. No tensor arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....errors import UnsupportedOperatorError
from .values import Reference, Traced, plain, traced_in

# Questions about a tensor whose answer its type holds: asked of the example
QUESTIONS = frozenset(
    """aten::size aten::dim aten::ndimension aten::numel aten::len aten::stride aten::is_contiguous aten::q_scale
    aten::q_zero_point aten::qscheme aten::is_quantized aten::is_floating_point aten::dtype prim::dtype prim::device
    prim::layout prim::shape prim::is_quantized aten::device aten::is_complex
    aten::get_device aten::requires_grad prim::requires_grad prim::is_cuda prim::is_nested""".split()
)

# Arithmetic on numbers, strings and constant tensors, and tensors from nothing: PyTorch evaluates it
ARITHMETIC = frozenset(
    """aten::Int aten::Float aten::Bool aten::IntImplicit aten::FloatImplicit aten::ScalarImplicit aten::Scalar
    prim::NumToTensor aten::scalar_tensor aten::tensor aten::as_tensor aten::add aten::sub aten::mul aten::div
    aten::floordiv aten::floor_divide aten::remainder aten::fmod aten::neg aten::pow aten::floor aten::ceil aten::round
    aten::sqrt aten::abs aten::eq aten::ne aten::lt aten::le aten::gt aten::ge aten::__and__ aten::__or__ aten::__xor__
    aten::__not__ aten::__contains__ aten::__getitem__ aten::list aten::min aten::max prim::min prim::max aten::format
    aten::zeros aten::ones aten::full aten::zeros_like aten::ones_like aten::full_like aten::arange aten::linspace
    aten::eye aten::tril aten::triu aten::new_zeros aten::new_ones aten::new_full aten::item aten::sum aten::all aten::any
    aten::logical_not aten::logical_and aten::logical_or aten::masked_fill aten::where aten::slice aten::select
    aten::to aten::detach aten::clone aten::broadcast_tensors aten::range aten::sorted aten::clamp aten::ceil aten::exp
    aten::log aten::sin aten::cos aten::rsqrt aten::reciprocal aten::outer aten::cumsum aten::rsub aten::type_as
    aten::upper aten::lower aten::join aten::warn aten::lift_fresh aten::index""".split()
)


def _append(values: Sequence[Any]) -> Any:
    values[0].append(values[1])
    return values[0]


def _get_item(values: Sequence[Any]) -> Any:
    container, index = values
    return container[plain(index)]


def _tuple_slice(values: Sequence[Any]) -> Any:
    return values[0][plain(values[1]) : plain(values[2])]


def _dict(values: Sequence[Any]) -> Any:
    return dict(zip(map(plain, values[0::2]), values[1::2], strict=True))


def _raise(values: Sequence[Any]) -> Any:
    message = " ".join(str(plain(value)) for value in values)
    raise UnsupportedOperatorError(f"the model itself raises an error for these example inputs: {message}")


def _print(values: Sequence[Any]) -> Any:
    return None


# kind -> function of the operands (traced tensors and all) to the result; several outputs come as a tuple
STRUCTURE: dict[str, Callable[[Sequence[Any]], Any]] = {
    "prim::ListConstruct": list,
    "prim::TupleConstruct": tuple,
    "prim::TupleIndex": _get_item,
    "prim::TupleSlice": _tuple_slice,
    "prim::DictConstruct": _dict,
    "aten::append": _append,
    "aten::__is__": lambda values: values[0] is values[1],
    "aten::__isnot__": lambda values: values[0] is not values[1],
    "prim::unchecked_cast": lambda values: values[0],
    "prim::data": lambda values: values[0],
    "prim::profile": lambda values: values[0],
    "prim::Uninitialized": lambda values: None,
    "prim::annotate": lambda values: values[0],
    "prim::RaiseException": _raise,
    "prim::Print": _print,
    "aten::warn": _print,
}

# the same where the container may hold traced tensors, otherwise PyTorch's own operator
CONTAINERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "aten::__getitem__": _get_item,
    "aten::len": lambda values: len(values[0]),
    "aten::list": lambda values: list(values[0]),
}


def structural(kind: str, values: Sequence[Any]) -> tuple[bool, Any]:
    """(True, the result) where the operator only handles containers, (False, None) otherwise."""
    if kind in STRUCTURE:
        return True, STRUCTURE[kind](values)
    holds_traced = bool(values) and isinstance(values[0], (list, tuple, dict)) and any(traced_in(values[0]))
    if kind in CONTAINERS and holds_traced:
        return True, CONTAINERS[kind](values)
    return False, None


def attribute(owner: Any, name: str) -> Any:
    """prim::GetAttr: an attribute of a module, which remembers its path, or of an object within."""
    target = owner.target if isinstance(owner, Reference) else owner
    value = getattr(target, name)
    if isinstance(value, (Traced, bool, int, float, str, list, tuple, dict)) or value is None:
        return value
    path = f"{owner.path}.{name}" if isinstance(owner, Reference) and owner.path else name
    return value if type(value).__name__ in ("Tensor", "Parameter") else Reference(value, path)
