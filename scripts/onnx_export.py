"""PyTorch networks as float ONNX files that say nothing of the machine they were made on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn


def export_onnx(
    network: nn.Module, example: torch.Tensor, path: Path, input_name: str, output_name: str, **options: Any
) -> None:
    """Write a network with one input and one output; options: of `torch.onnx.export`."""
    names: dict[str, Any] = {"input_names": [input_name], "output_names": [output_name]}
    torch.onnx.export(network, (example,), path, dynamo=False, **names, **options)
    proto = onnx.load(path)
    for node in proto.graph.node:
        node.ClearField("doc_string")  # where in its code PyTorch made the node
    onnx.save(proto, path)
