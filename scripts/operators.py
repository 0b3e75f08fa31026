"""Writes OPERATORS.md from the frontends' registries: `python -m scripts.operators`. A test keeps it up to date."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import qnn_ext.frontends.mxnet.converters
import qnn_ext.frontends.pytorch.exported.converters
import qnn_ext.frontends.pytorch.torchscript.converters  # noqa: F401  (they fill the registries)
from qnn_ext.files.storage import write_text
from qnn_ext.frontends.mxnet.registry import CONVERTERS as MXNET
from qnn_ext.frontends.onnx.control_flow import CONTROL_FLOW
from qnn_ext.frontends.onnx.registry import CONVERTERS as ONNX
from qnn_ext.frontends.pytorch.exported.registry import CONVERTERS as EXPORTED
from qnn_ext.frontends.pytorch.torchscript.registry import CONVERTERS as TORCHSCRIPT
from qnn_ext.frontends.tflite.registry import CONVERTERS as TFLITE

OPERATORS = Path(__file__).parents[1] / "OPERATORS.md"


def main() -> None:
    write_text(OPERATORS, document())


def document() -> str:
    """OPERATORS.md as it should be."""
    onnx = {domain: [name for d, name in ONNX if d == domain] for domain in sorted({d for d, _ in ONNX})}
    onnx[""] += CONTROL_FLOW
    sections = [
        section("TFLite", "`from_tflite`", TFLITE),
        *(
            section(f"ONNX, {domain or 'ai.onnx'}", ONNX_TEXT.get(domain, "`from_onnx`"), names)
            for domain, names in onnx.items()
        ),
        section("PyTorch, torch.export", EXPORTED_TEXT, EXPORTED),
        section("PyTorch, TorchScript", "`from_pytorch`", TORCHSCRIPT),
        section("MXNet", "`from_mxnet`", MXNET),
    ]
    return "# Operators\n\nWritten by `python -m scripts.operators` from the converters.\n\n" + "\n".join(sections)


ONNX_TEXT = {
    "": "`from_onnx`. Float operators that are not in this list go through TVM's own ONNX importer; what that does not "
    "know either is replaced by the graph that ONNX defines it by, such as CenterCropPad, "
    "CausalConvWithState and LinearAttention, those of com.microsoft too."
}
EXPORTED_TEXT = (
    "`from_pytorch` of an ExportedProgram or a `.pt2` file. Float operators that are not in this list go through TVM's "
    "own importer, or through PyTorch's decompositions."
)


def section(title: str, text: str, names: Iterable[str]) -> str:
    """One heading, one sentence, the names as a paragraph."""
    text = textwrap.fill(text, 120, break_on_hyphens=False)
    listed = textwrap.fill(", ".join(sorted(names)), 120, break_on_hyphens=False, break_long_words=False)
    return f"## {title}\n\n{text}\n\n{listed}\n"


if __name__ == "__main__":
    main()
