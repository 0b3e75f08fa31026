"""Results that ONNX Runtime returns quantized, as it quantizes them before a Transpose and not behind it."""

from __future__ import annotations

from ..neighbours import Neighbours
from ..reader import Operator

_MOVES = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
_FLOAT = 1  # TensorProto.FLOAT


def quantization_of_result(graph: Neighbours, name: str) -> Operator | None:
    """The QuantizeLinear that is all that becomes of what the graph returns, behind a Transpose and other moves; None
    otherwise."""
    readers = graph.readers[name]
    reader = readers[0] if len(readers) == 1 and readers[0].op_type == "Transpose" else None
    while reader is not None and _moves(reader):
        reader = graph.only_reader(reader.outputs[0])
    return reader if reader is not None and reader.op_type == "QuantizeLinear" else None


def _moves(operator: Operator) -> bool:
    """Whether it leaves every float as it is, as a Cast to float32 does."""
    is_cast = operator.op_type == "Cast" and operator.attributes.get("to") == _FLOAT
    return (operator.op_type in _MOVES or is_cast) and not operator.domain
