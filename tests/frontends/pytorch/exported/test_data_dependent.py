"""Tensors whose sizes depend on data: masks, nonzero, and what follows them, as PyTorch computes it."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import UnsupportedOperatorError

torch = pytest.importorskip("torch")


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4, 3)
        with torch.no_grad():  # sums of such weights are exact
            self.linear.weight.copy_(torch.round(self.linear.weight * 8))
            self.linear.bias.zero_()

    def forward(self, *inputs):
        return self.function(self, *inputs)


def check(function, *trials, build=False):
    model = Function(function).eval()
    program = torch.export.export(model, tuple(map(torch.from_numpy, trials[0])))
    module = qnn_ext.from_pytorch(program)
    for runner in (qnn_ext.Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])):
        for trial in trials:
            expected = model(*map(torch.from_numpy, trial))
            expected = expected if isinstance(expected, tuple) else (expected,)
            for found, wanted in zip(runner.run(list(trial)).values(), expected, strict=True):
                array = wanted.detach().numpy()
                assert (found.shape, found.dtype) == (array.shape, array.dtype)
                np.testing.assert_array_equal(found, array)


def drawn(rng, *shape):
    """Some, all and none above 0."""
    x = np.rint(rng.standard_normal(shape) * 4).astype(np.float32)
    return [(x,), (np.abs(x) + 1,), (-np.abs(x),)]


def _rows(model, x):
    mask = x[:, 0] > 0
    rows = x[mask]
    return model.linear(rows), rows.relu() + 1, rows.sum(), torch.cat([rows, rows * 2]), rows.reshape(-1), mask


def _elements(model, x):
    above = x[x > 0]
    return (
        above,
        torch.masked_select(x, x > 1),
        above.cumsum(0),
        above.unsqueeze(1) * 2,
        torch.softmax(above, 0).round(),
    )


def _coordinates(model, x):
    i, j = torch.where(x > 0)
    return torch.nonzero(x > 0), i, j, x[i, j], x[i], (x > 0).nonzero(as_tuple=True)[1], x[:, j]


def _shapes(model, x):
    rows = x[x[:, 0] > 0]
    n = rows.shape[0]
    return (
        torch.arange(n), torch.zeros(n, 2), rows.new_full((n,), 3), rows * n, torch.ones_like(rows),
        rows.view(n, 2, 2), rows.sum(1, keepdim=True).expand(n, 5), torch.full((n + 1, 2), 7.0),
    )  # fmt: skip


def _parts(model, x):
    rows = x[x[:, 0] > 0]
    return rows[-2:], rows[1:], rows[:2], rows[:, 1:3], rows[:-1], rows[::2], rows.transpose(0, 1), rows[:, 2]


def _columns(model, x):
    return x[:, x[0] > 0], x.index_select(0, torch.nonzero(x[:, 0] > 0).squeeze(1)), x[x[:, 0] > 0][:, x[0] > 0]


@pytest.mark.parametrize("function", [_rows, _elements, _coordinates, _shapes, _parts, _columns])
def test_function(function, rng):
    check(function, *drawn(rng, 6, 4), build=function is _rows)


def test_statistics_of_what_is_selected(rng):
    def function(model, x):
        above = x[x > 0]
        return above.max(), above.amin(), above.mean(), above.argmax(), above.sort()[0], above.sort(descending=True)[1]

    check(function, *[(rng.permutation(16).astype(np.float32).reshape(4, 4) - low,) for low in (8, -1)])


def test_best_of_what_is_selected(rng):
    def function(model, x):
        above = x[x > 0]
        values, order = above.topk(3)
        return values, order

    check(function, *[(rng.permutation(12).astype(np.float32) - low,) for low in (6, 1)])


def test_mask_from_outside(rng):
    def function(model, x, mask):
        return x[mask], x[mask.any(1)]

    x = rng.standard_normal((5, 4)).astype(np.float32)
    check(function, *[(x, rng.random((5, 4)) < share) for share in (0.3, 1, 0)])


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda model, x: x[x > 0].flip(0), "at most 24, which comes from node 'index.*flip is not supported"),
        (lambda model, x: x[x > 0].view(2, -1), r"a reshape from \(≤24\) to \(2, 12\)"),
    ],
)
def test_refusal(function, message, rng):
    program = torch.export.export(Function(function), (torch.ones(6, 4),))
    with pytest.raises(UnsupportedOperatorError, match=message):
        qnn_ext.from_pytorch(program)
