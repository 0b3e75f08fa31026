"""Plugins: operators, converters and kernels that a user registers from outside this package, in one file.

    from qnn_ext import plugins

    swish = plugins.operator("acme_swish", "data", infer=..., reference=..., kernel=...)   # R.qnn.acme_swish

    @plugins.onnx_converter("Swish", domain="com.acme")
    def _convert(node):
        return swish.call(node.input(0), beta=node.attribute("beta", 1.0))

A plugin is such a file. Importing it registers everything in it; if an installed package names it as an entry point of
the group `qnn_ext.plugins` (see `qnn_ext.entry_points`), the first use of an importer, of `build` or of `quantize` does
that. `tutorials/deformable.py` is one: deformable convolution.

    operator          a new operator of the dialect: type rule, NumPy reference, kernel, what `quantize` marks
    integer_rule      what it becomes between quantize and dequantize
    ..._converter     the operators of models that become it, or anything else that is built of Relax operators
    implementation    a faster kernel for the products that the dialect has

A name that is already taken raises QnnError: a plugin adds operators and replaces none. Expressions in converters and
rules are Relax's (`tvm.relax.op`), the dialect's (`qnn_ext.op`) and calls of the plugin's own operators.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Container, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import tvm_ffi
from tvm import relax, tirx

from .errors import QnnError
from .frontends.mxnet import converters as _mxnet_converters  # noqa: F401  (fills the registry)
from .frontends.mxnet import registry as mxnet
from .frontends.onnx import converters as _onnx_converters  # noqa: F401
from .frontends.onnx import registry as onnx
from .frontends.pytorch.exported import registry as exported
from .frontends.pytorch.torchscript import converters as _torchscript_converters  # noqa: F401
from .frontends.pytorch.torchscript import registry as torchscript
from .frontends.tflite import converters as _tflite_converters  # noqa: F401
from .frontends.tflite import registry as tflite
from .numerics.tir import fence, truncate
from .op.base import OPS, OpDef, TensorInfo, constant, define, export_to_script, shape_of
from .op.traits import Kind, Traits
from .passes.qdq_to_integer.context import Context
from .passes.qdq_to_integer.registry import RULES
from .passes.qdq_to_integer.registry import integer_rule as _integer_rule
from .passes.qdq_to_integer.tensors import Quantized
from .topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Implementation, strategy
from .topi_int8.generic.nest import nest
from .topi_int8.generic.operands import Constants, Operand
from .topi_int8.generic.stages import BOUNDED, stages

__all__ = [
    "BatchMatmulWorkload",
    "Context",
    "Conv2dWorkload",
    "DenseWorkload",
    "Implementation",
    "OpDef",
    "Quantized",
    "TensorInfo",
    "constant",
    "fence",
    "implementation",
    "integer_rule",
    "mxnet_converter",
    "onnx_converter",
    "operator",
    "shape_of",
    "tflite_converter",
    "torch_export_converter",
    "torchscript_converter",
    "truncate",
]

Function = Callable[..., Any]


# ---- operators -------------------------------------------------------------------------------------------------------


def operator(
    name: str,
    arguments: str,
    *,
    infer: Callable[..., tuple[tuple[Any, ...], str]],
    reference: Function,
    kernel: Function,
    annotate: Callable[[relax.Call], Mapping[str, int | None]] | None = None,
    doc: str = "",
) -> OpDef:
    """Register `R.qnn.<name>`, an operator with one result; `operator(...).call(*tensors, **attributes)` makes a call.

    name:      a Python identifier, best with a prefix of your own: "acme_swish"
    arguments: names of the tensor arguments, "data offset"; a last name "*rest" takes all remaining ones
    infer:     type rule (*TensorInfo, **attributes) -> (shape, dtype); raises ShapeError. Attributes are integers,
               floats, strings and tuples of these
    reference: (*arrays, **attributes) -> the result in NumPy: the oracle, to which the kernel must be equal
    kernel:    (*te.Tensor, **attributes) -> the result as a te.Tensor of any number of stages, or as a tirx.PrimFunc
               (TVMScript) with the arguments' buffers as parameters, then the result's. Elementwise operators that
               follow become part of a TE kernel. It is scheduled for each target, on CPUs and GPUs: reductions keep the
               order of their terms, but a product of floats that is then added must be fenced (`fence`), or LLVM rounds
               once where NumPy rounds twice. Whatever it computes from its arguments' values, its reads stay inside the
               buffers: indices are clipped, writes outside are skipped, and a division by zero has a result
    annotate:  what `quantize` shall make integers, call -> {argument: axis}; the axis is that of a constant with one
               scale for each slice, None for a single scale. By default, nothing. The operator then works in float on
               dequantized values unless it has an `integer_rule`

    Raises QnnError when the name is taken.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise QnnError(f"an operator's name must be an identifier, found {name!r}")
    _free("operator", [name], OPS, "a definition")
    traits = Traits(Kind.OTHER, annotate=annotate)
    definition = define(name, arguments, infer, reference, traits, doc or name)
    export_to_script(**{name: definition.call})
    BOUNDED.add(f"qnn.{name}")

    @stages(f"qnn.{name}")
    def stage(constants: Constants, shape: tuple[int, ...], *operands: Operand, **attributes: Any) -> Any:
        tensors = [one.tensor if one.tensor is not None else constants.add(one.value) for one in operands]
        infos = [TensorInfo(str(i), one.shape, one.dtype, one.value) for i, one in enumerate(operands)]
        _, dtype = infer(*infos, **attributes)
        result = kernel(*tensors, **attributes)
        if isinstance(result, tirx.PrimFunc):
            result = _from_script(name, result, tensors, shape, dtype)
        found = tuple(int(dim) for dim in result.shape), str(result.dtype)
        if found != (shape, dtype):
            raise QnnError(f"the kernel of qnn.{name} computes {found[1]}{found[0]}, its type rule says {dtype}{shape}")
        return result

    return definition


