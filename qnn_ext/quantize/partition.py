"""Partition: an integer module in three functions, so that the float parts can run elsewhere or not at all.

    main(x) = dequantize_suffix(integer_middle(quantize_prefix(x)))

`partitions` returns each as a separate module that can be built and run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import IRModule, relax

from .. import op as qnn
from ..errors import QuantizationError
from ..module import QnnModule, TensorSpec
from ..numerics.reference import domain
from ..op.arguments import argument, data_of
from ..op.base import OPS, call_attributes, constant, constant_value
from ..passes.inline import inlined
from ..passes.rewrite import (
    Emit,
    Rebuild,
    bindings_of,
    consumers,
    function_of,
    op_name,
    rewrite,
    variables_of,
)
from .config import QConfig

PARTS = ("quantize_prefix", "integer_middle", "dequantize_suffix")


def partition_conversions(module: QnnModule, config: QConfig) -> QnnModule:
    """`module` with `main` calling `quantize_prefix`, `integer_middle` and `dequantize_suffix`.

    The prefix is everything computed from the inputs up to their quantize; the suffix is everything in float after the
    last integers. With "fully_integral", raises QuantizationError if a float operator remains between them.
    """
    integral = config.partition_conversions == "fully_integral"
    if integral:
        module = replace(module, ir=_by_table(module.ir))
    cut = _cut(module)
    if integral:
        _check_integral(cut)
    return replace(module, ir=_with_functions(module.ir, cut))


def partitions(module: QnnModule) -> dict[str, QnnModule]:
    """The three parts of a partitioned module, or of any other, each as a module: names of PARTS -> module.

    Parts keep no states: those of the module are inputs, and their next values the last outputs, "next NAME".

    Raises QuantizationError if the size of an output is known only at run time.
    """
    for spec in module.outputs:
        if spec.bounded:
            raise QuantizationError(
                f"the size of output {spec.name!r} is known only at run time, and parts pass on no sizes: build the "
                "module as a whole"
            )
    cut = _cut(replace(module, ir=inlined(module.ir)))
    kept = [TensorSpec(state.name, state.initial.shape, str(state.initial.dtype)) for state in module.states]
    specs = dict(zip(cut.function.params, [*module.inputs, *kept], strict=True))
    results = (*module.outputs, *(replace(spec, name=f"next {spec.name}") for spec in kept))
    result = {}
    for name, part in zip(PARTS, cut.parts, strict=True):
        inputs = tuple(specs.get(var) or _spec(var) for var in part.inputs)
        outputs = results if name == PARTS[-1] else tuple(_spec(var) for var in part.outputs)
        ir = IRModule({"main": _function(part, "main", cut)})
        result[name] = QnnModule(ir, inputs, outputs, (), (), f"{module.source} ({name})")
    return result


def _by_table(mod: IRModule) -> IRModule:
    """`mod` with every quantize of just dequantized 8-bit integers as a table from one to the other."""
    dequantized: dict[Any, relax.Call] = {}

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(value)
        if name == "qnn.dequantize" and str(data_of(value).ty.dtype) in ("int8", "uint8"):
            var = emit(value)
            dequantized[var] = value
            return var
        source = dequantized.get(data_of(value)) if name == "qnn.quantize" else None
        if source is None:
            return None
        data = data_of(source)
        reals, integers = (
            [constant_value(argument(call, name)) for name in ("scale", "zero_point")] for call in (source, value)
        )
        if any(array is None or array.size != 1 for array in (*reals, *integers)):
            return None
        every = domain(str(data.ty.dtype))
        real = OPS["dequantize"].reference(every, *reals, **call_attributes(source))
        return qnn.table(data, constant(OPS["quantize"].reference(real, *integers, **call_attributes(value))))

    return rewrite(mod, rule)


# ---- where to cut ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One function: its bindings, what it reads from earlier functions, and what later ones read from it."""

    bindings: list[relax.VarBinding]
    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True)
class _Cut:
    function: relax.Function
    parts: tuple[_Part, _Part, _Part]


