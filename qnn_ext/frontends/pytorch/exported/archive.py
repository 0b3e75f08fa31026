"""Reads a `.pt2` file without executing anything in it.

`torch.export.load` unpickles sample inputs, weights and constants of any kind, imports modules named by a tree
specification and passes shape expressions to `sympify`, which evaluates them. So the archive is opened here: raw
tensors are read from their records, pickled ones are loaded with `weights_only`, expressions are checked, and
everything the conversion does not need is removed before PyTorch rebuilds the graph.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

# Registers the operators quantized_decomposed.*, which a program refers to by name
import torch.ao.quantization.fx._decomposed
from torch._export.serde import schema
from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass, deserialize_scalar_type

from ....errors import ModelFormatError, QnnError, UnsupportedOperatorError
from ..reader import read_file
from ..records import open_archive

MODEL = "model"
_TARGET = re.compile(r"torch\.ops\.\w+\.\w+(\.\w+)?|torch\.sym_\w+|_operator\.\w+|math\.\w+")
_KEPT_METADATA = ("nn_module_stack",)
_FUNCTIONS = {
    "Add", "Mul", "Integer", "Rational", "Float",
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv",
    "FloatTrueDiv", "IntTrueDiv", "TruncToInt", "TruncToFloat", "RoundToInt", "ToFloat", "Identity",
    "Max", "Min", "Abs", "Eq", "Ne", "Lt", "Le", "Gt", "Ge",
}  # fmt: skip
_MAX_EXPRESSION = 1000  # characters
_MAX_POWER = 8


def read_program(source: str | os.PathLike | bytes, name: str | None = None) -> torch.export.ExportedProgram:
    """The program in a `.pt2` file or its bytes; `name` says where the bytes came from."""
    content, found = read_file(source)
    with _blaming(name or found):
        return _build(_Archive(content))


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Any error within becomes one of ours that names the file."""
    try:
        yield
    except QnnError as error:
        raise type(error)(f"{name}: {error}") from error
    except (Exception, RecursionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelFormatError(
            f"{name}: the .pt2 file is damaged or from another PyTorch version ({reason}); save it again with "
            f"torch.export.save of PyTorch {torch.__version__.split('+')[0]}"
        ) from error


class _Archive:
    """Records of a PyTorch archive: a zip file, uncompressed, with one folder at the top."""

    def __init__(self, content: bytes) -> None:
        self._zip = open_archive(content)
        self._records: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.compress_type != zipfile.ZIP_STORED:
                raise ModelFormatError(f"record {info.filename} is compressed, which PyTorch never does")
            self._records[info.filename.partition("/")[2]] = info

    def __contains__(self, record: str) -> bool:
        return record in self._records

    def read(self, record: str) -> bytes:
        """The bytes of a record; a damaged one fails its checksum."""
        if record not in self._records:
            raise ModelFormatError(f"the archive lacks {record}")
        return self._zip.read(self._records[record])

    def read_json(self, record: str) -> Any:
        return json.loads(self.read(record))


def _build(archive: _Archive) -> torch.export.ExportedProgram:
    if f"models/{MODEL}.json" not in archive:
        raise ModelFormatError(
            "the archive holds no torch.export program named 'model'; write it with torch.export.save"
        )
    description = _sanitized(archive.read_json(f"models/{MODEL}.json"))
    program = _dict_to_dataclass(schema.ExportedProgram, description)
    state = _tensors(archive, "data/weights/", f"{MODEL}_weights_config.json", f"{MODEL}.pt")
    constants = _tensors(archive, "data/constants/", f"{MODEL}_constants_config.json", f"{MODEL}.pt")
    return ExportedProgramDeserializer().deserialize(program, state, constants)


# ---- tensors -----------------------------------------------------------------------------------------------------


def _tensors(archive: _Archive, folder: str, config_name: str, legacy_name: str) -> dict[str, torch.Tensor]:
    """Name -> tensor of the weights or constants."""
    if folder + legacy_name in archive:
        tensors = _unpickle(archive.read(folder + legacy_name), legacy_name)
        if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
            raise ModelFormatError(f"{folder}{legacy_name} is not a dictionary of tensors")
        return tensors
    config = _dict_to_dataclass(schema.PayloadConfig, archive.read_json(folder + config_name)).config
    storages: dict[str, torch.Tensor] = {}
    return {name: _tensor(archive, folder, name, payload, storages) for name, payload in config.items()}


def _tensor(
    archive: _Archive, folder: str, name: str, payload: schema.PayloadMeta, storages: dict[str, torch.Tensor]
) -> torch.Tensor:
    record = folder + payload.path_name
    if not payload.path_name.startswith(("weight_", "tensor_")):
        raise UnsupportedOperatorError(
            f"'{name}' is a Python or TorchBind object ({payload.path_name}), which is not read from files: its pickle "
            "could run any code: export the model without it, or pass the program as an object"
        )
    if payload.use_pickle:
        value = _unpickle(archive.read(record), name)
        if not isinstance(value, torch.Tensor):
            raise ModelFormatError(f"'{name}' is not a tensor")
        return value
    meta = payload.tensor_meta
    if meta is None:
        raise ModelFormatError(f"tensor '{name}' has no metadata")
    if record not in storages:
        storages[record] = _storage(archive.read(record), deserialize_scalar_type(meta.dtype), name)
    sizes, strides = [[int(dim.as_int) for dim in dims] for dims in (meta.sizes, meta.strides)]
    offset = int(meta.storage_offset.as_int)
    reach = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if min([*sizes, *strides, offset, 0]) < 0 or (0 not in sizes and reach >= storages[record].numel()):
        raise ModelFormatError(
            f"tensor '{name}' of shape {tuple(sizes)} reaches beyond its {len(storages[record])} values"
        )
    tensor = torch.as_strided(storages[record], sizes, strides, offset)
    return torch.nn.Parameter(tensor, requires_grad=False) if payload.is_param else tensor


def _storage(content: bytes, dtype: torch.dtype, name: str) -> torch.Tensor:
    if len(content) % dtype.itemsize:
        raise ModelFormatError(f"tensor '{name}': {len(content)} bytes are not a multiple of {dtype}'s size")
    return torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _unpickle(content: bytes, name: str) -> Any:
    """A pickle that may only hold tensors, including torchao's where it is installed."""
    if content.startswith(b"PK"):
        open_archive(content).close()  # a pickle of tensors is an archive within the archive
    import_torchao()
    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        if (unknown := re.search(r"Unsupported global: GLOBAL ([\w.]+)", str(error))) is not None:
            raise ModelFormatError(
                f"the pickle of '{name}' refers to {unknown[1]}, which is not read from files because it could run any "
                "code: load a file that you trust with torch.export.load, and pass the program"
            ) from error
        raise ModelFormatError(
            f"'{name}' is pickled, and the pickle is damaged or holds more than tensors, which could run any code: "
            f"{(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        ) from error


def import_torchao() -> None:
    """Makes torchao's operators and tensor classes known, if it is installed: programs may refer to them."""
    for module in ("torchao.quantization", "torchao.prototype.quantization.int4"):  # the latter: int4 weights for CPUs
        with suppress(ImportError):
            importlib.import_module(module)


# ---- the program -------------------------------------------------------------------------------------------------


def _sanitized(description: Any) -> dict[str, Any]:
    """The description of a program without anything that PyTorch would evaluate, import or unpickle."""
    if not isinstance(description, dict) or "graph_module" not in description:
        raise ModelFormatError(f"models/{MODEL}.json does not describe a program")
    _check_values(description)
    module = description["graph_module"]
    module["module_call_graph"] = [_flat_signature(module["signature"])]
    module["metadata"] = {}
    module["treespec_namedtuple_fields"] = {}
    description["guards_code"] = []
    return description


def _check_values(value: Any) -> None:
    """Walk all of the JSON: call targets and expressions are checked, metadata is stripped."""
    if isinstance(value, list):
        for item in value:
            _check_values(item)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("metadata"), dict) and "target" in value:
        value["metadata"] = {key: text for key, text in value["metadata"].items() if key in _KEPT_METADATA}
    for key, item in value.items():
        if key == "expr_str":
            _check_expression(item)
        elif key == "as_operator" or (key == "target" and "inputs" in value and "outputs" in value):
            _check_target(item)
        elif key in ("as_custom_obj", "custom_obj") and item:
            raise UnsupportedOperatorError("the program takes Python or TorchBind objects; only tensors are supported")
        else:
            _check_values(item)


def _check_target(target: Any) -> None:
    if isinstance(target, str) and target.startswith("torch.ops.torchao"):
        import_torchao()
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise UnsupportedOperatorError(f"the program calls {target!r}; only operators torch.ops.* are supported")


def _check_expression(text: Any) -> None:
    """A shape expression must be arithmetic on names: sympy evaluates whatever it is given."""
    if not isinstance(text, str) or len(text) > _MAX_EXPRESSION:
        raise ModelFormatError("a shape expression is too long or not text")
    try:
        is_arithmetic = _is_arithmetic(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelFormatError(f"shape expression {text!r} cannot be parsed") from error
    if not is_arithmetic:
        raise ModelFormatError(f"shape expression {text!r} is not plain arithmetic")


def _is_arithmetic(node: ast.AST) -> bool:
    """Sums, products and known functions of names and numbers; powers of names with small exponents."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and len(str(node.value)) < 20
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.UnaryOp):
        return _is_arithmetic(node.operand)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _is_small_power(node.left, node.right)
        known = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod))
        return known and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    if isinstance(node, ast.Compare):
        return all(map(_is_arithmetic, (node.left, *node.comparators)))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    if node.func.id == "Symbol":
        return _is_symbol(node)
    if node.func.id == "Pow":
        return len(node.args) == 2 and not node.keywords and _is_small_power(*node.args)
    return node.func.id in _FUNCTIONS and not node.keywords and all(map(_is_arithmetic, node.args))


def _is_symbol(node: ast.Call) -> bool:
    """Symbol('s77', positive=True, integer=True)."""
    named = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    flags = all(isinstance(item.value, ast.Constant) and isinstance(item.value.value, bool) for item in node.keywords)
    return named and flags and node.args[0].value.isidentifier()  # type: ignore[attr-defined]


def _is_small_power(base: ast.AST, exponent: ast.AST) -> bool:
    if isinstance(exponent, ast.Call) and isinstance(exponent.func, ast.Name) and exponent.func.id == "Integer":
        exponent = exponent.args[0] if len(exponent.args) == 1 else exponent
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        exponent = exponent.operand
    value = exponent.value if isinstance(exponent, ast.Constant) else None
    is_name = isinstance(base, ast.Name) or (isinstance(base, ast.Call) and isinstance(base.func, ast.Name))
    return (
        is_name and _is_arithmetic(base) and isinstance(value, int) and value <= _MAX_POWER and not _holds_power(base)
    )


def _holds_power(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == "Pow" for inner in ast.walk(node))


def _flat_signature(signature: dict[str, Any]) -> dict[str, Any]:
    """The call signature of the whole program with its trees of inputs and outputs flattened into lists."""
    inputs = sum("user_input" in spec or "constant_input" in spec for spec in signature["input_specs"])
    outputs = sum("user_output" in spec for spec in signature["output_specs"])
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * inputs}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    in_spec = [1, {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, keywords]}]
    out_spec = [1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * outputs}]
    call = {"inputs": [], "outputs": [], "in_spec": json.dumps(in_spec), "out_spec": json.dumps(out_spec)}
    return {"fqn": "", "signature": {**call, "forward_arg_names": None}}
