"""Perplexity of a language model with its weights quantized in several ways, on texts that it wrote itself in float.

    python -m benchmarks.perplexity [--checkpoint FILE] [--texts 6] [--length 160] [--markdown FILE]

The model is a checkpoint of llama2.c; by default TinyStories' of 260,000 parameters, from ../shared where that exists.
Its float module draws the texts, with temperature 1 and a seed for each; as many others calibrate. Lower is better, and
float's own perplexity is what can be reached. `bits` counts the constants of the module: all weights and their groups.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.files.storage import write_text
from qnn_ext.generation import LanguageModel, Sampling, generate, perplexity
from qnn_ext.module import QnnModule
from qnn_ext.op.base import constant_value
from qnn_ext.passes.bodies import every_binding
from qnn_ext.passes.rewrite import operands
from qnn_ext.qparams import CACHE_DTYPES
from qnn_ext.quantize import QConfig, quantize

from .models import AT_HAND, ROOT

CHECKPOINT = AT_HAND / "llm" / "stories260K.bin"
BEGIN = 1  # the token that every text of these checkpoints begins with

INT4 = {"weight_only": True, "nbit_weight": 4, "group_size": 32, "embeddings": True}
INT2 = {**INT4, "nbit_weight": 2, "group_size": 16}
WAYS: dict[str, dict[str, Any]] = {
    "int8 weight-only, per row": {"weight_only": True, "embeddings": True},
    "int8 dynamic, groups of 32": {"dynamic": True, "group_size": 32, "embeddings": True},
    "8da4w: int4 dynamic, groups of 32": {"dynamic": True, "nbit_weight": 4, "group_size": 32},
    "int4, groups of 32": INT4,
    "int4, mse": {**INT4, "weight_scale": "mse"},
    "int4, hqq": {**INT4, "weight_scale": "hqq"},
    "int4, awq": {**INT4, "smooth": "awq"},
    "int4, gptq": {**INT4, "weight_rounding": "gptq"},
    "int4, mse, awq, gptq": {**INT4, "weight_scale": "mse", "smooth": "awq", "weight_rounding": "gptq"},
    "uint4 with zero points": {**INT4, "weight_symmetric": False},
    "uint4, hqq": {**INT4, "weight_symmetric": False, "weight_scale": "hqq"},
    "uint4, mse, awq, gptq": {
        **INT4,
        "weight_symmetric": False,
        "weight_scale": "mse",
        "smooth": "awq",
        "weight_rounding": "gptq",
    },
    "uint2, groups of 16": {**INT2, "weight_symmetric": False},
    "uint2, mse, awq, gptq": {
        **INT2,
        "weight_symmetric": False,
        "weight_scale": "mse",
        "smooth": "awq",
        "weight_rounding": "gptq",
    },
}


@dataclass(frozen=True)
class Row:
    """One way to quantize. bits: of all constants, for each of the float module's values."""

    way: str
    bits: float
    perplexity: float


def module_of(checkpoint: Path) -> QnnModule:
    """The model for one token at a time."""
    sys.path.insert(0, str(ROOT / "tutorials"))
    import llama
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(
            llama.read_llama2c(checkpoint), (torch.ones(1, 1, dtype=torch.int64), torch.arange(1))
        )
        return qnn_ext.from_pytorch(program)


def written(model: LanguageModel, seeds: Sequence[int], length: int) -> list[list[int]]:
    """A text for each seed, as the model draws it."""
    texts = []
    for seed in seeds:
        model.reset()
        texts.append([BEGIN, *generate(model, [BEGIN], length - 1, Sampling(temperature=1.0, seed=seed), [BEGIN])])
    return texts


def measure(module: QnnModule, ways: dict[str, dict[str, Any]], count: int, length: int) -> Iterator[Row]:
    """A row for float, and one for each way."""
    model = LanguageModel(qnn_ext.build(module, num_threads=1))
    texts = written(model, range(count), length)
    calibration = [
        (np.array([[token]]), np.array([place]))
        for text in written(model, range(count, 2 * count), length)
        for place, token in enumerate(text)
    ]
    values = constant_bytes(module) / 4
    yield Row("float32", 32.0, perplexity(model, texts))
    for way, settings in ways.items():
        found = quantize(module, dataset=calibration, config=QConfig(**settings))
        model = LanguageModel(qnn_ext.build(found, num_threads=1))
        yield Row(way, 8 * constant_bytes(found) / values, perplexity(model, texts))
    for dtype in CACHE_DTYPES[1:]:
        model = LanguageModel(qnn_ext.build(module, num_threads=1, cache_dtype=dtype))
        yield Row(f"float32, cache {dtype}", 32.0, perplexity(model, texts))


def constant_bytes(module: QnnModule) -> int:
    """The bytes of a module's float and packed constants."""
    found = {expr for binding, _ in every_binding(module.ir) for expr in operands(binding.value)}
    arrays = [array for array in map(constant_value, found) if array is not None]
    return sum(array.nbytes for array in arrays if array.dtype.name in ("float32", "float16", "uint16", "uint8"))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| weights | bits a value | perplexity |", "|---|---:|---:|"]
    lines += [f"| {row.way} | {row.bits:.1f} | {row.perplexity:.3f} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perplexity", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--length", type=int, default=160)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = []
    for row in measure(module_of(options.checkpoint), WAYS, options.texts, options.length):
        rows.append(row)
        print(f"{row.way}: {row.bits:.1f} bits, {row.perplexity:.3f}", flush=True)
    print(table(rows))
    if options.markdown is not None:
        write_text(options.markdown, table(rows) + "\n")


if __name__ == "__main__":
    main()
