"""What a valid description of a compiled model is: its types and ranges, and how its parts fit together.

Kernels are described apart, since running a model takes none of them; older files have them in their variants. Whatever
reads a description after its check may rely on it. A new field needs a rule here: unknown fields are refused. Raises
ArtifactError, which names the field: `variants[0].program.inputs[1]`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from ..errors import ArtifactError
from ..qparams import INTEGER_DTYPES, dtype_range
from ..targets.backend import THREADS
from ..targets.families import KINDS, backend_described

_ITEM_BYTES = {
    "bool": 1,
    **{f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)},
    **{f"float{8 * size}": size for size in (2, 4, 8)},
}
DTYPES = tuple(_ITEM_BYTES)
"""The dtypes that inputs, outputs and states may have."""

MOST_BYTES = 1 << 42
"""The most bytes of any tensor, workspace or array of weights."""

_MOST_DIMENSIONS = 32  # NumPy's own before version 2
_MOST_TASKS = 1 << 12
_MOST_NAMES = 1 << 16  # inputs, outputs, states and kernels each, and the characters of a string
_MOST_VARIANTS = 64
_MOST_SHAPES = 64

_STATUS = {"shape": [2], "dtype": "int64"}  # of a program with checks

Rule: TypeAlias = Callable[[Any, str], None]
"""Takes a value and its location in the description; raises ArtifactError."""


def check(description: Any) -> None:
    """Raise ArtifactError unless this is the description of a model, see `artifact`."""
    specs, variants = _many(_spec), _many(_variant, 1, _MOST_VARIANTS)
    notes = _many(_fields(node=_text, operator=_text, reason=_text))
    checks = _many(_fields(label=_text, kind=_one_of("bounds", "divisor"), low=_int64, high=_int64))
    other = _fields(inputs=specs, outputs=specs, notes=notes, checks=checks, variants=variants)
    _fields(
        source=_text,
        inputs=specs,
        outputs=specs,
        states=_many(_state),
        notes=notes,
        checks=checks,
        versions=_mapping(_text),
        variants=variants,
        optional={"others": _many(other, 1, _MOST_SHAPES)},
    )(description, "")
    _check_variants(description, "")
    for number, other in enumerate(description.get("others", [])):
        _check_variants({**description, **other}, f"others[{number}].")
        _check_beside(description, other, f"others[{number}].variants")


OTHERS = "inputs", "outputs", "notes", "checks", "variants"
"""What the description of a model for another shape has of its own."""


def _check_variants(description: Mapping[str, Any], prefix: str) -> None:
    for index, variant in enumerate(description["variants"]):
        where = f"{prefix}variants[{index}]"
        if "kernels" in variant:
            check_kernels(variant["kernels"], inputs_of(description), variant["program"], f"{where}.kernels")
        if variant["program"] is not None:
            _check_program(description, variant["program"], f"{where}.program")


def inputs_of(description: Mapping[str, Any]) -> int:
    """How many inputs and states a model has."""
    return len(description["inputs"]) + len(description["states"])


def check_kernels(kernels: Any, inputs: int, program: Mapping[str, Any] | None, where: str) -> None:
    """Raise ArtifactError unless these are the kernels of a variant with this program. inputs: see `inputs_of`"""
    _many(_kernel)(kernels, where)
    for number, kernel in enumerate(kernels):
        _many(_whole(-inputs, number - 1))(kernel.get("reads", []), f"{where}[{number}].reads")
    if program is not None:
        _require(len(kernels) == program["steps"], where, f"a list of {program['steps']} items", kernels)


def _check_beside(description: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Check that a model for another shape has the same targets, weights and places of states."""
    variants, count = description["variants"], len(description["states"])
    _require(len(other["variants"]) == len(variants), where, f"a list of {len(variants)} items", other["variants"])
    for index, (variant, first) in enumerate(zip(other["variants"], variants, strict=True)):
        place = f"{where}[{index}]"
        for name in ("target", "features", "architecture"):
            _require(variant[name] == first[name], f"{place}.{name}", "that of the first shape", variant[name])
        found, wanted = variant["program"], first["program"]
        _require(
            found is not None and wanted is not None, f"{place}.program", "a program, as in the first shape", found
        )
        _require(found["weights"] == wanted["weights"], f"{place}.program.weights", "as in the first shape", found)
        states, places = (one["inputs"][len(one["inputs"]) - count :] for one in (found, wanted))
        _require(list(states) == list(places), f"{place}.program.inputs", f"states at {places}", states)


