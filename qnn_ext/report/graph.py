"""A model as boxes and arrows: its operators as they were imported, and the kernels that they became.

What is drawn, and how, is decided in the page; here are the facts. A graph is a dict of JSON values:

    nodes: id, label, name, kind ("integer", "float", "moved", "input", "output"), facts [[name, value]], kernel (its
           place in execution order); of kernels also sources; of operators without a name also part_of, that of the
           tensor which they help to compute
    edges: from, to, text (shape, dtype, scale), kind ("integer", "float")
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..module import QnnModule, State, TensorSpec
from ..op.base import call_attributes, constant_value
from ..op.macs import macs_of
from ..op.relax_table import traits_named, traits_of
from ..op.traits import Kind, Traits
from ..passes.inline import inlined
from ..passes.rewrite import bindings_of, is_anonymous, op_name, operands
from ..qparams import QParams
from ..running.kernels import Kernel
from ..running.model import Variant

Json = dict[str, Any]

INTEGER, FLOAT, MOVED = "integer", "float", "moved"
_MOVES = (Kind.MOVE, Kind.JOIN)
_CONVERSIONS = ("quantize", "dequantize")
_MOVE_WORDS = frozenset(  # of which TVM names kernels that only move values
    ("reshape", "transpose", "concatenate", "concat", "strided", "slice", "pad", "take", "tile", "squeeze", "expand")
    + ("dims", "flip", "split", "repeat", "broadcast", "to", "gather", "nd", "elements", "layout", "transform", "stack")
)


# ---- before fusion -----------------------------------------------------------------------------------------------


def imported_graph(module: QnnModule, kernels: Sequence[Kernel] = ()) -> Json:
    """The operators of a module as its frontend returned it, each with the kernel that computes it.

    A loop is one node. Constants are facts of the operators that read them.
    """
    return _Imported(module, kernels).graph


class _Imported:
    def __init__(self, module: QnnModule, kernels: Sequence[Kernel]) -> None:
        main = inlined(module.ir)["main"]
        bindings = bindings_of(main)
        self.graph: Json = {"nodes": [], "edges": []}
        self._origins: dict[Any, list[int]] = {}
        self._texts: list[tuple[str, str]] = []  # of each node's result: text and kind
        self._notes = {sanitized(note.node): note.reason for note in module.notes}
        for param, spec in zip(main.params, module.inputs, strict=False):
            self._add(
                param, Json(label="input", name=spec.name, kind="input"), [], [["tensor", _spec_text(spec)]], spec
            )
        for param, state in zip(main.params[len(module.inputs) :], module.states, strict=False):
            self._add(param, Json(label="state", name=state.name, kind="input"), [], [], None)
        for binding in bindings:
            self._bind(binding)
        results = list(operands(main.body.body)) if isinstance(main.body.body, relax.Tuple) else [main.body.body]
        if len(results) == 1 and isinstance(results[0], relax.Var) and isinstance(results[0].ty, relax.TupleType):
            source = next((one.value for one in reversed(bindings) if one.var.same_as(results[0])), None)
            results = list(operands(source)) if isinstance(source, relax.Tuple) else results
        names = [spec.name for spec in module.outputs] + [state.name for state in module.states]
        for name, result in zip(names, results, strict=False):
            self._output(name, self._from([result]))
        _place_in_kernels(self.graph, kernels)

    def _bind(self, binding: relax.VarBinding) -> None:
        value = binding.value
        if not isinstance(value, relax.Call):
            self._origins[binding.var] = self._from(operands(value))
            return
        name, traits = op_name(value), traits_of(value)
        qparams = _qparams(value, traits, binding.var)
        facts = [["tensor", _tensor_text(binding.var.ty, qparams)], *_facts(value, traits)]
        reason = self._notes.get(sanitized(str(binding.var.name)))
        if reason:
            facts.append(["in float because", reason])
        node = Json(label=_label(value, name), name=str(binding.var.name), kind=_kind(binding.var, traits))
        self._add(binding.var, node, self._from(operands(value)), facts, qparams)

    def _add(self, var: Any, node: Json, sources: Iterable[int], facts: list[list[str]], params: Any) -> None:
        index = len(self.graph["nodes"])
        qparams = params.qparams if isinstance(params, TensorSpec) else params
        self.graph["nodes"].append({"id": index, **node, "facts": facts, "kernel": None})
        self._texts.append((_tensor_text(var.ty, qparams), FLOAT if "float" in _dtype(var.ty) else INTEGER))
        self._origins[var] = [index]
        for source in sources:
            text, kind = self._texts[source]
            self.graph["edges"].append({"from": source, "to": index, "text": text, "kind": kind})

    def _output(self, name: str, sources: Iterable[int]) -> None:
        index = len(self.graph["nodes"])
        node = {"id": index, "label": "output", "name": name, "kind": "output", "facts": [], "kernel": None}
        self.graph["nodes"].append(node)
        self._texts.append(("", INTEGER))
        for source in sources:
            text, kind = self._texts[source]
            self.graph["edges"].append({"from": source, "to": index, "text": text, "kind": kind})

    def _from(self, expressions: Iterable[Any]) -> list[int]:
        found: dict[int, None] = {}
        for expression in expressions:
            if isinstance(expression, (relax.Tuple, relax.TupleGetItem)):
                found |= dict.fromkeys(self._from(operands(expression)))
            elif isinstance(expression, relax.Var):
                found |= dict.fromkeys(self._origins.get(expression, []))
        return list(found)


def _place_in_kernels(graph: Json, kernels: Sequence[Kernel]) -> None:
    """Give each operator the kernel that computes its tensor; an unnamed one goes where the operator that reads it
    went."""
    known = {name: index for index, kernel in enumerate(kernels) for name in kernel.sources}
    readers: dict[int, list[int]] = {}
    for edge in graph["edges"]:
        readers.setdefault(edge["from"], []).append(edge["to"])
    for node in reversed(graph["nodes"]):
        if node["kind"] in ("input", "output"):
            continue
        node["kernel"] = known.get(node["name"])
        if is_anonymous(node["name"]):
            later = [graph["nodes"][reader] for reader in readers.get(node["id"], [])]
            inside = [one for one in later if one["kernel"] is not None]
            first = min(inside, key=lambda one: one["kernel"], default=later[0] if later else node)
            node["kernel"], node["part_of"] = first["kernel"], first.get("part_of", first["name"])


def _label(call: relax.Call, name: str) -> str:
    short = name.removeprefix("qnn.").removeprefix("nn.")
    attributes = _attributes(call)
    groups = int(attributes.get("groups", 1))
    if groups == 1:
        return short
    channels = int(call.args[0].ty.shape[str(attributes["data_layout"]).index("C")])
    return f"depthwise {short}" if groups == channels else f"grouped {short}"


def _kind(var: relax.Var, traits: Traits) -> str:
    if traits.kind in _MOVES:
        return MOVED
    return FLOAT if "float" in _dtype(var.ty) else INTEGER


def _dtype(ty: Any) -> str:
    if isinstance(ty, relax.TupleType):
        return ", ".join(map(_dtype, ty.fields))
    return str(getattr(ty, "dtype", ""))


def _tensor_text(ty: Any, qparams: QParams | None) -> str:
    """1×112×112×32 uint8, scale 0.0235, zero point 3."""
    if isinstance(ty, relax.TupleType):
        return ", ".join(_tensor_text(field, None) for field in ty.fields)
    shape = getattr(ty, "shape", None)
    dims = "×".join(str(int(dim)) if isinstance(dim, (int, tirx.IntImm)) else str(dim) for dim in shape or ["?"])
    text = f"{dims or 'scalar'} {_dtype(ty)}"
    return text if qparams is None else f"{text}, {_qparams_text(qparams)}"


def _qparams_text(qparams: QParams) -> str:
    scale, zero = np.atleast_1d(qparams.scale), np.atleast_1d(qparams.zero_point)
    if scale.size == 1:
        return f"scale {float(scale[0]):.4g}, zero point {int(zero[0])}"
    return f"{scale.size} scales {float(scale.min()):.3g} … {float(scale.max()):.3g}"


def _qparams(call: relax.Call, traits: Traits, var: relax.Var) -> QParams | None:
    """The parameters of an operator's integer result, if they are constants."""
    if traits.output is None or traits.output.scale is None or "int" not in _dtype(var.ty):
        return None
    values = [constant_value(traits.argument(call, name)) for name in (traits.output.scale, traits.output.zero_point)]
    if values[0] is None or values[1] is None or values[0].size != 1 or values[1].size != 1:
        return None
    return QParams(values[0].reshape(()), values[1].reshape(()), _dtype(var.ty))


