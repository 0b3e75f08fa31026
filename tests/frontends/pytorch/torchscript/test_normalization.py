"""Normalization of quantized tensors against PyTorch, exactly; softmax within one step."""

import numpy as np
import pytest
import torch

from qnn_ext.errors import UnsupportedOperatorError

from .oracle import Wrapped, check, quantized, run

ops = torch.ops.quantized


class Parameters(torch.nn.Module):
    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return self.function(x, **dict(self.named_buffers()))


def vector(rng, size, low, high):
    return torch.from_numpy(rng.uniform(low, high, size).astype(np.float32))


@pytest.mark.parametrize("size", [17, 64, 100, 768])
def test_layer_norm(rng, engine, size):
    module = Parameters(
        lambda x, gamma, beta: ops.layer_norm(x, [size], gamma, beta, 1e-5, 0.031, 117),
        gamma=vector(rng, size, 0.5, 1.5),
        beta=vector(rng, size, -0.3, 0.3),
    )
    check(module, quantized(rng, (3, 20, size), 0.043, 120), engine=engine)


def test_layer_norm_of_two_dimensions(rng, engine):
    x = quantized(rng, (3, 5, 4, 6), 0.043, 120)
    check(lambda x: ops.layer_norm(x, [4, 6], None, None, 1e-5, 0.031, 117), x, engine=engine)


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_group_norm(rng, engine, groups):
    module = Parameters(
        lambda x, gamma, beta: ops.group_norm(x, groups, gamma, beta, 1e-5, 0.031, 117),
        gamma=vector(rng, 16, 0.5, 1.5),
        beta=vector(rng, 16, -0.3, 0.3),
    )
    check(module, quantized(rng, (2, 16, 7, 9), 0.043, 120), engine=engine)


def test_instance_norm(rng, engine):
    module = Parameters(
        lambda x, gamma, beta: ops.instance_norm(x, gamma, beta, 1e-5, 0.031, 117),
        gamma=vector(rng, 16, 0.5, 1.5),
        beta=vector(rng, 16, -0.3, 0.3),
    )
    check(module, quantized(rng, (2, 16, 7, 9), 0.043, 120), engine=engine)


@pytest.mark.parametrize("name", ["batch_norm2d", "batch_norm2d_relu", "batch_norm3d", "batch_norm1d"])
@pytest.mark.parametrize("channels", [5, 64])
def test_batch_norm(rng, engine, name, channels):
    function = getattr(ops, name)
    module = Parameters(
        lambda x, gamma, beta, mean, var: function(x, gamma, beta, mean, var, 1e-5, 0.021, 60),
        gamma=vector(rng, channels, 0.5, 1.5),
        beta=vector(rng, channels, -0.3, 0.3),
        mean=vector(rng, channels, -1, 1),
        var=vector(rng, channels, 0.5, 2),
    )
    shape = {"1": (3, channels), "2": (2, channels, 9, 7), "3": (2, channels, 3, 4, 5)}[name[10]]
    check(module, quantized(rng, shape, 0.03, 77), engine=engine)


def test_softmax(rng, engine):
    """QNNPACK has its own kernel with a table of exponentials."""
    x = quantized(rng, (4, 8, 33, 64), 0.05, 120)
    allowed = 3000 if engine == "qnnpack" else 3
    check(lambda x: ops.softmax(x, -1, 1 / 256, 0), x, engine=engine, off_by_one=allowed)
    check(lambda x: ops.softmax(x, 1, 1 / 256, 0), x, engine=engine, off_by_one=3)


def test_compiled(rng, engine):
    norm = Parameters(
        lambda x, gamma: ops.layer_norm(x, [24], gamma, None, 1e-5, 0.031, 117), gamma=vector(rng, 24, 0.5, 1.5)
    )
    module = Wrapped(lambda x: ops.add(norm(x), x, 0.05, 120), norm=norm)
    check(module, quantized(rng, (16, 8, 24), 0.043, 120), engine=engine, compiled=True)


ORDERS = (2, 1, 0, 3, -1, 0.5, float("inf"), -float("inf"))
NORMS = {
    **{f"vector {order}": lambda x, p=order: torch.linalg.vector_norm(x, p, (1, 2), True) for order in ORDERS},
    **{f"vector {order} of all": lambda x, p=order: torch.linalg.vector_norm(x, p) for order in ORDERS},
    "one axis": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "dtype": lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float64),
    "normalize": lambda x: torch.nn.functional.normalize(x, dim=1),
    "norm": lambda x: x.norm(3, dim=(1, 2)),
    "old norm": lambda x: torch._VF.norm(x, 3, (0, 1), True),
    "old norm of all": lambda x: torch._VF.norm(x, 1),
    "frobenius": lambda x: torch._VF.frobenius_norm(x, (0, 2), False),
    "linalg": lambda x: torch.linalg.norm(x, dim=(1, 2)),
    "linalg of a vector": lambda x: torch.linalg.norm(x.reshape(-1), 1),
    "linalg fro": lambda x: torch.linalg.norm(x, "fro", dim=(0, 2)),
    "linalg 1": lambda x: torch.linalg.norm(x, 1, dim=-1),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(rng, name):
    x = torch.from_numpy(rng.normal(0, 2, (3, 4, 5)).astype(np.float32))
    x[0, 0, :3] = 0
    result, expected = run(NORMS[name], x)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_norm_of_matrices(rng):
    x = torch.from_numpy(rng.normal(size=(4, 5)).astype(np.float32))
    with pytest.raises(UnsupportedOperatorError, match=r"the matrix norm of order 1; norms of vectors are supported"):
        run(lambda x: torch.linalg.norm(x, 1), x)
