"""PyTorch's own result of one operator, which is all the walk knows of a value: its shape, dtype, QParams, or a number.

A script may ask for anything. So the memory that an operator would need is computed before it runs, and divisions that
would kill the process are not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from ....errors import ModelFormatError, ShapeError
from ....limits import charge, check, check_elements, most_folded
from ....processes.isolation import working_on
from ..common import check_quotient, import_torch

MAX_ITEMS = 1 << 18  # elements of a list, nested ones included, or characters of a string: no model has so many
_MAX_LINE = 200  # characters of a source line in a message

_PRIM: dict[str, Any] = {
    "prim::dtype": lambda tensor: tensor.dtype,
    "prim::device": lambda tensor: tensor.device,
    "prim::layout": lambda tensor: tensor.layout,
    "prim::shape": lambda tensor: list(tensor.shape),
    "prim::is_quantized": lambda tensor: tensor.is_quantized,
    "prim::requires_grad": lambda tensor: False,
    "prim::is_cuda": lambda tensor: tensor.is_cuda,
    "prim::type": lambda device: device.type,
    "prim::is_nested": lambda tensor: tensor.is_nested,
    "prim::min": lambda *values: min(*values),
    "prim::max": lambda *values: max(*values),
    "prim::NumToTensor": lambda number: import_torch().tensor(number),
}

# Operators on containers of any element type, which PyTorch does not let Python call
_CONTAINERS: dict[str, Any] = {
    "aten::__getitem__": lambda container, key: container[key],
    "aten::add": lambda first, second: first + second,
    "aten::len": len,
    "aten::list": list,
    "aten::mul": lambda container, times: container * times,
    "aten::slice": lambda container, start, end, step: container[start:end:step],
}


def evaluate(node: Any, operands: Sequence[Any], is_constant: bool) -> Any:
    """What PyTorch computes for these operands.

    is_constant: the result will be a constant of the module, not an activation

    Raises ShapeError where PyTorch refuses, LimitError and ModelFormatError where the result would be too big or the
    operator would kill the process.
    """
    kind = node.kind()
    working_on(f"evaluating {kind}")
    if kind in _PRIM:
        return _PRIM[kind](*operands)
    _check_division(kind, operands)
    _check_items(kind, operands)
    schema = schema_of(node)
    torch = import_torch()
    function, *_ = torch._C._get_operation_overload(schema.name, schema.overload_name)
    _check_size(kind, function, schema, operands, is_constant)
    try:
        if kind in _CONTAINERS and any(isinstance(value, (list, dict)) for value in operands):
            return _CONTAINERS[kind](*operands)
        return _call(function, schema, operands)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        raise ShapeError(
            f"{where(node)}: PyTorch itself cannot run {kind} on these example inputs: {first_line(error)}"
        ) from error


def schema_of(node: Any) -> Any:
    """The operator's name, overload and arguments."""
    return _schema(node.schema())


@lru_cache(maxsize=1024)
def _schema(text: str) -> Any:
    return import_torch()._C.parse_schema(text)


def _call(function: Any, schema: Any, operands: Sequence[Any]) -> Any:
    pairs = list(zip(schema.arguments, operands, strict=True))
    args = [value for argument, value in pairs if not argument.kwarg_only]
    kwargs = {argument.name: value for argument, value in pairs if argument.kwarg_only}
    return function(*args, **kwargs)


# ---- where an operator is ----------------------------------------------------------------------------------------


def where(node: Any) -> str:
    """Operator and source line, as far as the archive says: "aten::foo (code/model.py, line 5: x = foo(y))"."""
    try:
        text = str(node.sourceRange())
    except (UnicodeDecodeError, MemoryError, RuntimeError):  # debug information that is damaged or gigantic
        return str(node.kind())
    found = re.search(r'File "([^"]+)", line (\d+)', text)
    if not found:  # traced and not saved: a stack of Python frames, the innermost first
        frame = re.search(r"^(\S+\.py)\((\d+)\)", text)
        return f"{node.kind()} ({frame[1]}, line {frame[2]})" if frame else str(node.kind())
    lines = text.splitlines()
    marked = next((lines[i - 1].strip() for i, line in enumerate(lines) if "<--- HERE" in line and i), "")
    return f"{node.kind()} ({found[1]}, line {found[2]}{': ' + marked[:_MAX_LINE] if marked else ''})"


