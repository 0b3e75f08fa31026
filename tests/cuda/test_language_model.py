"""A small Llama with weights of 4 bits that reads 33 tokens at once on the emulated GPU, by kernels of many rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.passes.low_precision import at_precision
from qnn_ext.targets.names import make_target

from .grouped import computed_by
from .models import run_lowered

torch = pytest.importorskip("torch")

TUTORIALS = Path(__file__).parents[2] / "tutorials"
TOKENS, LENGTH = 33, 40
PRODUCTS = 7 + 1  # of a layer, and the head

# scheme -> architecture, precision, kernel
CASES = {
    "8da4w": ("sm_80", "float32", "blockwise_mma.cuda"),
    "8da4w on Turing": ("sm_75", "float32", "blockwise_mma_turing.cuda"),
    "8da4w on Pascal": ("sm_61", "float32", "blockwise_dp4a.cuda"),
    "int4": ("sm_80", "float32", "blockwise_ffma.cuda"),
    "int4 float16": ("sm_80", "float16", "blockwise_mma_float16.cuda"),
    "int4 bfloat16": ("sm_80", "bfloat16", "blockwise_mma_bfloat16.cuda"),
}


@pytest.fixture(scope="module")
def module_of():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TUTORIALS))
        import llama
    quantization = pytest.importorskip("torchao.quantization")
    granularity = quantization.PerGroup(32)
    schemes = {
        "8da4w": lambda: quantization.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=granularity
        ),
        "int4": lambda: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=granularity),
    }

    def made(scheme):
        config = llama.Config(width=64, hidden=96, layers=1, heads=4, kv_heads=2, vocabulary=56, length=LENGTH)
        network = llama.random_llama(config)
        quantization.quantize_(network, schemes[scheme]())
        inputs = torch.ones(1, TOKENS, dtype=torch.int64), torch.arange(TOKENS)
        return qnn_ext.from_pytorch(torch.export.export(network, inputs))

    return made


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES)
def test_prefill(case, module_of, rng):
    """Logits as the interpreter has them, but for the last bits of sums of floats: rounding activations to 8 bits may
    turn these into a step of one of a product's 64 or 96 values."""
    architecture, precision, kernel = CASES[case]
    module = module_of(case.split()[0])
    module = qnn_ext.QnnModule(at_precision(module.ir, precision), module.inputs, module.outputs, states=module.states)
    inputs = [rng.integers(0, 56, (1, TOKENS)), np.arange(TOKENS)]
    with computed_by(kernel):
        lowered = lower_module(module.ir, make_target(architecture))
    chosen = Counter(item.implementation for item in kernels_of(lowered))
    found = run_lowered(lowered, architecture, [*inputs, *(np.asarray(state.initial) for state in module.states)])
    assert chosen[kernel] == PRODUCTS and not any(name.startswith("blockwise") for name in set(chosen) - {kernel})
    expected = list(Interpreter(module).run(dict(zip(("tokens", "positions"), inputs, strict=True))).values())
    logits, reference = found[0], expected[0]
    assert reference.std() > 0.1
    assert np.abs(logits - reference).max() <= 0.02 * reference.std()
    assert (logits.argmax(-1) == reference.argmax(-1)).mean() >= 0.95