def _from_script(name: str, function: tirx.PrimFunc, tensors: list[Any], shape: tuple[int, ...], dtype: str) -> Any:
    """A TVMScript function as a TE stage."""
    wanted = [(tuple(int(dim) for dim in tensor.shape), str(tensor.dtype)) for tensor in tensors] + [(shape, dtype)]
    found = [(tuple(int(dim) for dim in buffer.shape), str(buffer.dtype)) for buffer in _buffers(function)]
    if found != wanted:
        raise QnnError(f"the TVMScript kernel of qnn.{name} has the buffers {found}, but must have {wanted}")

    def body(ins: list[Any], outs: list[Any]) -> Any:
        return _with_buffers(function, [*ins, *outs])

    return nest(shape, tensors, body, dtype=dtype, name=name)


def _buffers(function: tirx.PrimFunc) -> list[Any]:
    return [param for param in function.params if tirx.is_buffer_var(param)]


def _with_buffers(function: tirx.PrimFunc, buffers: list[Any]) -> Any:
    """The function's body on other buffers."""
    own = dict(zip(_buffers(function), buffers, strict=True))
    return tvm_ffi.structural_map(function.body, (tirx.Buffer, lambda buffer: own.get(buffer, buffer)))


def integer_rule(definition: OpDef) -> Callable[[Function], Function]:
    """Register the decorated rule for an operator of a plugin, on models that `quantize` or their exporter quantized.

    The rule takes the call, as the float model has it, and a `Context`: `context.quantized(argument)` is an argument as
    integers with scale and zero point, None if it is float; `context.value(argument)` its real value;
    `context.quantize_behind()` how the result is quantized, if all its readers agree; `context.emit` binds an
    expression. It returns `Quantized` integers, an expression of the real result, or, if it has no integers to work on,
    `context.refuse(reason)`: the operator then runs in float, and the reason is among the module's notes.
    """
    _free("operator", [f"qnn.{definition.name}"], RULES, "an integer rule")
    return _integer_rule(f"qnn.{definition.name}")


