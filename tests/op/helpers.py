"""What every operator test needs: run a call on constants through its NumPy reference, typed by its type rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from qnn_ext.op.base import call_attributes, constant_value, definition_of


def evaluate(call: relax.Call) -> np.ndarray:
    """The reference's result, whose shape and dtype must be what the type rule says."""
    definition = definition_of(call)
    assert definition is not None
    attributes = call_attributes(call)
    ty = definition.infer_type(call.args, attributes)
    result = definition.reference(*[constant_value(arg) for arg in call.args], **attributes)
    assert result.dtype == str(ty.dtype)
    assert result.shape == tuple(int(dim) for dim in ty.shape)
    return result


def random_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Uniform over the whole dtype."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=np.int64, endpoint=True).astype(dtype)


def var(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """A Relax variable of that type."""
    return relax.Var(name, relax.TensorType(shape, dtype))
