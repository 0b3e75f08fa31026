"""PyTorch cases: torch.export programs and TorchScript, checked against PyTorch's own answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import qnn_ext

from .case import FLOATS, Case, divisors, with_each

torch = pytest.importorskip("torch")

DATA = np.arange(24, dtype=np.float32).reshape(4, 6)
ROWS = np.array([0, 2, 1], np.int64)


def case(
    name: str,
    function: Callable[..., Any],
    trials: Sequence[Sequence[np.ndarray]],
    script: bool = False,
    ask: bool = True,
) -> Case:
    """script: as TorchScript. ask: whether PyTorch defines the result."""

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    safe = tuple(torch.from_numpy(np.array(array)) for array in trials[0])
    module = Module().eval()

    def build() -> qnn_ext.QnnModule:
        if script:
            return qnn_ext.from_pytorch(torch.jit.trace(module, safe), safe, engine="x86")
        return qnn_ext.from_pytorch(torch.export.export(module, safe))

    def framework(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        result = module(*(torch.from_numpy(np.array(value)) for value in values))
        return [part.numpy() for part in (result if isinstance(result, tuple) else (result,))]

    return Case(f"{'TorchScript' if script else 'PyTorch'} {name}", build, trials, framework if ask else None)


def cases() -> Iterator[Case]:
    rows = [[DATA, ROWS], *([DATA, hostile] for hostile in with_each(ROWS))]
    square = np.resize(ROWS, (4, 6))
    for script in (False, True):
        yield case("index_select", lambda x, i: torch.index_select(x, 0, i), rows, script)
        yield case("embedding", lambda x, i: torch.nn.functional.embedding(i, x), rows, script)
        yield case("to int32", lambda x: x.to(torch.int32), [[FLOATS[3:9]], [FLOATS]], script, ask=False)
        quantized = lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).int_repr()  # noqa: E731
        yield (
            case("quantize_per_tensor", quantized, [[FLOATS[3:9]], [FLOATS]], script=True, ask=False)
            if script
            else case("clamp", lambda x: torch.clamp(x, -1, 6), [[FLOATS]])
        )
    gathered = [[DATA, square], *([DATA, hostile] for hostile in with_each(square))]
    for script in (False, True):
        yield case("gather", lambda x, i: torch.gather(x, 0, i), gathered, script)
    yield case("index", lambda x, i: x[i], rows)
    yield case(
        "index of two axes", lambda x, i, j: x[i, j], [[DATA, ROWS, ROWS], *([DATA, h, ROWS] for h in with_each(ROWS))]
    )
    flat = np.arange(4, dtype=np.float32)
    yield case("take", torch.take, [[flat, ROWS], *([flat, hostile] for hostile in with_each(ROWS))])
    updates = np.ones((4, 6), np.float32)
    scattered = [[DATA, square, updates], *([DATA, hostile, updates] for hostile in with_each(square))]
    yield case("scatter", lambda x, i, u: torch.scatter(x, 0, i, u), scattered)
    for reduce in ("mean", "amax"):
        put = lambda x, i, u, reduce=reduce: x.scatter_reduce(0, i, u, reduce)  # noqa: E731
        yield case("scatter_reduce", put, scattered)
    counted = lambda i: torch.bincount(i, minlength=len(DATA))  # noqa: E731
    yield case("bincount", counted, [[ROWS], *([hostile] for hostile in with_each(ROWS))], ask=False)
    for name, write in (
        ("index_copy", lambda x, i, u: x.index_copy(0, i, u)),
        ("index_put", lambda x, i, u: x.index_put((i,), u)),
    ):
        new = np.ones((len(ROWS), 6), np.float32)
        yield case(name, write, [[DATA, ROWS, new], *([DATA, hostile, new] for hostile in with_each(ROWS))])
    ones = np.ones(len(ROWS), np.float32)
    elements = [[DATA, ROWS, ROWS, ones], *([DATA, hostile, ROWS, ones] for hostile in with_each(ROWS))]
    for script in (False, True):
        yield case("index_put of two axes", lambda x, i, j, u: x.index_put((i, j), u), elements, script)
    for dtype in ("int32", "int64"):
        trials = [(a, b) for a, b in divisors(dtype) if not (a[0] == np.iinfo(dtype).min and (b == -1).any())]
        for name, function in (
            ("floor_divide", torch.floor_divide),
            ("remainder", torch.remainder),
            ("div", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ):
            yield case(f"{name} {dtype}", function, trials)
        numbers, counts = (np.asarray(values, dtype) for values in ([-9, -1, 5, 77], [0, 3, 31, 7]))
        outside = np.asarray([-1, 64, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
        for name in ("bitwise_left_shift", "bitwise_right_shift"):
            yield case(f"{name} {dtype}", getattr(torch, name), [[numbers, counts], [numbers, outside]])
    for name in ("relu", "tanh", "sigmoid", "erf", "exp"):
        yield case(name, getattr(torch, name), [[FLOATS]], ask=False)
    for name in ("maximum", "minimum"):
        yield case(name, getattr(torch, name), [[FLOATS, FLOATS[::-1].copy()]])
    for name in ("amax", "amin"):
        yield case(name, lambda x, name=name: getattr(torch, name)(x, 1), [[np.resize(FLOATS, (3, 19))]])
    late = np.where(np.isnan(FLOATS), np.inf, FLOATS)
    late[[7, 11]] = np.nan
    rows = np.stack([np.resize(FLOATS, 19), late, np.full(19, -np.inf, np.float32)])
    for name, script in ((name, script) for name in ("argmax", "argmin") for script in (False, True)):
        yield case(
            name, lambda x, name=name: getattr(torch, name)(x, 1), [[np.resize(FLOATS, (3, 19))], [rows]], script
        )
