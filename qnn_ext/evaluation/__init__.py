"""What a quantized network gives up and what it saves: accuracy on labelled data, and memory, against float32."""

from .comparison import Accuracy, Column, accuracy
from .frameworks import Framework, litert, mxnet, onnx_runtime, pytorch
from .memory import MemorySplit, memory_split
from .metrics import Agreement, load_metric

__all__ = [
    "Accuracy",
    "Agreement",
    "Column",
    "Framework",
    "MemorySplit",
    "accuracy",
    "litert",
    "load_metric",
    "memory_split",
    "mxnet",
    "onnx_runtime",
    "pytorch",
]
