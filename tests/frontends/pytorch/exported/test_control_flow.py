"""torch.cond, while_loop, map and scan."""

import io

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch

pytestmark = pytest.mark.filterwarnings("ignore")


class Network(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.layer, x)


NETWORKS = {
    "cond": lambda layer, x: torch.cond(
        x.sum() > 0, lambda x: (layer(x), torch.nn.functional.silu(x)), lambda x: (x * 2, torch.addcmul(x, x, x)), (x,)
    ),
    "nested_cond": lambda layer, x: torch.cond(
        x.sum() > 0,
        lambda x: torch.cond(x[0, 0] > 0, lambda x: layer(x), lambda x: x + 1, (x,)),
        lambda x: x - 1,
        (x,),
    ),
    "rounds": lambda layer, x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, layer(x)), (torch.tensor(0), x)),
    "rounds_by_values": lambda layer, x: while_loop(
        lambda i, x: (x.abs().max() < 50) & (i < 20), lambda i, x: (i + 1, layer(x) + x * 2), (torch.tensor(0), x)
    ),
    "map": lambda layer, x: mapped(lambda row, w: row * 2 + w, x, layer.bias),
    "scan": lambda layer, x: scan(lambda total, row: (total + row, torch.tanh(total * row)), x[0], x),
    "backwards": lambda layer, x: scan(lambda total, row: (layer(total) + row, total * 2), x[0], x, reverse=True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_pytorch(rng, name):
    torch.manual_seed(0)
    network = Network(NETWORKS[name]).eval().requires_grad_(False)
    cases = [torch.from_numpy(rng.normal(shift, 1, (3, 8)).astype(np.float32)) for shift in (0, 1, -1)]
    program = torch.export.export(network, (cases[0],))
    saved = io.BytesIO()
    torch.export.save(program, saved)
    module = from_pytorch(program)
    engine = qnn_ext.build(module, num_threads=1)
    for x in cases:
        expected = network(x)
        expected = expected if isinstance(expected, (tuple, list)) else (expected,)
        for results in (qnn_ext.Interpreter(module).run([x.numpy()]), engine.run([x.numpy()])):
            for found, wanted in zip(results.values(), expected, strict=True):
                np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)
    assert qnn_ext.Interpreter(from_pytorch(saved.getvalue())).run([x.numpy()]).keys() == results.keys()
