"""Results that ONNX Runtime returns quantized, as it quantizes them before a Transpose and not behind it."""

from __future__ import annotations

from ..neighbours import Neighbours
from ..reader import Operator

_MOVES = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")


def quantization_of_result(graph: Neighbours, name: str) -> Operator | None:
    """The QuantizeLinear that is all that becomes of what the graph returns, behind a Transpose and other moves; None
    otherwise."""
    readers = graph.readers[name]
    reader = readers[0] if len(readers) == 1 and readers[0].op_type == "Transpose" else None
    while reader is not None and reader.op_type in _MOVES and not reader.domain:
        reader = graph.only_reader(reader.outputs[0])
    return reader if reader is not None and reader.op_type == "QuantizeLinear" else None
