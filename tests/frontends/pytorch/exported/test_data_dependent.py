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


@pytest.fixture(scope="module")
def nms():
    """torchvision's operator, or one of its name where torchvision is not installed: its formula."""
    try:
        import torchvision
    except (ImportError, RuntimeError):  # RuntimeError: one for another PyTorch
        with torch.library._scoped_library("torchvision", "FRAGMENT") as library:
            library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            library.impl("nms", _suppressed, "CPU")
            torch.library.register_fake("torchvision::nms", _unknown, lib=library)
            yield torch.ops.torchvision.nms
    else:
        yield torchvision.ops.nms


def _unknown(boxes, scores, threshold):
    return boxes.new_empty([torch.library.get_ctx().new_dynamic_size()], dtype=torch.int64)


def _suppressed(boxes, scores, threshold):
    left, kept = scores.sort(stable=True, descending=True)[1].tolist(), []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while left:
        best = left.pop(0)
        kept.append(best)
        sides = torch.minimum(boxes[best, 2:], boxes[:, 2:]) - torch.maximum(boxes[best, :2], boxes[:, :2])
        shared = sides.clamp(min=0).prod(1)
        overlap = shared / (areas[best] + areas - shared)
        left = [index for index in left if not overlap[index] > threshold]
    return torch.tensor(kept, dtype=torch.int64)


def test_detector(nms, rng):
    """What torchvision's detectors and ultralytics' exports do behind their products."""

    def function(model, boxes, scores):
        keep = torch.where(scores > 0.25)[0]
        found, points = boxes[keep], scores[keep]
        best = nms(found, points, 0.4)[:5]
        found, points = found[best], points[best]
        rows = torch.cat([found, points[:, None]], 1)
        return found, points, rows, torch.nn.functional.pad(rows, (0, 0, 0, 5 - rows.shape[0]))

    corners = rng.random((20, 2))
    boxes = np.concatenate([corners, corners + rng.random((20, 2)) * 0.5], 1).astype(np.float32)
    scores = (rng.integers(0, 12, 20) / 12).astype(np.float32)
    trials = [(boxes, scores), (boxes[::-1].copy(), scores / 2), (boxes, np.zeros_like(scores))]
    check(function, *trials, build=True)


def _within(number, low, high):
    value = number.item()
    torch._check(value >= low)
    torch._check(value <= high)
    return value


PARTS = {
    "up to a number": lambda model, x, n: (x[:, : (k := _within(n, 0, 6))] * 2, x[:, :k].sum(1)),
    "from a number on": lambda model, x, n: x[_within(n, 0, 6) :, 1:],
    "a bounded number": lambda model, x, n: x.narrow(1, 1, _within(n.clamp(0, 3), 0, 3)).relu(),
    "a window": lambda model, x, n: (x[(k := _within(n, 0, 6)) : k + 2] + 1, x.narrow(0, k, 1)),
}


@pytest.mark.parametrize("name", PARTS)
def test_slices_with_bounds_computed_at_run_time(name, rng):
    x = rng.integers(-9, 9, (8, 7)).astype(np.float32)
    check(PARTS[name], *((x, np.array(number)) for number in (3, 0, 6, 1)), build=True)


def _filled(model, x, n):
    k = _within(n, 0, 6)
    return (
        torch.zeros(k, 2), torch.full((k + 1,), 7.0), x.new_ones((2, k)), x[:k] * torch.ones(k, 7), x[:, :k].sum(1),
        torch.cat([x[0, :k], torch.zeros(k)]), torch.zeros(2 * k), torch.zeros(k // 2, 1), x[0, 0].expand(k, 3) * k,
    )  # fmt: skip


def _counted(model, x, n):
    k = _within(n, 0, 6)
    return torch.arange(k), x[torch.arange(k)] + 1, (x[:k] > torch.arange(k).unsqueeze(1)).int()


@pytest.mark.parametrize("function", [_filled, _counted])
def test_sizes_computed_at_run_time(function, rng):
    x = rng.integers(-9, 9, (8, 7)).astype(np.float32)
    check(function, *((x, np.array(number)) for number in (3, 0, 6, 1)), build=True)


def test_sizes_beyond_their_declared_range():
    model = Function(lambda _, n: torch.zeros(_within(n, 2, 6)) + 1).eval()
    module = qnn_ext.from_pytorch(torch.export.export(model, (torch.tensor(3),)))
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for number in (1, 7, -1):
            with pytest.raises(qnn_ext.InputError, match="zeros"):
                runner(np.array(number))


def test_sizes_that_nothing_limits_are_refused():
    model = Function(lambda _, n: torch.zeros(n.item())).eval()
    program = torch.export.export(model, (torch.tensor(3),))
    with pytest.raises(UnsupportedOperatorError, match=r"aten.zeros.*no largest value: add torch._check"):
        qnn_ext.from_pytorch(program)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_distinct_elements(rng, dtype):
    def unique(_, x):
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        return values * 2, inverse, counts

    x = rng.integers(-3, 4, (5, 6)).astype(dtype)
    check(unique, (x,), (np.zeros_like(x),), build=True)
    check(lambda _, x: torch.unique(x > 0).int(), (x,), (np.ones_like(x),))