def first_line(error: BaseException) -> str:
    """The first line of a message, which is where PyTorch says what is wrong."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


# ---- what an operator would need ---------------------------------------------------------------------------------


def check_items(values: Sequence[Any]) -> None:
    """Raises ModelFormatError when the lists and strings among some values hold too much in total: lists that hold the
    same list twice double in size with every line."""
    if not any(isinstance(value, (list, tuple, dict, str)) for value in values):
        return
    count, pending = 0, list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value)
            value = list(value.values())
        if isinstance(value, (list, tuple, str)):
            count += len(value)
            _check_count(count, "a list or string")
        if isinstance(value, (list, tuple)):
            pending.extend(value)


def _check_count(count: int, what: str) -> None:
    if count > MAX_ITEMS:
        raise ModelFormatError(f"{what} would hold over {MAX_ITEMS:,} items, which no model needs: the file is damaged")


def _check_items(kind: str, operands: Sequence[Any]) -> None:
    """The lengths of the lists and strings that an operator creates."""
    if not operands or not isinstance(operands[0], (list, str, int)):
        return
    name, lengths = kind.partition("::")[2], [len(value) for value in operands if isinstance(value, (list, str))]
    if not lengths:
        return
    if name == "mul":
        times = [value for value in operands if isinstance(value, int)]
        _check_count(math.prod([*lengths, *times]), f"the result of {kind}")
    elif name == "add":
        _check_count(sum(lengths), f"the result of {kind}")
    elif name == "join":
        separator, texts = operands
        _check_count(sum(map(len, texts)) + len(separator) * len(texts), f"the result of {kind}")


def _check_size(kind: str, function: Any, schema: Any, operands: Sequence[Any], is_constant: bool) -> None:
    """Runs the operator on tensors without memory to get the shape of its result."""
    torch = import_torch()
    makes_tensor = any(argument.name == "device" for argument in schema.arguments)
    tensors = [value for value in _flatten(operands) if isinstance(value, torch.Tensor)]
    if not kind.startswith("aten::") or not (tensors or makes_tensor):
        return
    hollow = [
        torch.device("meta") if argument.name == "device" else _hollow(torch, value)
        for argument, value in zip(schema.arguments, operands, strict=True)
    ]
    try:
        result = _call(function, schema, hollow)
    except Exception:  # no rule for its shape, or a refusal that running it will explain
        return
    what = f"the result of {kind}"
    for tensor in _flatten([result]):
        if not isinstance(tensor, torch.Tensor):
            continue
        if is_constant:
            check_elements(tensor.shape, what, "folded", exempt=most_folded())
            charge(tensor.shape, what)
        check("memory", math.prod(check_elements(tensor.shape, what)) * tensor.element_size(), what)


def _hollow(torch: Any, value: Any) -> Any:
    """The value with its tensors replaced by same-shape ones without memory; integers for quantized ones."""
    if isinstance(value, torch.Tensor):
        dtype = torch.uint8 if value.is_quantized else value.dtype
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_hollow(torch, item) for item in value)
    return value


def _flatten(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flatten(value)
        else:
            yield value


# ---- what would kill the process ----------------------------------------------------------------------------------

_LEAST = -(2**63)


def _check_division(kind: str, operands: Sequence[Any]) -> None:
    """PyTorch divides integers with the CPU's instruction, which kills the process where there is no quotient: scalars
    by zero, and the lowest integer by −1."""
    name = kind.partition("::")[2].rstrip("_")
    if name in ("floordiv", "remainder") and all(map(_is_integer, operands)):
        dividend, divisor = operands
        if divisor == 0:
            raise ModelFormatError(f"the model divides the integer {dividend} by zero")
        if dividend == _LEAST and divisor == -1:
            raise ModelFormatError(f"the model divides the integer {dividend} by −1, which overflows")
    if name == "div" and "trunc" in operands[2:]:
        check_quotient(*operands[:2])


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
