"""Sparse constants: against LiteRT, and damaged ones."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from qnn_ext.errors import QnnError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

INDEX_TYPES = {"int32": "Int32Vector", "uint16": "Uint16Vector", "uint8": "Uint8Vector"}


def vector(values, dtype):
    kind = INDEX_TYPES[dtype]
    packed = getattr(schema, kind + "T")()
    packed.values = np.asarray(values, dtype)
    return getattr(schema.SparseIndexVector, kind), packed


def sparse(dense, compressed, blocks=None, order=None, index_dtype="uint8"):
    """(stored values, SparsityParametersT) of an array.

    compressed: whether each dimension lists its indices; blocks: dimension -> its block size; order: of the dimensions
    """
    blocks, rank = blocks or {}, dense.ndim
    order = order or tuple(range(rank))
    split = [part for dim, n in enumerate(dense.shape) for part in (n // blocks.get(dim, 1), blocks.get(dim, 1))]
    axes = [2 * dim for dim in order] + [2 * dim + 1 for dim in range(rank)]
    tree = dense.reshape(split).transpose(axes)
    packed = schema.SparsityParametersT()
    packed.traversalOrder = [*order, *range(rank, rank + len(blocks))]
    packed.blockMap = sorted(blocks)
    packed.dimMetadata = []
    nodes = [tree]
    for dim in (*order, *(f"block {dim}" for dim in range(rank))):
        if isinstance(dim, str) and int(dim.split()[1]) not in blocks:
            nodes = [node[0] for node in nodes]
            continue
        level = schema.DimensionMetadataT()
        if not isinstance(dim, str) and compressed[dim]:
            level.format = schema.DimensionType.SPARSE_CSR
            kept = [[i for i in range(len(node)) if node[i].any()] for node in nodes]
            level.arraySegmentsType, level.arraySegments = vector(np.cumsum([0, *map(len, kept)]), index_dtype)
            level.arrayIndicesType, level.arrayIndices = vector([i for indices in kept for i in indices], index_dtype)
        else:
            level.format, level.denseSize = schema.DimensionType.DENSE, len(nodes[0])
            kept = [range(level.denseSize)] * len(nodes)
        packed.dimMetadata.append(level)
        nodes = [node[i] for node, indices in zip(nodes, kept, strict=True) for i in indices]
    return np.asarray(nodes, dense.dtype), packed


def add_sparse(graph, dense, q=None, **options):
    values, parameters = sparse(dense, **options)
    index = graph.const(values, str(dense.dtype), q)
    graph.packed.tensors[index].shape = list(dense.shape)
    graph.packed.tensors[index].sparsity = parameters
    return index


def random_sparse(shape, dtype, zeros=0.7):
    rng = np.random.default_rng(0)
    return (rng.integers(-9, 10, shape) * (rng.random(shape) > zeros)).astype(dtype)


def densify_model(dense, **options):
    """A convolution or a matrix product, or an addition, with the sparse array's values."""
    graph = Graph()
    q = Q(0.5) if dense.dtype == np.int8 else None
    x = graph.input(dense.shape, str(dense.dtype), q)
    made, y = graph.tensor(dense.shape, str(dense.dtype), q), graph.output(dense.shape, str(dense.dtype), q)
    graph.op("DENSIFY", [add_sparse(graph, dense, q, **options)], [made])
    graph.op("ADD", [x, made], [y])
    return graph.build()


