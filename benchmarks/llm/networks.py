"""Llama-shaped networks with random weights in blocks of 32, as ONNX models and as GGUF files with the same weights.

The ONNX models are those that exporters for ONNX Runtime write: MatMulNBits with accuracy_level 4, queries, keys and
values from one product, GroupQueryAttention over a cache of fixed length, the vocabulary's product for the last token
alone. GGUF's Q4_0 and Q8_0 hold the same integers and scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK = 32
EPSILON = 1e-5
OPSET = 21
MICROSOFT = "com.microsoft"
TOKENS, MASK, LOGITS = "input_ids", "attention_mask", "logits"


@dataclass(frozen=True)
class Network:
    """Sizes of a network. groups: keys and values; heads // groups heads of queries share one. length: of the cache"""

    name: str
    width: int
    hidden: int
    layers: int
    heads: int
    groups: int
    vocabulary: int = 32_000
    length: int = 1024

    @property
    def size(self) -> int:
        """Of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer, (N, K)."""
        return {
            "qkv": ((self.heads + 2 * self.groups) * self.size, self.width),
            "out": (self.width, self.width),
            "gate": (self.hidden, self.width),
            "up": (self.hidden, self.width),
            "down": (self.width, self.hidden),
        }

    @property
    def parameters(self) -> int:
        """With embedding and head."""
        each = sum(rows * columns for rows, columns in self.matrices.values())
        return self.layers * each + 2 * self.vocabulary * self.width

    def read_bytes(self, bits: int, position: int) -> int:
        """Bytes of weights, scales and cache that the token at a position needs read once."""
        weights = self.parameters - self.vocabulary * self.width
        cache = 2 * self.layers * self.groups * self.size * position * 4
        return weights * bits // 8 + weights // BLOCK * 4 + cache

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Of the keys or the values of a layer."""
        return 1, self.groups, self.length, self.size

    @property
    def states(self) -> dict[str, str]:
        """Input → output of each part of the cache."""
        return {
            f"past_key_values.{layer}.{kind}": f"present.{layer}.{kind}"
            for layer in range(self.layers)
            for kind in ("key", "value")
        }


NETWORKS = {
    network.name: network
    for network in (
        Network("tiny", width=64, hidden=160, layers=1, heads=4, groups=2, vocabulary=256, length=64),
        Network("100m", width=640, hidden=1728, layers=14, heads=10, groups=2),
        Network("500m", width=1280, hidden=3456, layers=24, heads=20, groups=5),
    )
}


@dataclass(frozen=True)
class Blocks:
    """A matrix in blocks: unsigned integers (N, K), whose zero point is 2^(bits − 1), and scales (N, K / 32) that are
    float16's."""

    values: np.ndarray
    scale: np.ndarray
    bits: int

    @property
    def packed(self) -> np.ndarray:
        """The integers as MatMulNBits takes them, neighbours in a byte."""
        if self.bits == 8:
            return self.values
        return self.values[:, ::2] | (self.values[:, 1::2] << 4)