def tensor_bytes(tensor: Mapping[str, Any]) -> int:
    """Bytes of anything with a "shape" and a "dtype"."""
    return math.prod(tensor["shape"]) * _ITEM_BYTES[tensor["dtype"]]


def stored_bytes(state: Mapping[str, Any]) -> int:
    """Bytes of a state's initial values in the file."""
    return 0 if state.get("zeros") else tensor_bytes(state)


def running_bytes(description: Mapping[str, Any], index: int) -> int:
    """The least memory that variant `index` needs to run."""
    program = description["variants"][index]["program"]
    if program is not None:
        others = [other["variants"][index]["program"] for other in description.get("others", [])]
        return max(one["workspace"] for one in (program, *others)) + program["weights"]
    return sum(tensor_bytes(item) for kind in ("inputs", "outputs", "states") for item in description[kind])


# ---- kinds of values ---------------------------------------------------------------------------------------------


def _require(condition: bool, where: str, wanted: str, found: Any) -> None:
    if not condition:
        text = repr(found)
        raise ArtifactError(f"{where or 'it'} must be {wanted}, found {text if len(text) <= 60 else text[:60] + '…'}")


def _text(value: Any, where: str) -> None:
    is_text = isinstance(value, str) and len(value) <= _MOST_NAMES
    _require(is_text and not re.search("[\ud800-\udfff]", value), where, "a string", value)


def _truth(value: Any, where: str) -> None:
    _require(isinstance(value, bool), where, "true or false", value)


def _whole(low: int, high: int) -> Rule:
    def rule(value: Any, where: str) -> None:
        _require(type(value) is int and low <= value <= high, where, f"an integer from {low} to {high}", value)

    return rule


def _one_of(*choices: str) -> Rule:
    def rule(value: Any, where: str) -> None:
        _require(isinstance(value, str) and value in choices, where, f"one of {', '.join(choices)}", value)

    return rule


def _none_or(rule: Rule) -> Rule:
    return lambda value, where: None if value is None else rule(value, where)


def _many(rule: Rule, least: int = 0, most: int = _MOST_NAMES) -> Rule:
    def check_all(value: Any, where: str) -> None:
        is_list = isinstance(value, (list, tuple)) and least <= len(value) <= most
        _require(is_list, where, f"a list of {least} to {most} items", value)
        for index, item in enumerate(value):
            rule(item, f"{where}[{index}]")

    return check_all


def _mapping(rule: Rule, **known: Rule) -> Rule:
    """A mapping with any names, whose values satisfy `rule`, or for names in `known` the rule given there."""

    def check_all(value: Any, where: str) -> None:
        _require(isinstance(value, dict) and len(value) <= _MOST_NAMES, where, "an object", value)
        for name, item in value.items():
            _text(name, where)
            known.get(name, rule)(item, f"{where}.{name}")

    return check_all


def _fields(*, optional: Mapping[str, Rule] = MappingProxyType({}), **rules: Rule) -> Rule:
    """A mapping with exactly these names, of which those in `optional` may be missing."""
    known = {**rules, **optional}

    def check_all(value: Any, where: str) -> None:
        _require(isinstance(value, dict), where, "an object", value)
        for name in value:
            _require(name in known, where, f"an object with only the fields {', '.join(known)}", name)
        for name, rule in known.items():
            inside = f"{where}.{name}" if where else name
            if name in value:
                rule(value[name], inside)
            elif name in rules:
                raise ArtifactError(f"{inside} is missing")

    return check_all


def _anything(value: Any, where: str) -> None:
    """What another rule checks."""


def _plain(value: Any, where: str) -> None:
    """A number, a string, true, false, null or a list of these."""
    if isinstance(value, (list, tuple)):
        _many(_plain_scalar)(value, where)
    else:
        _plain_scalar(value, where)


