"""Programs of convert_to_reference: quantized weights in the graph, quint8 tensors, 7-bit activations."""

import copy

import numpy as np
import pytest
import torch
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx, convert_to_reference_fx, prepare_fx

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.frontends.pytorch.exported import from_exported_program

from .networks import NETWORKS, run_torch, seeded

# Of 20 outputs, by one step: a mean falls on a tie, where PyTorch's float sum is not exact
MOST_DIFFERENCES = {("cnn", "qnnpack"): 3}

pytestmark = pytest.mark.filterwarnings("ignore")


def reference_program(network: str, engine: str, convert) -> tuple[torch.export.ExportedProgram, torch.Tensor]:
    make, data = NETWORKS[network]
    example = (data(1)[0],)
    prepared = prepare_fx(copy.deepcopy(seeded(make)), get_default_qconfig_mapping(engine), example)
    with torch.no_grad():
        for x in data(3):
            prepared(x)
    return torch.export.export(convert(prepared), example), data(1, seed=99)[0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "network,engine,convert",
    [
        ("cnn", "x86", _convert_to_reference_decomposed_fx),
        ("encoder", "x86", _convert_to_reference_decomposed_fx),
        ("cnn", "qnnpack", _convert_to_reference_decomposed_fx),
        ("cnn", "qnnpack", convert_to_reference_fx),
        ("encoder", "qnnpack", convert_to_reference_fx),
    ],
)
def test_reference_program(network, engine, convert):
    program, x = reference_program(network, engine, convert)
    module = from_exported_program(program)
    golden, oracle = run_torch(program, x)[0], Interpreter(module)(x.numpy())
    step = np.diff(np.unique(golden)).min()  # the outputs are dequantized integers
    assert np.abs(oracle - golden).max() <= 1.001 * step
    assert (oracle != golden).sum() <= MOST_DIFFERENCES.get((network, engine), 0)
    np.testing.assert_array_equal(qnn_ext.build(module)(x.numpy()), oracle)
    assert not [note for note in module.notes if "conv" in note.operator]


def test_seven_bits():
    """reduce_range: quantize with quant_max 127 to uint8 must clip at 127."""
    program, _ = reference_program("cnn", "x86", _convert_to_reference_decomposed_fx)
    limits = {node.args[3:5] for node in program.graph.nodes if "quantize_per_tensor" in str(node.target)}
    assert (0, 127) in limits
    assert "R.clip" in from_exported_program(program).script() or "127" in from_exported_program(program).script()