def blocks(network: Network, name: str, bits: int) -> Blocks:
    """The matrix of this name, such as "3.up": products with it are about as large as its operand."""
    layer, _, kind = name.rpartition(".")
    ends = {"embedding": (network.vocabulary, network.width), "head": (network.vocabulary, network.width)}
    rows, columns = {**network.matrices, **ends}[kind]
    rng = np.random.default_rng([int(layer or 0), sorted({**network.matrices, **ends}).index(kind), bits])
    values = rng.integers(0, 1 << bits, (rows, columns), np.uint8)
    depth = 1 if kind == "embedding" else columns
    unit = np.sqrt(12 / depth) / (1 << bits)
    scale = unit * rng.uniform(0.5, 1.5, (rows, columns // BLOCK))
    return Blocks(values, scale.astype(np.float16), bits)


def norm_weight(network: Network, name: str) -> np.ndarray:
    """The weight of the norm of this name, "0.norm" to "LAYERS.norm" or "0.norm2"."""
    layer, _, kind = name.partition(".")
    return np.random.default_rng([int(layer), len(kind)]).uniform(0.5, 1.5, network.width).astype(np.float32)


# ---- ONNX --------------------------------------------------------------------------------------------------------


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self, network: Network, bits: int) -> None:
        self.network, self.bits = network, bits
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, name=output, **attributes))
        return output

    def product(self, data: str, name: str) -> str:
        """data · wᵀ"""
        weight = blocks(self.network, name, self.bits)
        rows, columns = weight.values.shape
        packed = weight.packed.reshape(rows, columns // BLOCK, -1)
        inputs = [data, self.constant(f"{name}.weight", packed)]
        inputs.append(self.constant(f"{name}.scale", weight.scale.astype(np.float32)))
        sizes = {"K": columns, "N": rows, "bits": self.bits, "block_size": BLOCK}
        return self.add("MatMulNBits", inputs, name, MICROSOFT, accuracy_level=4, **sizes)

    def norm(self, data: str, name: str) -> str:
        unit = self.constant(f"{name}.weight", norm_weight(self.network, name))
        return self.add("SimplifiedLayerNormalization", [data, unit], name, axis=-1, epsilon=EPSILON)

    def summed_norm(self, data: str, other: str, name: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        unit = self.constant(f"{name}.weight", norm_weight(self.network, name))
        outputs = [name, "", "", f"{name}.sum"]
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [data, other, unit],
                outputs,
                domain=MICROSOFT,
                name=name,
                epsilon=EPSILON,
            )
        )
        return name, outputs[3]