def _plain_scalar(value: Any, where: str) -> None:
    if isinstance(value, str):
        _text(value, where)
    elif type(value) is int:
        _int64(value, where)
    else:
        is_finite = isinstance(value, float) and math.isfinite(value)
        _require(value is None or isinstance(value, bool) or is_finite, where, "a number, a string or a list", value)


_size = _whole(0, MOST_BYTES)
_int64 = _whole(-(1 << 63), (1 << 63) - 1)


# ---- tensors -----------------------------------------------------------------------------------------------------


def _tensor(value: Mapping[str, Any], where: str) -> None:
    size = tensor_bytes(value)
    _require(
        size <= MOST_BYTES, f"{where}.shape", f"the shape of a tensor of at most {MOST_BYTES} bytes", value["shape"]
    )


def _result(value: Any, where: str) -> None:
    _fields(shape=_shape, dtype=_one_of(*DTYPES))(value, where)
    _tensor(value, where)


def _state(value: Any, where: str) -> None:
    _fields(name=_text, shape=_shape, dtype=_one_of(*DTYPES), optional={"zeros": _truth})(value, where)
    _tensor(value, where)


def _spec(value: Any, where: str) -> None:
    _fields(
        name=_text,
        shape=_shape,
        dtype=_one_of(*DTYPES),
        qparams=_none_or(_qparams),
        dynamic_batch=_truth,
        optional={"batch_axis": _whole(0, _MOST_DIMENSIONS - 1), "bounded": _many(_whole(0, _MOST_DIMENSIONS - 1), 1)},
    )(value, where)
    _tensor(value, where)
    shape, qparams, axis = value["shape"], value["qparams"], value.get("batch_axis", 0)
    if value["dynamic_batch"]:
        _require(list(shape[axis : axis + 1]) == [1], f"{where}.shape", "a batch of 1, as the batch is dynamic", shape)
    bounded = list(value.get("bounded", []))
    ascending = bounded == sorted(set(bounded)) and (not bounded or bounded[-1] < len(shape))
    _require(ascending and not (bounded and value["dynamic_batch"]), f"{where}.bounded", "axes, ascending", bounded)
    if qparams is not None and qparams["axis"] is not None:
        axis, count = qparams["axis"], len(qparams["scale"])
        _require(
            axis < len(shape) and shape[axis] == count, f"{where}.qparams.axis", f"an axis with {count} values", axis
        )


_shape = _many(_whole(0, MOST_BYTES), most=_MOST_DIMENSIONS)


def _qparams(value: Any, where: str) -> None:
    _fields(
        scale=_one_or_many(_scale),
        scale_dtype=_one_of("float32", "float64"),
        zero_point=_one_or_many(_whole(-(1 << 31), (1 << 31) - 1)),
        dtype=_one_of(*INTEGER_DTYPES),
        axis=_none_or(_whole(0, _MOST_DIMENSIONS - 1)),
    )(value, where)
    scale, zero_point, axis = value["scale"], value["zero_point"], value["axis"]
    scales, zero_points = _listed(scale), _listed(zero_point)
    fits = len(scales) == len(zero_points) and isinstance(scale, list) == isinstance(zero_point, list)
    _require(
        fits and isinstance(scale, list) == (axis is not None),
        where,
        "per-tensor, or have as many scales as zero points",
        value,
    )
    low, high = dtype_range(value["dtype"])
    _require(all(low <= zero <= high for zero in zero_points), f"{where}.zero_point", value["dtype"], zero_point)
    stored = [_stored(one, value["scale_dtype"]) for one in scales]
    _require(all(0 < one < math.inf for one in stored), f"{where}.scale", "positive and finite in its dtype", scale)


def _scale(value: Any, where: str) -> None:
    _require(isinstance(value, float) and math.isfinite(value), where, "a number", value)


def _stored(scale: float, dtype: str) -> float:
    """A scale as its dtype has it, rounded; infinity where it has none as large."""
    try:
        return float(struct.unpack("f", struct.pack("f", scale))[0]) if dtype == "float32" else scale
    except OverflowError:
        return math.inf


