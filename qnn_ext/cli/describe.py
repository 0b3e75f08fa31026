"""What a model file holds, for `qnn-ext inspect`, which describes compiled files without TVM's compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import relax

from ..compiling.coverage import coverage
from ..errors import QnnError
from ..frontends.tflite.reader import Model, Operator, Subgraph, read_model
from ..frontends.tflite.registry import CONVERTERS
from ..frontends.tflite.signatures import with_main
from ..module import QnnModule, TensorSpec
from ..op.base import constant_value
from ..passes.bodies import every_binding
from ..passes.rewrite import op_name, operands
from .common import import_model, note_data, spec_data
from .formats import ImportOptions

Described = tuple[dict[str, Any], QnnModule | None]


def describe(path: Path, form: str, importing: ImportOptions) -> Described:
    """A model file for JSON, and its module; None if it cannot be imported."""
    return _tflite_data(path, form, importing) if form == "tflite" else _model_data(path, form, importing)


def _model_data(path: Path, form: str, importing: ImportOptions) -> Described:
    """A model, described by its imported module."""
    module = import_model(path, form, importing)
    data = {
        "model": str(path),
        "format": form,
        "bytes": path.stat().st_size,
        "imports": True,
        "problem": None,
        "inputs": [spec_data(spec) for spec in module.inputs],
        "outputs": [spec_data(spec) for spec in module.outputs],
        "signatures": [],
        "operators": _module_operators(module),
        "weights": _module_weights(module),
        **_module_data(module),
    }
    return data, module


def _module_data(module: QnnModule | None) -> dict[str, Any]:
    """What the import provides: states, notes, integer coverage. Empty if it failed."""
    if module is None:
        return {"states": [], "notes": [], "coverage": None}
    found = coverage(module)
    return {
        "states": [state.name for state in module.states],
        "notes": [note_data(note) for note in module.notes],
        "coverage": {
            "macs": found.macs,
            "integer_macs": found.integer_macs,
            "share": found.share,
            "in_float": [
                {"layer": product.layer, "operator": product.operator, "macs": product.macs}
                for product in found.in_float
            ],
        },
    }


def _module_operators(module: QnnModule) -> list[dict[str, Any]]:
    """The operators of the imported module, equal ones counted."""
    kinds: Counter[tuple[str, str, str]] = Counter()
    for binding, _ in every_binding(module.ir):
        name = op_name(binding.value)
        if name:
            tensors = [operand for operand in operands(binding.value) if _is_data(operand)]
            inputs = list(dict.fromkeys(str(tensor.ty.dtype) for tensor in tensors))
            output = str(getattr(binding.var.ty, "dtype", "tuple"))
            in_float = ["float" in dtype for dtype in (*inputs, output)]
            runs_in = "float" if all(in_float) else "float and integer" if any(in_float) else "integer"
            kinds[name, f"{', '.join(inputs)} → {output}", runs_in] += 1
    return [
        {"operator": name, "count": count, "dtypes": dtypes, "runs_in": runs_in}
        for (name, dtypes, runs_in), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]


def _is_data(operand: Any) -> bool:
    """Whether an operand is an activation or an integer weight, and not its scale or zero point."""
    if not isinstance(getattr(operand, "ty", None), relax.TensorType):
        return False
    value = constant_value(operand)
    return value is None or value.ndim > 1


def _module_weights(module: QnnModule) -> dict[str, int]:
    """Bytes of constants by dtype, each constant once."""
    sizes: Counter[str] = Counter()
    seen = set()
    for binding, _ in every_binding(module.ir):
        for operand in operands(binding.value):
            value = constant_value(operand)
            if value is not None and operand not in seen:
                seen.add(operand)
                sizes[str(value.dtype)] += value.nbytes
    return dict(sizes.most_common())


# ---- .tflite -----------------------------------------------------------------------------------------------------


def _tflite_data(path: Path, form: str, importing: ImportOptions) -> Described:
    """A model, described by its file's operators, which are available even if the import fails."""
    model = with_main(read_model(path), importing.signature)
    graph = model.subgraphs[model.main]
    module: QnnModule | None = None
    problem = None
    try:
        module = import_model(path, form, importing)
    except QnnError as error:
        problem = str(error)
    data = {
        "model": str(path),
        "format": form,
        "bytes": path.stat().st_size,
        "imports": module is not None,
        "problem": problem,
        "inputs": [spec_data(spec) for spec in (module.inputs if module else _specs(graph, graph.inputs))],
        "outputs": [spec_data(spec) for spec in (module.outputs if module else _specs(graph, graph.outputs))],
        "signatures": [entry.signature_key for entry in model.signatures],
        "operators": _operators(graph, module),
        "weights": _weights(model),
        **_module_data(module),
    }
    return data, module


def _specs(graph: Subgraph, indices: Sequence[int]) -> list[TensorSpec]:
    """Inputs or outputs as the file declares them."""
    tensors = [graph.tensors[index] for index in indices]
    return [TensorSpec(tensor.name, tensor.shape, tensor.dtype, tensor.qparams) for tensor in tensors]


def _operators(graph: Subgraph, module: QnnModule | None) -> list[dict[str, Any]]:
    """Operators of the main graph, equal ones counted: name, dtypes, and whether they run in integers."""
    noted = {(note.node, note.operator) for note in module.notes} if module else set()
    kinds = Counter(
        (operator.name, operator.version, _dtypes(operator, graph), _runs_in(operator, graph, noted))
        for operator in graph.operators
    )
    return [
        {"operator": name, "version": version, "count": count, "dtypes": dtypes, "runs_in": runs_in}
        for (name, version, dtypes, runs_in), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]


def _dtypes(operator: Operator, graph: Subgraph) -> str:
    """The dtypes of operands and results: "int8, int8 → int8"; "/channel" marks per-channel scales."""

    def text(index: int) -> str:
        tensor = graph.tensors[index]
        return tensor.dtype + ("/channel" if tensor.qparams is not None and tensor.qparams.per_channel else "")

    inputs = list(dict.fromkeys(text(index) for index in operator.inputs if index >= 0))
    outputs = list(dict.fromkeys(text(index) for index in operator.outputs))
    return f"{', '.join(inputs)} → {', '.join(outputs)}"


def _runs_in(operator: Operator, graph: Subgraph, noted: set[tuple[str, str]]) -> str:
    entry = CONVERTERS.get(operator.name)
    if entry is None:
        return "unsupported"
    if operator.version > entry.max_version:
        return f"unsupported version, newest supported {entry.max_version}"
    if (operator.output_name, operator.name) in noted:
        return "float, see below"
    tensors = [graph.tensors[index] for index in (*operator.inputs, *operator.outputs) if index >= 0]
    in_float = any(tensor.dtype.startswith("float") for tensor in tensors)
    if not in_float:
        return "integer"
    return "float and integer" if any(tensor.qparams is not None for tensor in tensors) else "float, as in the model"


def _weights(model: Model) -> dict[str, int]:
    """Bytes of constants by dtype."""
    sizes: Counter[str] = Counter()
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.data is not None and tensor.data.size:
                sizes[tensor.dtype] += tensor.data.nbytes
    return dict(sizes.most_common())
