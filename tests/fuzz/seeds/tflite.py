"""One conformance model of each operator and dtype, once unchanged and once without the shapes of computed tensors, so
that only an operator's own checks stop a mutation."""

from __future__ import annotations

from collections.abc import Iterator

import ai_edge_litert.schema_py_generated as schema
import flatbuffers

from tests.conformance.cases import Case, load_cases
from tests.frontends.tflite.packed_models import Weight, decoder, dense, lookup

from . import bundled


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    yield from bundled("*.tflite")
    for case in single_operators():
        yield f"{case.name}.tflite", case.model
        yield f"{case.name}.open.tflite", open_shapes(case.model)
    yield from language_models()


def language_models() -> Iterator[tuple[str, bytes]]:
    """Weights of few bits, and a decoder with its cache, once more without the shapes of computed tensors."""
    weights = {"int4": Weight(4), "int2": Weight(2), "blocks": Weight(4, 32)}
    for name, weight in weights.items():
        yield f"dense_{name}.tflite", dense(weight, 64)[0]
        yield f"weight_only_{name}.tflite", dense(weight, 64, weight_only=True)[0]
        yield f"lookup_{name}.tflite", lookup(weight, (9, 32))
    yield "decoder.tflite", decoder()
    yield "decoder.open.tflite", open_shapes(decoder())


def single_operators() -> list[Case]:
    """Two cases of each operator and dtype: the first and the last."""
    found: dict[tuple[str, str, bool], Case] = {}
    for case in load_cases():
        found.setdefault((case.operator, case.dtype, False), case)
        found[case.operator, case.dtype, True] = case
    return sorted({case.name: case for case in found.values()}.values(), key=lambda case: case.family)


def open_shapes(model: bytes) -> bytes:
    """The model without the shapes of computed tensors."""
    tree = schema.ModelT.InitFromPackedBuf(bytearray(model), 0)
    for graph in tree.subgraphs:
        for index in {int(index) for operator in graph.operators for index in operator.outputs}:
            graph.tensors[index].shape = graph.tensors[index].shapeSignature = None
    builder = flatbuffers.Builder(1024)
    builder.Finish(tree.Pack(builder), b"TFL3")
    return bytes(builder.Output())
