"""float16 as ONNX Runtime computes with it on x86: in float32.

An operator that has no kernel for float16 gets its operands in float32, and what it hands to another such operator is
not rounded in between. Kernels for float16 read and write rounded values, and those that compute do so in float32; one
that has operators without such a kernel on all sides runs in float32 like them.
"""

from __future__ import annotations

from tvm import relax

from .neighbours import Neighbours
from .node import Node
from .reader import Operator
from .registry import MICROSOFT

_HALF, _WIDE = "float16", "float32"
_HALF_CODE = 10  # ONNX's

# Operators with a kernel for float16 that computes,
_COMPUTING = frozenset(
    {
        ("", "Celu"), ("", "Clip"), ("", "LayerNormalization"), ("", "Max"), ("", "Min"), ("", "Mod"),
        ("", "RMSNormalization"), ("", "RotaryEmbedding"), ("", "Round"), ("", "Shrink"), ("", "Sign"),
        ("", "SimplifiedLayerNormalization"), (MICROSOFT, "RotaryEmbedding"), (MICROSOFT, "SkipLayerNormalization"),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"),
    }
)  # fmt: skip
# or moves values, or whose converters know float16
_KEEPING = frozenset(
    {
        ("", "Attention"), ("", "BitCast"), ("", "Cast"), ("", "CastLike"), ("", "Compress"), ("", "Concat"),
        ("", "ConcatFromSequence"), ("", "ConstantOfShape"), ("", "DequantizeLinear"), ("", "Dropout"),
        ("", "Expand"), ("", "Flatten"), ("", "Gather"), ("", "GatherElements"), ("", "GatherND"), ("", "Identity"),
        ("", "If"), ("", "IsInf"), ("", "IsNaN"), ("", "Loop"), ("", "QuantizeLinear"), ("", "Reshape"),
        ("", "ReverseSequence"), ("", "Scan"), ("", "Scatter"), ("", "ScatterElements"), ("", "ScatterND"),
        ("", "SequenceConstruct"), ("", "SequenceInsert"), ("", "Shape"), ("", "Slice"), ("", "Split"),
        ("", "SplitToSequence"), ("", "Squeeze"), ("", "TensorScatter"), ("", "Transpose"), ("", "Unsqueeze"),
        (MICROSOFT, "GatherBlockQuantized"), (MICROSOFT, "GroupQueryAttention"), (MICROSOFT, "MatMulNBits"),
        (MICROSOFT, "QMoE"),
    }
)  # fmt: skip
_WITH_KERNEL = _COMPUTING | _KEEPING
# Those among them whose results are not float16
_LEAVING = frozenset({"BitCast", "Cast", "CastLike", "IsInf", "IsNaN", "QuantizeLinear", "Shape"})
# Outputs that are float32 whatever the operands are
_FLOAT32_OUTPUTS = {"LayerNormalization": (1, 2), "SimplifiedLayerNormalization": (1,)}


def _has_kernel(operator: Operator | Node) -> bool:
    return (operator.domain, operator.op_type) in _WITH_KERNEL


class Halves:
    """The float16 values of a graph, and what they were rounded from."""

    def __init__(self, graph: Neighbours) -> None:
        self._graph = graph
        self._unrounded: dict[str, relax.Expr] = {}
        self._cast: dict[str, relax.Expr] = {}  # by a Cast of the model
        self._computed: set[str] = set()  # by operators without a kernel
        self._widened: dict[str, relax.Expr] = {}

    def widen(self, node: Node) -> bool:
        """Give the node its float16 operands in float32 where ONNX Runtime does. Whether its results are float16."""
        dtypes = ["" if value is None else str(value.ty.dtype) for value in node.inputs]
        kind = node.domain, node.op_type
        if kind == ("", "Cast"):
            self._convert_cast(node)
        if _HALF not in dtypes or node.domain not in ("", MICROSOFT):
            return False
        exact = self._is_exact(node)
        if kind in _KEEPING and not exact:
            return False
        for index, dtype in enumerate(dtypes):
            if dtype == _HALF:
                node.inputs[index] = self._wide(node, index, exact)
        return next(dtype for dtype in dtypes if dtype.startswith("float")) == _HALF

    def _convert_cast(self, node: Node) -> None:
        """A Cast from float16 reads what was not rounded, one to float16 keeps it; two of them round."""
        name = node.input_name(0)
        if name in self._unrounded:
            node.inputs[0] = self._unrounded[name]
        elif node.dtype(0) == _WIDE and node.attribute("to") == _HALF_CODE:
            self._cast[node.outputs[0]] = node.input(0)

    def _is_exact(self, node: Node) -> bool:
        """Whether it computes in float32, and nothing is rounded between it and others that do."""
        return not _has_kernel(node) or self._is_isolated(node) or self._is_dequantized(node)

    def _is_isolated(self, node: Node) -> bool:
        """Whether all that a node with a kernel reads and hands on is of operators without one."""
        if node.op_type in _LEAVING:
            return False
        names = enumerate(node.operator.inputs)
        before = [name for index, name in names if name in self._graph.writers and not node.is_constant(index)]
        after = [reader for name in node.outputs for reader in self._readers(name)]
        alone = bool(before and after) and all(name in self._computed for name in before)
        return alone and not any(map(_has_kernel, after))

    def _is_dequantized(self, node: Node) -> bool:
        """Whether it dequantizes what is computed for operators without a kernel only: it makes float32 for them."""
        kind = node.domain, node.op_type
        readers = self._readers(node.outputs[0])
        return kind == ("", "DequantizeLinear") and not (node.is_constant(0) or any(map(_has_kernel, readers)))

    def _readers(self, name: str) -> list[Operator]:
        """Those of a value but for Shape, whose result is known at import."""
        return [reader for reader in self._graph.readers[name] if reader.op_type != "Shape"]

    def _wide(self, node: Node, index: int, exact: bool) -> relax.Expr:
        name = node.input_name(index)
        if exact and (value := self._unrounded.get(name, self._cast.get(name))) is not None:
            return value
        if name not in self._widened:
            self._widened[name] = node.emit(relax.op.astype(node.input(index), _WIDE))
        return self._widened[name]

    def define(self, node: Node, index: int, value: relax.Expr) -> None:
        """Give an output of a widened node the float16 of a value, which operators without a kernel read unrounded."""
        name = node.outputs[index]
        if str(value.ty.dtype) != _WIDE or index in _FLOAT32_OUTPUTS.get(node.op_type, ()):
            node.assembly.define(name, value)
            return
        node.assembly.define(name, node.emit(relax.op.astype(value, _HALF)))
        if not _has_kernel(node):
            self._computed.add(name)
        if self._is_exact(node):
            self._unrounded[name] = value
