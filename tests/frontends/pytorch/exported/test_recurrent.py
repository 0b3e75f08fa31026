"""Float LSTM, GRU and RNN of torch.export programs: they stay whole, and their time is a loop."""

import pytest
import torch

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch.exported import from_exported_program
from tests.frontends.pytorch.recurrent import LAYERS, check, network

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, with_states):
    module, inputs = network(name, with_states)
    imported = from_exported_program(torch.export.export(module, inputs))
    assert "R.qnn.loop" in imported.script()
    check(module, inputs, list(qnn_ext.Interpreter(imported).run([value.numpy() for value in inputs]).values()))


def test_dropout_in_training_mode():
    module, inputs = network("lstm with dropout in eval mode", False)
    with pytest.raises(UnsupportedOperatorError, match=r"dropout|train"):
        from_exported_program(torch.export.export(module.train(), inputs))


def test_a_tensor_returned_twice():
    """Outputs have distinct names."""

    class Twice(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return y, y

    imported = from_exported_program(torch.export.export(Twice(), (torch.ones(2),)))
    assert len({spec.name for spec in imported.outputs}) == 2
    assert len(qnn_ext.Interpreter(imported).run([torch.ones(2).numpy()])) == 2
