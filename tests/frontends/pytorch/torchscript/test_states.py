"""Models that change their own attributes: tensors among them are states."""

import copy

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch

pytestmark = pytest.mark.filterwarnings("ignore")


class Assigns(torch.nn.Module):
    """A recurrent cell; what it assigns before it reads it is no state."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 4)
        self.register_buffer("hidden", torch.full((2, 4), 0.25))
        self.register_buffer("scratch", torch.zeros(1))
        self.calls = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scratch = x * 2
        self.calls = 1
        for _ in range(2):
            self.hidden = self.cell(self.scratch + x, self.hidden)
        return self.hidden * 2


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window.copy_(torch.roll(self.window, -1, 0))
        self.window[-1].copy_(x[0])
        return self.window.mean(0)


class InPlace(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.register_buffer("total", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor):
        self.total.add_(x.sum(0))
        self.count.add_(1)
        return self.inner(x) + self.total, self.count


class ReadInABranch(torch.nn.Module):
    """First read where values decide whether it is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last + x if bool(x.sum() > 0) else x * 2
        self.last = y
        return y


@pytest.mark.parametrize("convert", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(2, 3))])
@pytest.mark.parametrize("network, names", [
    (Assigns, ["hidden"]), (InPlace, ["total", "count", "inner.window"]), (ReadInABranch, ["last"]),
])  # fmt: skip
def test_states(rng, network, names, convert):
    torch.manual_seed(2)
    model = network().eval().requires_grad_(False)
    if network is not InPlace and convert is not torch.jit.script:
        pytest.skip("traces assign no attributes, and have no branches")
    converted = convert(copy.deepcopy(model))
    before = {name: np.array(value) for name, value in converted.named_buffers()}
    module = from_pytorch(converted, shapes=[(2, 3)])
    assert sorted(state.name for state in module.states) == sorted(names)
    for name, value in converted.named_buffers():
        np.testing.assert_array_equal(value, before[name], "the import leaves the model as it was")
    runners = [qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)]
    for _ in range(3):
        x = rng.normal(0, 1, (2, 3)).astype(np.float32)
        expected = converted(torch.from_numpy(x))
        for runner in runners:
            found = list(runner.run({"x": x}).values())
            for one, other in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
                np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x * self.calls


class Grows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x])
        return self.past.sum(0)


class Starts(torch.nn.Module):
    """The first call makes the state, as streaming networks do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("past", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.past.numel() == 0:
            self.past = torch.zeros_like(x)
        self.past = self.past * 0.5 + x
        return self.past


class Lists(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.past: list[torch.Tensor] = [torch.zeros(2, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.past[0] + x
        self.past = [x]
        return y


class Decides(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            self.last = x
        return self.last * 2


REFUSED = {
    Counts: r"attribute 'calls' of the model from 0 to another value.*run the model once",
    Grows: r"attribute 'past' of the model from float32 \(0, 3\) to float32 \(2, 3\)",
    Starts: r"attribute 'past' of the model from float32 \(0,\) to float32 \(2, 3\).*run the model once",
    Lists: r"attribute 'past', a list; only a tensor can be a state",
    Decides: r"prim::SetAttr.*changes a tensor or list within a branch",
}


@pytest.mark.parametrize("network", REFUSED, ids=lambda one: one.__name__)
def test_refused(network):
    with pytest.raises(UnsupportedOperatorError, match=REFUSED[network]):
        from_pytorch(torch.jit.script(network().eval()), shapes=[(2, 3)])


def test_a_state_that_the_first_call_makes():
    model = torch.jit.script(Starts().eval())
    model(torch.ones(2, 3))
    engine = qnn_ext.build(from_pytorch(model, shapes=[(2, 3)]))
    for value in (1, 3):
        x = np.full((2, 3), value, np.float32)
        np.testing.assert_array_equal(engine(x), model(torch.from_numpy(x)).numpy())


def test_training_mode_is_named():
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), torch.nn.BatchNorm2d(2)))
    with pytest.raises(UnsupportedOperatorError, match=r"model\.eval\(\)"):
        from_pytorch(model, shapes=[(1, 3, 4, 4)])
