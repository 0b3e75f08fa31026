"""Buffers that a program changes are states of the engine: against PyTorch, over several calls."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, UnsupportedOperatorError

torch = pytest.importorskip("torch")


class Cache(torch.nn.Module):
    """Rows written into a buffer by `write(module, rows, positions)`; the sums over all of them."""

    def __init__(self, write) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("rows", torch.arange(48.0).reshape(1, 2, 6, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x, at):
        self.write(self, x, at)
        return self.rows.sum(dim=2), x


def index_copy(m, x, at):
    m.rows.index_copy_(2, at, x)


def index_put(m, x, at):
    m.rows[:, :, at] = x


def one_value(m, x, at):
    m.rows[:, :, at] = x[:, :, :1, :1]


def through_a_view(m, x, at):
    m.rows.view(2, 6, 4).transpose(0, 1)[at] = x[0].transpose(0, 1)


def slice_assignment(m, x, at):
    m.rows[:, :, 1:5:2] = x


def one_row(m, x, at):
    m.rows[:, :, -1] = x[:, :, 0]


def copied(m, x, at):
    m.rows.copy_(torch.cat([m.rows[:, :, 2:], x], dim=2))


def counted(m, x, at):
    m.count.add_(1)
    m.rows.mul_(0.5).add_(m.count)


def added(m, x, at):
    m.rows[0, 0].index_put_((at,), x[0, 0], accumulate=True)


FORMS = [index_copy, index_put, added, one_value, through_a_view, slice_assignment, one_row, copied, counted]


def exported(write, count: int = 2):
    model = Cache(write).eval()
    return model, torch.export.export(model, (torch.ones(1, 2, count, 4), torch.arange(count)))


@pytest.mark.parametrize("write", FORMS)
def test_equals_pytorch(write, rng):
    model, program = exported(write)
    module = qnn_ext.from_pytorch(program)
    engine, oracle = qnn_ext.build(module), qnn_ext.Interpreter(module)
    for places in ((0, 1), (5, 2), (3, 0)):
        x, at = rng.integers(-4, 5, (1, 2, 2, 4)).astype(np.float32), np.array(places)
        expected = [value.numpy() for value in model(torch.from_numpy(x), torch.from_numpy(at))]
        for found in (engine(x, at), oracle(x, at)):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("write, lowest", [(index_copy, 0), (index_put, -6)])
def test_positions_beyond_the_cache(write, lowest):
    _, program = exported(write)
    engine = qnn_ext.build(qnn_ext.from_pytorch(program))
    before = engine.state_values()
    for place in (6, lowest - 1, 2**40):
        with pytest.raises(InputError, match=f"index {place} is out of range {lowest} … 5, for these inputs"):
            engine(np.ones((1, 2, 2, 4), np.float32), np.array([0, place]))
    np.testing.assert_array_equal(engine.state_values(), before)


def test_training_mode_is_refused():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).train()
    program = torch.export.export(model, (torch.zeros(2, 1, 8, 8),))
    for one in (program, program.run_decompositions({})):
        with pytest.raises(UnsupportedOperatorError, match=r"in training mode .* export the model in eval mode"):
            qnn_ext.from_pytorch(one)


def test_torch_compile_does_not_hide_changes():
    """A module goes on seeing its own buffers."""
    compiled = torch.compile(Cache(index_copy), backend="qnn_ext")
    with torch.no_grad(), pytest.raises(Exception, match=r"changes .* in place, which PyTorch would not see"):
        compiled(torch.ones(1, 2, 2, 4), torch.arange(2))


def test_an_input_changed_in_place():
    class Model(torch.nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    program = torch.export.export(Model(), (torch.ones(3),))
    with pytest.raises(UnsupportedOperatorError, match=r"changes its input 'x' in place; .*register_buffer"):
        qnn_ext.from_pytorch(program)


def test_a_saved_program_keeps_the_names_of_its_inputs(tmp_path):
    arguments = torch.ones(1, 2, 2, 4), torch.tensor([1, 3])
    program = torch.export.export(Cache(index_put), arguments)
    torch.export.save(program, tmp_path / "cache.pt2")
    for model in (program, tmp_path / "cache.pt2"):
        assert [spec.name for spec in qnn_ext.from_pytorch(model).inputs] == ["x", "at"]