def _one_or_many(rule: Rule) -> Rule:
    many = _many(rule, least=2)
    return lambda value, where: (many if isinstance(value, list) else rule)(value, where)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- variants ----------------------------------------------------------------------------------------------------


def _variant(value: Any, where: str) -> None:
    _fields(
        target=_target,
        features=_many(_text),
        architecture=_text,
        program=_none_or(_program),
        optional={"kernels": _anything, "fallback": _text, "code": _code},
    )(value, where)
    if value["program"] is not None:
        _require(not value.get("fallback"), f"{where}.fallback", "empty, as there is a program", value.get("fallback"))


def _target(value: Any, where: str) -> None:
    _mapping(
        _plain,
        kind=_one_of(*KINDS),
        arch=_text,
        mcpu=_text,
        mtriple=_text,
        **{THREADS: _whole(1, _MOST_TASKS)},
    )(value, where)
    _require("kind" in value, where, "a target with a kind", value)
    if backend_described(value).grid:
        arch = value.get("arch")
        known = isinstance(arch, str) and re.fullmatch(r"sm_\d{2,3}[af]?", arch) is not None
        _require(known, f"{where}.arch", "a GPU architecture such as sm_80", arch)


_code = _fields(
    flash=_whole(0, MOST_BYTES),
    largest=_whole(0, MOST_BYTES),
    kernel=_text,
    stack=_whole(0, MOST_BYTES),
    chain=_many(_text),
)

_kernel = _fields(
    symbol=_text,
    layer=_text,
    operators=_text,
    implementation=_text,
    macs=_whole(0, (1 << 63) - 1),
    weight_bytes=_size,
    data_bytes=_size,
    workload=_mapping(_plain, type=_text),
    optional={
        "reason": _text,
        "sources": _many(_text),
        "reads": _many(_int64),
        "results": _many(_result),
        "live_bytes": _size,
    },
)


def _place(value: Any, where: str) -> None:
    _many(_size, 2, 2)(value, where)
    _require(value[0] in (0, 1), f"{where}[0]", "0, the workspace, or 1, the weights", value[0])


_program = _fields(
    workspace=_size,
    weights=_size,
    tasks=_whole(1, _MOST_TASKS),
    steps=_whole(1, _MOST_NAMES),
    stamps=_size,
    inputs=_many(_size),
    outputs=_many(_place),
)


def _check_program(description: Mapping[str, Any], program: Mapping[str, Any], where: str) -> None:
    """Check that every tensor lies inside the program's memory, after the time stamps, and aligned for its dtype."""
    states = description["states"]
    stamps_end = program["stamps"] + 8 * (program["steps"] + 1)
    fits = program["stamps"] % 8 == 0 and stamps_end <= program["workspace"]
    _require(fits, f"{where}.stamps", f"within {program['workspace']} bytes and a multiple of 8", program["stamps"])
    inputs = [(0, offset) for offset in program["inputs"]]
    status = [_STATUS] if description["checks"] else []  # after all other outputs
    count = sum(len(output.get("bounded", [])) for output in description["outputs"])
    sizes = [{"shape": [count], "dtype": "int64"}] if count else []
    for kind, places, own, more in (
        ("inputs", inputs, [], []),
        ("outputs", program["outputs"], sizes, status),
    ):
        tensors = [*description[kind], *own, *states, *more]
        _require(len(places) == len(tensors), f"{where}.{kind}", f"a list of {len(tensors)} items", places)
        for index, (tensor, (region, offset)) in enumerate(zip(tensors, places, strict=True)):
            _check_place(program, tensor, region, offset, stamps_end, f"{where}.{kind}[{index}]")


def _check_place(
    program: Mapping[str, Any], tensor: Mapping[str, Any], region: int, offset: int, stamps_end: int, where: str
) -> None:
    start, end = (0, program["weights"]) if region else (stamps_end, program["workspace"])
    size, alignment = tensor_bytes(tensor), _ITEM_BYTES[tensor["dtype"]]
    wanted = f"a multiple of {alignment} that leaves room for {size} bytes between {start} and {end}"
    _require(start <= offset <= end - size and offset % alignment == 0, where, wanted, offset)