def _cut(module: QnnModule) -> _Cut:
    function = module.ir["main"]
    bindings = bindings_of(function)
    prefix = _prefix(function, bindings)
    suffix = _suffix(function, bindings, prefix)
    groups: list[list[relax.VarBinding]] = [[], [], []]
    places: dict[Any, int] = {}
    for index, binding in enumerate(bindings):
        place = 0 if index in prefix else 2 if index in suffix else 1
        if isinstance(binding.value, relax.TupleGetItem):  # stays with its tuple, which functions do not pass on
            place = places.get(binding.value.tuple_value, place)
        places[binding.var] = place
        groups[place].append(binding)
    return _Cut(function, tuple(_parts(function, groups)))  # type: ignore[arg-type]


def _prefix(function: relax.Function, bindings: Sequence[relax.VarBinding]) -> set[int]:
    """The bindings computed from the inputs without integers, up to their quantize."""
    ready = set(function.params)
    found = set()
    for index, binding in enumerate(bindings):
        sources = variables_of(binding.value)
        if sources and all(var in ready for var in sources):
            found.add(index)
            if op_name(binding.value) != "qnn.quantize":
                ready.add(binding.var)
    return found & _used_by_quantize(bindings, found)


def _used_by_quantize(bindings: Sequence[relax.VarBinding], found: set[int]) -> set[int]:
    """The bindings of `found` that lead to a quantize."""
    wanted: set[Any] = set()
    used = set()
    for index in reversed(sorted(found)):
        binding = bindings[index]
        if op_name(binding.value) == "qnn.quantize" or binding.var in wanted:
            used.add(index)
            wanted.update(variables_of(binding.value))
    return used


def _suffix(function: relax.Function, bindings: Sequence[relax.VarBinding], prefix: set[int]) -> set[int]:
    """Float operators whose results are used only by float operators and as outputs; and what joins the outputs."""
    readers = consumers(function, bindings)
    result = function.body.body
    found: set[int] = set()
    for index in reversed(range(len(bindings))):
        binding = bindings[index]
        last = all(reader in found or reader == len(bindings) for reader in readers[binding.var])
        if index not in prefix and last and (binding.var.same_as(result) or not _is_integer(binding.var.ty)):
            found.add(index)
    return found


def _is_integer(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_is_integer(field) for field in ty.fields)
    return "int" in str(ty.dtype)


def _parts(function: relax.Function, groups: list[list[relax.VarBinding]]) -> list[_Part]:
    results = list(dict.fromkeys(variables_of(function.body.body)))
    parts = []
    for position, group in enumerate(groups):
        made = {binding.var for binding in group}
        later = [v for other in groups[position + 1 :] for b in other for v in variables_of(b.value)]
        inputs = [v for b in group for v in variables_of(b.value) if v not in made]
        outputs = [v for v in (*later, *results) if v in made]
        parts.append(_Part(group, list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs))))
    return parts


def _check_integral(cut: _Cut) -> None:
    floats = [
        f"{binding.var.name} ({op_name(binding.value) or 'tuple'})"
        for binding in cut.parts[1].bindings
        if not _is_integer(binding.var.ty)
    ]
    if floats:
        raise QuantizationError(
            f"partition_conversions='fully_integral': {len(floats)} operators between the quantize of the inputs and "
            f"the last dequantize compute in float: {', '.join(floats[:5])}; quantize these layers as well, or choose "
            "'enabled'"
        )


# ---- functions ---------------------------------------------------------------------------------------------------


def _function(part: _Part, name: str, cut: _Cut) -> relax.Function:
    """A part as a function of its inputs; the suffix returns what `main` returns."""
    last = part is cut.parts[-1]
    result = cut.function.body.body if last else relax.Tuple(part.outputs)
    return function_of(name, part.bindings, part.inputs, result)


def _with_functions(mod: IRModule, cut: _Cut) -> IRModule:
    new = Rebuild(cut.function)
    names = {
        name: new.builder.add_func(_function(part, name, cut), name)
        for name, part in zip(PARTS, cut.parts, strict=True)
    }
    with new.main():
        for name, part in zip(PARTS, cut.parts, strict=True):
            call = relax.Call(names[name], [new.substituted(var) for var in part.inputs])
            new.result = new.builder.emit(call, name_hint=name)
            if part is not cut.parts[-1]:
                for position, var in enumerate(part.outputs):
                    new.bind(var, relax.TupleGetItem(new.result, position))
    return new.module()


def _spec(var: Any) -> TensorSpec:
    return TensorSpec(str(var.name), tuple(int(n) for n in var.ty.shape), str(var.ty.dtype))