def rotations(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (length, size / 2) of rotary position embedding."""
    frequencies = 10000.0 ** -(np.arange(0, network.size, 2) / network.size)
    angles = np.outer(np.arange(network.length), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _embedded(graph: _Graph) -> str:
    weight = blocks(graph.network, "embedding", graph.bits)
    inputs = [graph.constant("embedding.weight", weight.packed), TOKENS]
    inputs.append(graph.constant("embedding.scale", weight.scale.astype(np.float32)))
    sizes = {"bits": graph.bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
    return graph.add("GatherBlockQuantized", inputs, "embedding", MICROSOFT, **sizes)


def _positions(graph: _Graph) -> list[str]:
    """How many keys each sample has, less one, and how many all have at most, from the mask."""
    axis, one = graph.constant("axis", np.array([1])), graph.constant("one", np.array(1))
    count = graph.add("ReduceSum", [MASK, axis], "count", keepdims=0)
    last = graph.add("Cast", [graph.add("Sub", [count, one], "last")], "seqlens_k", to=TensorProto.INT32)
    shape = graph.add("Gather", [graph.add("Shape", [MASK], "shape"), one], "total", axis=0)
    return [last, graph.add("Cast", [shape], "total_sequence_length", to=TensorProto.INT32)]


def _attention(graph: _Graph, layer: int, data: str, positions: list[str]) -> str:
    network = graph.network
    past = [name for name in network.states if name.startswith(f"past_key_values.{layer}.")]
    outputs = [f"{layer}.attention", *(network.states[name] for name in past)]
    inputs = [graph.product(data, f"{layer}.qkv"), "", "", *past, *positions, "cos", "sin"]
    sizes = {"num_heads": network.heads, "kv_num_heads": network.groups}
    graph.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            inputs,
            outputs,
            domain=MICROSOFT,
            name=outputs[0],
            do_rotary=1,
            scale=float(1 / np.sqrt(network.size)),
            **sizes,
        )
    )
    return outputs[0]


def _nodes(graph: _Graph) -> None:
    total = _embedded(graph)
    data = graph.norm(total, "0.norm")
    positions = _positions(graph)
    for layer in range(graph.network.layers):
        attended = graph.product(_attention(graph, layer, data, positions), f"{layer}.out")
        data, total = graph.summed_norm(total, attended, f"{layer}.norm2")
        gate = graph.product(data, f"{layer}.gate")
        silu = graph.add("Mul", [gate, graph.add("Sigmoid", [gate], f"{layer}.sigmoid")], f"{layer}.silu")
        both = graph.add("Mul", [silu, graph.product(data, f"{layer}.up")], f"{layer}.both")
        data, total = graph.summed_norm(total, graph.product(both, f"{layer}.down"), f"{layer + 1}.norm")
    bounds = [graph.constant("minus_one", np.array([-1])), graph.constant("end", np.array([np.iinfo(np.int64).max]))]
    last = graph.add("Slice", [data, *bounds, "axis"], "last_row")
    graph.add("Identity", [graph.product(last, "head")], LOGITS)


def onnx_model(network: Network, bits: int) -> onnx.ModelProto:
    """(tokens (1, S), mask (1, T), cache) → logits (1, 1, vocabulary) of the last token, and the cache: T tokens in
    all, of which S are new."""
    graph = _Graph(network, bits)
    for name, value in zip(("cos", "sin"), rotations(network), strict=True):
        graph.constant(name, value)
    _nodes(graph)
    value = helper.make_tensor_value_info
    inputs = [value(TOKENS, TensorProto.INT64, [1, "S"]), value(MASK, TensorProto.INT64, [1, "T"])]
    past, present = ([1, network.groups, name, network.size] for name in ("P", "C"))
    inputs += [value(name, TensorProto.FLOAT, past) for name in network.states]
    outputs = [value(LOGITS, TensorProto.FLOAT, [1, 1, network.vocabulary])]
    outputs += [value(name, TensorProto.FLOAT, present) for name in network.states.values()]
    made = helper.make_graph(graph.nodes, network.name, inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


# ---- GGUF --------------------------------------------------------------------------------------------------------


def _in_gguf(weight: Blocks) -> np.ndarray:
    """Rows of Q4_0 or Q8_0: for each block its scale in float16, then the integers. In 4 bits, the first half of a
    block is in the lower halves of bytes."""
    rows, columns = weight.values.shape
    each = weight.values.reshape(rows, columns // BLOCK, BLOCK)
    integers = each ^ 0x80 if weight.bits == 8 else each[..., : BLOCK // 2] | (each[..., BLOCK // 2 :] << 4)
    scale = weight.scale[..., None].view(np.uint8)
    return np.concatenate([scale, integers], axis=-1).reshape(rows, -1)


def _pairwise(weight: Blocks, size: int) -> Blocks:
    """The rows of a query or key as llama.cpp turns them: values that are turned together are neighbours."""
    order = np.arange(len(weight.values)).reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1)
    return Blocks(weight.values[order], weight.scale[order], weight.bits)


def _gguf_tensors(network: Network, bits: int) -> Iterator[tuple[str, Blocks]]:
    yield "token_embd.weight", blocks(network, "embedding", bits)
    yield "output.weight", blocks(network, "head", bits)
    ends = np.cumsum([0, network.heads, network.groups, network.groups]) * network.size
    names = {"out": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    for layer in range(network.layers):
        qkv = blocks(network, f"{layer}.qkv", bits)
        for kind, begin, end in zip("qkv", ends, ends[1:], strict=False):
            rows = Blocks(qkv.values[begin:end], qkv.scale[begin:end], bits)
            yield f"blk.{layer}.attn_{kind}.weight", rows if kind == "v" else _pairwise(rows, network.size)
        for name, theirs in names.items():
            yield f"blk.{layer}.{theirs}.weight", blocks(network, f"{layer}.{name}", bits)


def write_gguf(path: Path, network: Network, bits: int) -> None:
    """The file that llama.cpp reads. Raises ImportError without the package gguf."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(network.name)
    writer.add_context_length(network.length)
    writer.add_embedding_length(network.width)
    writer.add_block_count(network.layers)
    writer.add_feed_forward_length(network.hidden)
    writer.add_head_count(network.heads)
    writer.add_head_count_kv(network.groups)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(network.size)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(network.vocabulary)
    writer.add_tokenizer_model("none")
    kind = {4: gguf.GGMLQuantizationType.Q4_0, 8: gguf.GGMLQuantizationType.Q8_0}[bits]
    for name, weight in _gguf_tensors(network, bits):
        writer.add_tensor(name, _in_gguf(weight), raw_dtype=kind)
    for layer in range(network.layers):
        for ours, theirs in (("norm", "attn_norm"), ("norm2", "ffn_norm")):
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", norm_weight(network, f"{layer}.{ours}"))
    writer.add_tensor("output_norm.weight", norm_weight(network, f"{network.layers}.norm"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
