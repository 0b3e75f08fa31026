"""Small .tflite files written with LiteRT's copy of the schema, for tests of the reader."""

from __future__ import annotations

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import numpy as np

TYPES = schema.TensorType


def pack(model: schema.ModelT) -> bytes:
    """The flatbuffer of `model`."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def quantization(
    scale: list[float], zero_point: list[int] | None = None, axis: int = 0
) -> schema.QuantizationParametersT:
    """Quantization parameters; empty vectors are left out of the file."""
    params = schema.QuantizationParametersT()
    params.scale, params.zeroPoint = scale or None, zero_point or None
    params.quantizedDimension = axis
    return params


class Sketch:
    """A model with one subgraph under construction. `self.model` may be changed freely before `bytes()`."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.description = 3, "sketch"
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph = schema.SubGraphT()
        self.graph.name = "main"
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        shape: tuple[int, ...],
        dtype: int = TYPES.INT8,
        data: np.ndarray | bytes | None = None,
        quant: schema.QuantizationParametersT | None = None,
        name: str | None = None,
    ) -> int:
        """Add a tensor, constant when it has data; returns its index."""
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.quantization = list(shape), dtype, quant
        tensor.name = name or f"t{len(self.graph.tensors)}"
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(data if isinstance(data, bytes) else data.tobytes(), np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(
        self,
        code: int,
        inputs: list[int],
        outputs: list[int],
        options: object | None = None,
        custom: str | None = None,
        custom_options: bytes | None = None,
        version: int = 1,
    ) -> schema.OperatorT:
        """Add an operator and its code."""
        entry = schema.OperatorCodeT()
        entry.builtinCode, entry.deprecatedBuiltinCode = code, min(code, 127)
        entry.customCode, entry.version = custom, version
        self.model.operatorCodes.append(entry)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = inputs, outputs
        if options is not None:
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
        if custom_options is not None:
            operator.customOptions = list(custom_options)
        self.graph.operators.append(operator)
        return operator

    def bytes(self) -> bytes:
        """The file."""
        return pack(self.model)


def conv_sketch() -> Sketch:
    """int8 per-channel CONV_2D with RELU6, then RESHAPE, and a signature: the common case in about 2 kB."""
    sketch = Sketch()
    x = sketch.tensor((1, 4, 4, 2), quant=quantization([0.5], [-3]), name="image")
    weights = np.arange(-27, 27, dtype=np.int8).reshape(3, 3, 3, 2)
    w = sketch.tensor(
        (3, 3, 3, 2), data=weights, quant=quantization([0.1, 0.2, 0.3], [0, 0, 0], axis=0), name="weights"
    )
    bias_scales = quantization([0.05, 0.1, 0.15], [0, 0, 0])
    b = sketch.tensor((3,), TYPES.INT32, np.array([1, -2, 3], np.int32), bias_scales, name="bias")
    y = sketch.tensor((1, 2, 2, 3), quant=quantization([0.25], [7]), name="net/conv")
    p = sketch.tensor((1, 12), quant=quantization([0.25], [7]), name="flat")
    options = schema.Conv2DOptionsT()
    options.padding, options.strideW, options.strideH = schema.Padding.VALID, 1, 1
    options.fusedActivationFunction = schema.ActivationFunctionType.RELU6
    sketch.operator(schema.BuiltinOperator.CONV_2D, [x, w, b], [y], options, version=3)
    reshape = schema.ReshapeOptionsT()
    reshape.newShape = [1, 12]
    sketch.operator(schema.BuiltinOperator.RESHAPE, [y], [p], reshape)
    sketch.graph.inputs, sketch.graph.outputs = [x], [p]
    sketch.model.signatureDefs = [signature("serving_default", {"x": x}, {"logits": p})]
    return sketch


def signature(key: str, inputs: dict[str, int], outputs: dict[str, int], subgraph: int = 0) -> schema.SignatureDefT:
    """A signature entry."""

    def entries(names: dict[str, int]) -> list[schema.TensorMapT]:
        result = []
        for name, index in names.items():
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = name, index
            result.append(entry)
        return result

    definition = schema.SignatureDefT()
    definition.signatureKey, definition.subgraphIndex = key, subgraph
    definition.inputs, definition.outputs = entries(inputs), entries(outputs)
    return definition