# ---- what is known of an operator --------------------------------------------------------------------------------


def _facts(call: relax.Call, traits: Traits) -> list[list[str]]:
    facts = [[name, _attribute(value)] for name, value in _attributes(call).items()]
    for name, argument in _arguments(call, traits):
        value = constant_value(argument)
        if value is not None:
            facts.append([name, _constant_text(value)])
    macs = macs_of(call)
    if macs is not None:
        facts.append(["multiply-accumulates", f"{macs:,}"])
    return facts + _four_terms(call, traits)


def _attributes(call: relax.Call) -> dict[str, Any]:
    if call.attrs is None:
        return {}
    if hasattr(call.attrs, "keys"):
        found = call_attributes(call)
        return {name: value for name, value in found.items() if value is not None and name != "body"}
    names = [name for name in dir(call.attrs) if not name.startswith("_")]
    values = {name: getattr(call.attrs, name) for name in names}
    return {name: value for name, value in values.items() if value is not None and not callable(value)}


def _attribute(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"


def _arguments(call: relax.Call, traits: Traits) -> list[tuple[str, Any]]:
    names = list(traits.arguments)
    arguments = list(call.args)
    if any(name.startswith("*") for name in names) or len(names) != len(arguments):
        names = [f"argument {index}" for index in range(len(arguments))]
    return list(zip(names, arguments, strict=True))


def _constant_text(value: np.ndarray) -> str:
    if value.size == 1:
        return f"{value.reshape(-1)[0]:.6g}" if value.dtype.kind == "f" else str(value.reshape(-1)[0])
    shape = "×".join(map(str, value.shape))
    if not value.size or value.dtype.kind not in "iuf":
        return f"{shape} {value.dtype}"
    return f"{shape} {value.dtype}, {value.min():.4g} … {value.max():.4g}, {value.nbytes:,} bytes"


def _four_terms(call: relax.Call, traits: Traits) -> list[list[str]]:
    """Σ (a − za)(w − zw) = Σ a·w − zw·Σ a − za·Σ w + K·za·zw: which terms a product of integers has."""
    if traits.product is None or len(traits.data) != 2 or any(one.zero_point is None for one in traits.data):
        return []
    za, zw = (traits.argument(call, str(one.zero_point)) for one in traits.data)
    weights = constant_value(traits.argument(call, traits.data[1].name))
    return [
        ["four terms", "Σ (a − za)(w − zw) = T1 − T2 − T3 + T4"],
        ["T1 = Σ a·w", "the product of raw integers"],
        ["T2 = zw·Σ a", _term(zw, "zw", "sums over the data, computed in the product's kernel")],
        ["T3 = za·Σ w", _term(za, "za", _CONSTANT if weights is not None else "sums over the second operand")],
        ["T4 = K·za·zw", _term(za, "za", _term(zw, "zw", _CONSTANT))],
    ]


_CONSTANT = "a constant, added with the bias"


def _term(zero_point: Any, name: str, otherwise: str) -> str:
    value = constant_value(zero_point)
    if value is None:
        return f"{otherwise}; {name} is known at run time"
    return f"none, as {name} = 0" if not value.any() else otherwise


def sanitized(name: str) -> str:
    """A tensor's name as a variable's: notes have the model's own spelling."""
    return re.sub(r"\W", "_", name)


# ---- after fusion ------------------------------------------------------------------------------------------------


def compiled_graph(
    variant: Variant, inputs: Sequence[TensorSpec], states: Sequence[State], imported: Json | None = None
) -> Json:
    """The kernels of a compiled model.

    inputs, states: of the model, in order
    imported:       the graph before fusion, which knows the scales of tensors between kernels
    """
    scales = {} if imported is None else _scales(imported)
    graph: Json = {"nodes": [], "edges": []}
    names = names_of(variant.kernels)
    ports = [("input", spec.name, _spec_text(spec)) for spec in inputs]
    ports += [("state", state.name, _array_text(state.initial)) for state in states]
    for index, (label, name, text) in enumerate(ports):
        node = {"id": index, "label": label, "name": name, "kind": "input", "facts": [["tensor", text]], "kernel": None}
        graph["nodes"].append(node)
    first = len(ports)
    texts: list[str] = []
    for index, kernel in enumerate(variant.kernels):
        node = {
            "id": first + index,
            "label": label_of(kernel),
            "name": names[index],
            "kind": kind_of(kernel),
            "facts": _kernel_facts(kernel),
            "sources": kernel.sources,
            "kernel": index,
        }
        graph["nodes"].append(node)
        text = "; ".join(f"{'×'.join(map(str, one['shape'])) or 'scalar'} {one['dtype']}" for one in kernel.results)
        scale = scales.get(names[index])
        texts.append(f"{text}, {scale}" if scale else text)
        for read in kernel.reads:
            source = -1 - read if read < 0 else first + read
            if 0 <= source < first + index:
                about = texts[read] if read >= 0 else ports[source][2]
                kind = FLOAT if " float" in f" {about}" else INTEGER
                graph["edges"].append({"from": source, "to": first + index, "text": about, "kind": kind})
    return graph


def _scales(imported: Json) -> dict[str, str]:
    """The quantization parameters of a tensor by its name, as the graph before fusion says them."""
    found = {}
    for node in imported["nodes"]:
        text = dict(map(tuple, node["facts"])).get("tensor", "")
        if node["kind"] != "input" and "scale" in text:
            found[node["name"]] = text[text.index(", ") + 2 :]
    return found


def _spec_text(spec: TensorSpec) -> str:
    text = f"{'×'.join(map(str, spec.shape)) or 'scalar'} {spec.dtype}"
    return text if spec.qparams is None else f"{text}, {_qparams_text(spec.qparams)}"


def _array_text(array: np.ndarray) -> str:
    return f"{'×'.join(map(str, array.shape)) or 'scalar'} {array.dtype}"


def label_of(kernel: Kernel) -> str:
    """The product of a kernel, or what it does first, and how many operators more."""
    names = [name.removeprefix("nn.").removesuffix("_accumulate") for name in kernel.operators.split("+")]
    if names == [kernel.symbol]:  # as TVM named the function, several of one name by number
        return re.sub(r"\d+$", "", kernel.symbol.removeprefix("fused_"))
    products = [name.removesuffix("_accumulate") for name in kernel.operators.split("+") if "_accumulate" in name]
    workload = kernel.workload
    head = products[0] if products else names[0]
    if workload.get("groups", 1) > 1 and workload.get("groups") == workload.get("in_channels"):
        head = f"depthwise {head}"
    return head if len(names) == 1 else f"{head} +{len(names) - 1}"


def names_of(kernels: Sequence[Kernel]) -> list[str]:
    """The model's name for each kernel: of its result if that has one, otherwise of the last tensor inside it, or of
    what its result is for."""
    readers: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        for read in kernel.reads:
            readers.setdefault(read, index)
    names: dict[int, str] = {}
    for index in reversed(range(len(kernels))):
        kernel, reader = kernels[index], readers.get(index)
        named = [kernel.layer] if not is_anonymous(kernel.layer) else kernel.sources
        if named:
            names[index] = named[-1]
        else:
            names[index] = f"for {names[reader].removeprefix('for ')}" if reader is not None else kernel.layer
    return [names[index] for index in range(len(kernels))]


def kind_of(kernel: Kernel) -> str:
    """Whether a kernel computes with integers or floats, or only moves values."""
    names = kernel.operators.split("+")
    if not kernel.macs and all(map(_moves, names)):
        return MOVED
    return FLOAT if computes_floats(kernel) else INTEGER


def _moves(name: str) -> bool:
    return traits_named(name).kind in _MOVES or _only_moves(name)


def _only_moves(symbol: str) -> bool:
    words = [word for word in re.split(r"[_\d]+", symbol.removeprefix("fused_")) if word]
    return bool(words) and all(word in _MOVE_WORDS for word in words)


def computes_floats(kernel: Kernel) -> bool:
    """Whether a kernel's product multiplies floats; of a kernel without one, whether its results are floats, or it
    quantizes what it computes, as a softmax with an 8-bit result does."""
    if kernel.workload:
        return "float" in str(kernel.workload.get("out_dtype", ""))
    names = kernel.operators.split("+")
    quantized = "quantize" in names and any(name not in _CONVERSIONS and not _moves(name) for name in names)
    return quantized or any("float" in one["dtype"] for one in kernel.results)


def _kernel_facts(kernel: Kernel) -> list[list[str]]:
    facts = [
        ["operators", kernel.operators.replace("+", " + ")],
        ["implementation", kernel.implementation],
        ["why not a faster one", kernel.reason],
        ["function", kernel.symbol],
        ["multiply-accumulates", f"{kernel.macs:,}" if kernel.macs else ""],
        ["weights", f"{kernel.weight_bytes:,} bytes" if kernel.weight_bytes else ""],
        ["reads and writes", f"{kernel.data_bytes:,} bytes of activations"],
        ["in memory meanwhile", f"{kernel.live_bytes:,} bytes" if kernel.live_bytes else ""],
        *([str(name).replace("_", " "), _attribute(value)] for name, value in kernel.workload.items()),
    ]
    return [[name, value] for name, value in facts if value]
