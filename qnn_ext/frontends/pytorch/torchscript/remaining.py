"""Operators of floats that have no converter among those of TorchScript: they are converted as torch.export's are, and
PyTorch's fused layers by the formulas below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tvm import relax

from ....errors import UnsupportedOperatorError
from ....qparams import QParams
from ...assembly import Assembly
from ..common import import_torch
from .formulas import quantize
from .node import Node
from .run_time_sizes import Count, Examples, sources
from .values import Traced, as_real, flattened, plain, qparams_of

SPACES = ("aten::", "torchvision::")

# Of quantized tensors: what moves or compares values does so to their integers, without regard to scale and zero point
_ON_INTEGERS = frozenset((
    "argsort", "atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "diagonal", "dstack", "fliplr", "flipud",
    "hstack", "max_pool3d", "msort", "repeat_interleave", "rot90", "row_stack", "sort", "take", "take_along_dim",
    "tile", "unfold", "vstack",
))  # fmt: skip
# and what PyTorch computes of the dequantized values, and quantizes as they were
_IN_FLOAT = frozenset(("std",))


def is_convertible(name: str, overload: str) -> bool:
    """Whether torch.export's importer may have a converter for an operator ("aten::tan", "out"), or a formula for it is
    here. In-place operators are taken for the others."""
    return _functional(name, overload) is not None


class Remaining:
    """One such operator, checked before PyTorch computes it.

    arguments: name in the operator's schema → value
    read:      for each of its results, whether the model reads it; others are not computed

    Raises UnsupportedOperatorError
    """

    def __init__(
        self,
        assembly: Assembly,
        name: str,
        overload: str,
        arguments: Mapping[str, Any],
        read: Sequence[bool],
        where: Callable[[], str],
    ) -> None:
        from ..exported.operator_program import OperatorProgram

        torch, values = import_torch(), list(arguments.values())
        function = _functional(name, overload)
        assert function is not None
        found = [value for value in flattened(values) if not isinstance(value, Count)]
        found = [value for value in found if isinstance(plain(value), torch.Tensor)]
        self._is_read = read
        self._tensors = list({id(value): value for value in [*found, *sources(values)]}.values())
        self._qparams = _common_qparams(name, [plain(value) for value in self._tensors], where)
        self._on_integers = name.split("::")[1] in _ON_INTEGERS

        def run(*operands: Any) -> Any:
            found = [
                torch.view_as_complex(operand) if plain(value).is_complex() else operand
                for value, operand in zip(self._tensors, operands, strict=True)
            ]
            given = dict(zip(map(id, self._tensors), found, strict=True))
            result = function(*_replaced(values, given), names=list(arguments))
            return _as_real(result if all(read) else self._read(result))

        like = Examples(assembly.builder.sizes)
        examples = [like.of(value, self._example(plain(value).detach())) for value in self._tensors]
        self._program = OperatorProgram(assembly, run, examples, where())

    def convert(self, node: Node) -> list[relax.Expr | None]:
        """All tensors of the operator's result, None for one that it does not compute or nothing reads."""
        torch = import_torch()
        results = list(flattened(self._read(node.examples)))
        if not all(value is None or isinstance(value, torch.Tensor) for value in results):
            raise node.unsupported("a result that is no tensor, but depends on the values of one")
        node.note("an operator that the model does not quantize")
        if any(qparams_of(value) not in (None, self._qparams) for value in results):
            raise node.unsupported("a result whose scale or zero point is not the operand's")
        operands = [self._operand(node, value) if isinstance(value, Traced) else None for value in self._tensors]
        remaining = iter(self._program.results(operands))
        return [None if value is None else self._as_result(node, next(remaining)) for value in results]

    def _example(self, tensor: Any) -> Any:
        """What the operator takes of a tensor: the integers of a quantized one, or its values."""
        if not tensor.is_quantized:
            return as_real(tensor)
        return tensor.int_repr() if self._on_integers else tensor.dequantize()

    def _operand(self, node: Node, value: Traced) -> relax.Expr:
        source = qparams_of(value.example)
        return value.expr if source is None or self._on_integers else node.dequantize(value.expr, source)

    def _as_result(self, node: Node, value: relax.Expr) -> relax.Expr:
        return value if self._qparams is None or self._on_integers else quantize(node, value, self._qparams)

    def _read(self, results: Sequence[Any]) -> list[Any]:
        return [result if read else None for result, read in zip(results, self._is_read, strict=True)]