def implementation(workload: type, made: Implementation) -> Implementation:
    """Register a kernel for products: Conv2dWorkload, DenseWorkload or BatchMatmulWorkload.

    Among those that do not refuse a workload, that with the highest priority is used. Raises QnnError when the name is
    taken.
    """
    _free("implementation", [made.name], strategy.names(workload), "a kernel")
    return strategy.register(workload, made)


# ---- converters ------------------------------------------------------------------------------------------------------


def onnx_converter(*names: str, domain: str = "", since: int = 1) -> Callable[[Function], Function]:
    """Register the decorated (Node) -> expression, or a list with one for each output, for ONNX operators.

    domain: of the operators, "" for ONNX's own; since: first version of its operator set that the function implements.
    Node: `qnn_ext.frontends.onnx.node`.
    """

    def register(function: Function) -> Function:
        known = {name: onnx.CONVERTERS.get((domain, name), ()) for name in names}
        taken = [
            name
            for name, entries in known.items()
            if any(entry.since == since or entry.convert.__module__ != function.__module__ for entry in entries)
        ]
        _free(f"{domain or 'ai.onnx'} operator", names, taken)
        return onnx.converter(*names, domain=domain, since=since)(function)

    return register


def tflite_converter(*names: str, max_version: int = 1) -> Callable[[Function], Function]:
    """Register the decorated (Node) -> expression, or a list with one for each output, for TFLite operators.

    names: custom codes, for custom operators; max_version: the newest version that the function implements. Node:
    `qnn_ext.frontends.tflite.node`; `node.operator.custom_options` are the bytes of a custom operator's options.
    """
    _free("TFLite operator", names, tflite.CONVERTERS)
    return tflite.converter(*names, max_version=max_version)


def mxnet_converter(*names: str) -> Callable[[Function], Function]:
    """Register the decorated (Node) -> expression, or a list with one for each output, for MXNet operators.

    Node: `qnn_ext.frontends.mxnet.node`.
    """
    _free("MXNet operator", names, mxnet.CONVERTERS)
    return mxnet.converter(*names)


def torchscript_converter(*kinds: str) -> Callable[[Function], Function]:
    """Register the decorated (Node) -> expression, or a list with one for each output, for TorchScript operators.

    kinds: full names, "torchvision::deform_conv2d". PyTorch itself must know the operator when a model is imported, and
    computes its example with it. Node: `qnn_ext.frontends.pytorch.torchscript.node`, arguments by name.

    A file is imported in a separate process, which has only plugins with an entry point; pass others the object that
    `torch.jit.load` returns.
    """
    _free("TorchScript operator", kinds, torchscript.CONVERTERS)
    return torchscript.converter(*kinds)


def torch_export_converter(*targets: str) -> Callable[[Function], Function]:
    """Register the decorated (importer, *arguments) -> expression for operators of `torch.export` programs.

    targets: with their overload, "torchvision.deform_conv2d.default"; arguments are in the order of PyTorch's schema,
    defaults filled in. `importer.emit` binds an expression.

    As for `torchscript_converter`, files know only plugins with an entry point. Without PyTorch this has no effect.
    """
    with suppress(ImportError):  # PyTorch is not installed
        import_module("qnn_ext.frontends.pytorch.exported.converters")  # fills the registry
    _free("torch.export operator", targets, exported.CONVERTERS)
    return exported.converter(*targets)


def _free(kind: str, names: Collection[str], taken: Container[Any], what: str = "a converter") -> None:
    """Raises QnnError when one of the names is taken."""
    for name in names:
        if name in taken:
            raise QnnError(f"{kind} {name} already has {what}; a plugin adds operators and replaces none")