CASES = {
    "csr": ((6, 8), {"compressed": (False, True)}),
    "both_compressed": ((6, 8), {"compressed": (True, True)}),
    "columns_first": ((6, 8), {"compressed": (False, True), "order": (1, 0)}),
    "uint16": ((6, 8), {"compressed": (False, True), "index_dtype": "uint16"}),
    "int32": ((6, 8), {"compressed": (False, True), "index_dtype": "int32"}),
    "blocks": ((6, 8), {"compressed": (False, True), "blocks": {1: 4}}),
    "square_blocks": ((6, 8), {"compressed": (False, True), "blocks": {0: 2, 1: 4}}),
    "kernel": ((4, 3, 2, 8), {"compressed": (False, False, False, True), "blocks": {3: 4}}),
    "dense": ((3, 4), {"compressed": (False, False)}),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_equals_litert(case, dtype):
    shape, options = CASES[case]
    dense = random_sparse(shape, dtype)
    model = densify_model(dense, **options)
    x = random_sparse(shape, dtype, 0)
    ((expected,),) = invoke(model, [[x]], "builtin", stateful=False)
    np.testing.assert_array_equal(expected, np.clip(x + dense, -128, 127))
    (found,) = Interpreter(from_tflite(model)).run([x]).values()
    np.testing.assert_array_equal(found, expected)


def test_sparse_weights_of_a_matrix_product():
    """LiteRT has a kernel for them; here they are dense."""
    graph, dense = Graph(), random_sparse((8, 16), "float32")
    x, y = graph.input((2, 16), "float32"), graph.output((2, 8), "float32")
    weight = add_sparse(graph, dense, compressed=(False, True), blocks={1: 4})
    graph.op("FULLY_CONNECTED", [x, weight, graph.const(np.zeros(8), "float32")], [y], version=8)
    values = random_sparse((2, 16), "float32", 0)
    ((expected,),) = invoke(graph.build(), [[values]], "builtin", stateful=False)
    (found,) = Interpreter(from_tflite(graph.build())).run([values]).values()
    np.testing.assert_array_equal(found, expected)


def damaged(change):
    graph, dense = Graph(), random_sparse((6, 8), "float32")
    x, y = graph.input((6, 8), "float32"), graph.output((6, 8), "float32")
    weight = add_sparse(graph, dense, compressed=(False, True), blocks={1: 4}, index_dtype="int32")
    graph.op("ADD", [x, weight], [y])
    change(graph.packed.tensors[weight], graph.packed.tensors[weight].sparsity)
    return graph.build()


def rename(attribute, value, level=None):
    def change(tensor, sparsity):
        setattr(sparsity if level is None else sparsity.dimMetadata[level], attribute, value)

    return change


def values_of(level, attribute, position, value):
    def change(tensor, sparsity):
        getattr(sparsity.dimMetadata[level], attribute).values[position] = value

    return change


def larger(tensor, sparsity):
    tensor.shape = [1 << 20, 1 << 20]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename("traversalOrder", [0, 0, 2]), "do not fit 2 dimensions"),
        (rename("traversalOrder", [0, 1]), "do not fit 2 dimensions"),
        (rename("traversalOrder", [2, 0, 1]), "do not fit 2 dimensions"),
        (rename("blockMap", [5]), "do not fit 2 dimensions"),
        (rename("blockMap", [1, 1]), "do not fit 2 dimensions"),
        (rename("dimMetadata", []), "do not fit 2 dimensions"),
        (rename("denseSize", 3, 2), "do not divide dimension 1"),
        (rename("denseSize", 0, 2), "do not divide dimension 1"),
        (rename("denseSize", 1 << 30, 0), "not 6"),
        (rename("arraySegments", None, 1), "lacks its segments"),
        (rename("arrayIndicesType", 0, 1), "lacks its segments"),
        (values_of(1, "arraySegments", 0, 1), "segment bounds"),
        (values_of(1, "arraySegments", -1, 1 << 30), "segment bounds"),
        (values_of(1, "arraySegments", 1, -5), "segment bounds"),
        (values_of(1, "arrayIndices", 0, 2), "outside 0 … 1"),
        (values_of(1, "arrayIndices", 0, -1), "outside 0 … 1"),
        (larger, "elements"),
    ],
)
def test_damaged_descriptions_are_refused(change, message):
    with pytest.raises(QnnError, match=f"tensor 2 't2'.*{message}|tensor 2.*{message}"):
        from_tflite(damaged(change))
