"""Tensors whose sizes depend on data, in traced and scripted models: results of any size are PyTorch's."""

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError

from .oracle import Wrapped

pytestmark = pytest.mark.filterwarnings("ignore")


def drawn(rng):
    """Some, all and none above 0."""
    x = np.rint(rng.standard_normal((6, 4)) * 4).astype(np.float32)
    return x, np.abs(x) + 1, -np.abs(x)


def check(script, model, inputs, build=False):
    module = qnn_ext.from_pytorch(script, example_inputs=(torch.from_numpy(inputs[0]),))
    for runner in (qnn_ext.Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])):
        for x in inputs:
            expected = model(torch.from_numpy(x))
            expected = expected if isinstance(expected, tuple) else (expected,)
            for found, wanted in zip(runner.run([x]).values(), expected, strict=True):
                assert (found.shape, found.dtype) == (tuple(wanted.shape), wanted.numpy().dtype)
                np.testing.assert_array_equal(found, wanted.numpy())


def _rows(x):
    rows = x[x[:, 0] > 0]
    return rows, rows.relu() + 1, rows.sum(), torch.cat([rows, rows * 2]), rows.reshape(-1), rows.t()


def _elements(x):
    above = x[x > 0]
    return above, torch.masked_select(x, x > 1), above.cumsum(0), above.unsqueeze(1) * 2


def _coordinates(x):
    found = torch.nonzero(x > 0)
    i, j = torch.where(x > 0)
    return found, found[:, 0], i, x[i, j], x[i], (x > 0).nonzero().squeeze(1).float()


def _sizes(x):
    rows = x[x[:, 0] > 0]
    count = rows.size(0)
    return (
        rows.view(count, 2, 2), rows.view(rows.shape[0] * 2, 2), rows.sum(1, keepdim=True).expand(count, 5),
        torch.zeros(count, 2), torch.arange(rows.shape[0]), rows.new_ones(count + 1), rows * count,
        rows.reshape(rows.numel()),
    )  # fmt: skip


def _in_place(x):
    rows = x[x[:, 0] > 0]
    rows.mul_(2).clamp_(max=5)
    y = x * 1
    y[y > 1] = 0.5
    return rows, y


FUNCTIONS = (_rows, _elements, _coordinates, _sizes, _in_place)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_traced(rng, function):
    inputs = drawn(rng)
    model = Wrapped(function).eval()
    check(torch.jit.trace(model, (torch.from_numpy(inputs[0]),)), model, inputs, build=function is _sizes)


class Scripted(torch.nn.Module):
    def forward(self, x):
        rows = x[x[:, 0] > 0]
        return rows * len(rows), rows.view(rows.shape[0], 2, 2)


def test_scripted(rng):
    check(torch.jit.script(Scripted().eval()), Scripted(), drawn(rng))


class Branch(torch.nn.Module):
    def forward(self, x):
        rows = x[x[:, 0] > 0]
        if rows.shape[0] > 2:
            rows = rows * 2
        return rows


class Stride(torch.nn.Module):
    def forward(self, x):
        rows = x[x[:, 0] > 0].t()
        return rows * rows.stride(0)


@pytest.mark.parametrize("model", [Branch(), Stride()], ids=lambda model: type(model).__name__)
def test_refused(rng, model):
    with pytest.raises(UnsupportedOperatorError, match=r"size known only at run time|prim::If depends on the values"):
        qnn_ext.from_pytorch(torch.jit.script(model.eval()), example_inputs=(torch.from_numpy(drawn(rng)[0]),))