def _common_qparams(name: str, tensors: Sequence[Any], where: Callable[[], str]) -> QParams | None:
    """The QParams of all quantized operands, None if there is none. Raises UnsupportedOperatorError where the operator
    is not for such, or they differ."""
    found = [qparams for qparams in map(qparams_of, tensors) if qparams is not None]
    if not found:
        return None
    if name.split("::")[1] not in _ON_INTEGERS | _IN_FLOAT:
        raise UnsupportedOperatorError(
            f"{where()}: operator {name} is not supported for quantized tensors; dequantize them before"
        )
    if any(qparams != found[0] for qparams in found):
        raise UnsupportedOperatorError(
            f"{where()}: operator {name} of tensors with different scales or zero points; dequantize them before"
        )
    return found[0]


def _as_real(value: Any) -> Any:
    """The results, those of complex numbers as their parts."""
    if isinstance(value, (list, tuple)):
        return [_as_real(item) for item in value]
    return value if value is None else as_real(value)


def _replaced(value: Any, given: dict[int, Any]) -> Any:
    """The value with tensors, traced or not, replaced by others."""
    if isinstance(value, Count):
        return value.compute(given[id(value.tensor)])
    if id(value) in given:
        return given[id(value)]
    if isinstance(value, (list, tuple)):
        return [_replaced(item, given) for item in value]
    return plain(value)


@lru_cache(maxsize=1024)
def _functional(name: str, overload: str) -> Callable[..., Any] | None:
    """A function of the operator's arguments, in the order of its schema, and of their `names`."""
    if not name.startswith(SPACES):
        return None
    if name in _FORMULAS:
        formula = _FORMULAS[name]
        return lambda *arguments, names: formula(**dict(zip(names, arguments, strict=True)))
    torch = import_torch()
    space, short = name.split("::")
    operators = getattr(torch.ops, space)
    if short.endswith("_") and not short.endswith("__"):
        found = _out_of_place(operators, short, overload)
    else:
        found = getattr(getattr(operators, short, None), overload or "default", None)
    if found is None or found._schema.is_mutable or torch.Tag.nondeterministic_seeded in found.tags:
        return None
    if any(str(result.type) not in ("Tensor", "List[Tensor]") for result in found._schema.returns):
        return None
    keyword_only = {argument.name for argument in found._schema.arguments if argument.kwarg_only}

    def call(*arguments: Any, names: list[str]) -> Any:
        pairs = list(zip(names, arguments, strict=True))
        positional = [value for key, value in pairs if key not in keyword_only]
        return found(*positional, **{key: value for key, value in pairs if key in keyword_only})

    return call


def _out_of_place(operators: Any, name: str, overload: str) -> Any:
    """The operator that computes what an in-place one writes: the overload that takes the same, as names differ
    (`pow_.Scalar` and `pow.Tensor_Scalar`)."""
    packet = getattr(operators, name.rstrip("_"), None)
    written = getattr(getattr(operators, name, None), overload or "default", None)
    if packet is None or written is None:
        return None
    candidates, wanted = (getattr(packet, other) for other in packet.overloads()), _types(written)
    return next((one for one in candidates if _types(one) == wanted), None)


def _types(operator: Any) -> list[str]:
    return [str(argument.type) for argument in operator._schema.arguments]


# ---- PyTorch's fused layers --------------------------------------------------------------------------------------

_OF_QUERIES, _OF_KEYS = 0, 1  # what a mask says: which keys a query sees, or which keys of a sample count


def _heads(x: Any, count: int) -> Any:
    """(N, L, E) → (N, heads, L, E / heads)"""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """torch.nn.MultiheadAttention: softmax(Q Kᵀ / √d) V of each head, and the softmax itself."""
    torch = import_torch()
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    parts = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (_heads(torch.nn.functional.linear(x, weight, bias), num_head) for x, weight, bias in parts)
    scores = q * (1 / (embed_dim // num_head) ** 0.5) @ k.transpose(-1, -2)
    if mask is not None:
        if mask_type == _OF_KEYS:
            mask = mask[:, None, None, :]
        hidden = mask if mask.dtype == torch.bool else mask != 0
        scores = scores.masked_fill(hidden, float("-inf"))
    shares = scores.softmax(-1)
    mixed = (shares @ v).transpose(1, 2).flatten(-2)
    result = torch.nn.functional.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, shares.mean(1) if average_attn_weights else shares


def _encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """torch.nn.TransformerEncoderLayer"""
    functional = import_torch().nn.functional

    def attended(x: Any) -> Any:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def transformed(x: Any) -> Any:
        activation = functional.gelu if use_gelu else functional.relu
        return functional.linear(activation(functional.linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attended(first(src))
        return src + transformed(second(src))
    src = first(src + attended(src))
    return second(src + transformed(src))


_FORMULAS: dict[str, Callable[..., Any]] = {
    "aten::_native_multi_head_attention": _attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
}
