"""Symbolic dimensions of a program are fixed by shapes or example inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from qnn_ext import Interpreter
from qnn_ext.errors import ShapeError
from qnn_ext.frontends.pytorch.exported import from_exported_program

from .networks import Cnn, images, pt2e, run_torch, seeded, x86_quantizer

BATCH = torch.export.Dim("batch", min=1, max=64)


class Tokens(nn.Module):
    """Uses its own input's size: reshape, arange, expand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        positions = torch.arange(tokens).reshape(1, tokens, 1).expand(batch, -1, width)
        return (x + positions).reshape(batch * tokens, width // 2, 2).sum(-1)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    dims = {0: BATCH, 1: torch.export.Dim("tokens", min=2, max=99)}
    return torch.export.export(Tokens(), (torch.zeros(3, 5, 4),), dynamic_shapes=(dims,))


@pytest.mark.parametrize("shape", [(1, 7, 4), (6, 2, 4)])
def test_fixed_by_shapes_or_examples(program, shape):
    x = torch.randn(shape)
    for module in (
        from_exported_program(program, shapes={"x": shape}),
        from_exported_program(program, example_inputs=(x,)),
        from_exported_program(program, example_inputs={"x": x.numpy()}),
    ):
        assert module.inputs[0].shape == shape
        np.testing.assert_array_equal(Interpreter(module)(x.numpy()), run_torch(program, x)[0])


def test_errors(program):
    with pytest.raises(ShapeError, match=r"symbolic shape.*shapes=\{'x'"):
        from_exported_program(program)
    for shape in ((1, 7, 5), (1, 7), (0, 7, 4), "no", (1, 7.5, 4)):
        with pytest.raises(ShapeError, match="x"):
            from_exported_program(program, shapes={"x": shape})
    with pytest.raises(ShapeError, match="inputs of model"):
        from_exported_program(program, shapes={"x": (1, 7, 4), "y": (1,)})


class Resizes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        resize = nn.functional.interpolate
        small = x[:, :, ::2, ::2]
        sizes = [resize(small, x.shape[2:], None, mode) for mode in ("nearest", "bilinear", "bicubic")]
        return (
            *sizes,
            resize(x, None, 1.7),
            resize(x, None, 0.6, "bilinear"),
            resize(x, (9, x.shape[3]), antialias=True, mode="bilinear"),
        )


@pytest.mark.parametrize("shape", [(1, 2, 8, 12), (1, 2, 11, 9)])
def test_images_resized_to_symbolic_sizes(rng, shape):
    """Not to those of the example that the program was exported with."""
    dims = {axis: torch.export.Dim(name, min=4, max=64) for axis, name in ((2, "height"), (3, "width"))}
    program = torch.export.export(Resizes(), (torch.zeros(1, 2, 8, 12),), dynamic_shapes=(dims,))
    x = torch.from_numpy(rng.normal(0, 1, shape).astype(np.float32))
    found = Interpreter(from_exported_program(program, shapes={"x": shape})).run([x.numpy()]).values()
    for one, wanted in zip(found, run_torch(program, x), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)


def test_a_dimension_that_was_not_left_open():
    """PyTorch writes its size as a symbol, too, where the model allows one size only."""

    class Fixes(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 5, 2) + x

    open_dims = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(Fixes(), (torch.zeros(3, 5, 2),), dynamic_shapes=(open_dims,))
    assert from_exported_program(program, shapes={"x": (2, 5, 2)}).inputs[0].shape == (2, 5, 2)
    with pytest.raises(ShapeError, match="only symbolic dimensions are free"):
        from_exported_program(program, shapes={"x": (2, 10, 2)})


def test_batch_of_a_quantized_network():
    shapes = ({0: BATCH},)
    program = pt2e(seeded(Cnn), images(2), x86_quantizer(), dynamic_shapes=shapes)
    x = images(1, seed=99, batch=5)[0]
    module = from_exported_program(program, shapes={"x": tuple(x.shape)})
    assert "R.qnn.conv2d" in module.script()
    golden = run_torch(program, x)[0]
    assert np.abs(Interpreter(module)(x.numpy()) - golden).max() <= 0.05 * np.abs(golden).max()
