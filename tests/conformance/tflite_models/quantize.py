"""QUANTIZE (from float and between integer types), DEQUANTIZE, FAKE_QUANT and CAST."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .builder import Graph, Q, Spec, activation, rng_for

QUANTIZED = ("int8", "uint8", "int16")


def one(
    name: str, operator: str, x: int, graph: Graph, shape: tuple[int, ...], dtype: str, q: Q | None, **options
) -> Spec:
    """A one-operator model around an existing input."""
    graph.op(operator, [x], [graph.output(shape, dtype, q)], **options)
    return Spec(name, graph)


def every_value(graph: Graph, dtype: str, q: Q | None, positive: bool = False) -> tuple[int, tuple[int, ...]]:
    """An input that holds every 8-bit value once, or int16 values over the whole range (`positive`: those above 0)."""
    if dtype == "int16":
        dense = np.concatenate([np.arange(-32768, 32768, 137), np.arange(-130, 130), [32767, 32766, 0]])
        values = dense[dense > 0].astype("int16") if positive else dense.astype("int16")
    else:
        values = np.arange(256).astype("uint8").view(dtype)
    return graph.input((1, len(values)), dtype, q, values=values), (1, len(values))


def rounding_values(scale: float, zero_point: int, low: int, high: int) -> np.ndarray:
    """Floats on and next to the ties between quantized values, beyond both ends, plus signed zeros."""
    steps = np.linspace(low - 5, high + 5, 400).round() - zero_point
    ties = (np.concatenate([steps, steps + 0.5]) * scale).astype(np.float32)
    near = np.concatenate([np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))])
    return np.concatenate([ties, near, np.array([0.0, -0.0, 1e6, -1e6], dtype=np.float32)]).astype(np.float32)


def quantize_specs() -> Iterator[Spec]:
    """QUANTIZE from float; then requantization between every pair of integer types with several parameters."""
    for dtype in QUANTIZED:
        info = np.iinfo(dtype)
        for scale in (0.05, 1 / 255, 0.3713):
            for where in ("low", "odd", "high") if dtype != "int16" else ("odd",):
                q = activation(dtype, scale, where)
                assert q is not None
                values = rounding_values(float(np.float32(q.scale)), q.zero_point, info.min, info.max)
                graph = Graph()
                x = graph.input(values.shape, "float32", values=values)
                name = f"QUANTIZE/float32/to_{dtype}_scale_{scale:.4f}_zero_point_{where}"
                yield one(name, "QUANTIZE", x, graph, values.shape, dtype, q).with_trials(1)
        graph = Graph()
        x = graph.input((2, 3, 4, 5), "float32", low=-9, high=9)
        yield one(f"QUANTIZE/float32/to_{dtype}_rank4", "QUANTIZE", x, graph, (2, 3, 4, 5), dtype, activation(dtype))
    for source in QUANTIZED:
        for target in (*QUANTIZED, "int32"):
            yield from requantize_specs(source, target)


def requantize_specs(source: str, target: str) -> Iterator[Spec]:
    """Every value of `source` to `target`: up, down, the same scale with the zero point moved, and the ends."""
    settings = {
        "down": ((0.05, "odd"), (0.08, "odd")),
        "up": ((0.05, "odd"), (0.021, "mid")),
        "same_scale": ((0.05, "low"), (0.05, "mid")),
        "identical": ((0.05, "odd"), (0.05, "odd")),
        "odd_ratio": ((0.0371, "high"), (0.0517, "high")),
        "low_ends": ((0.0413, "low"), (0.0371, "low")),
        "opposite_ends": ((0.0371, "high"), (0.0517, "low")),
        "half": ((0.05, "mid"), (0.1, "mid")),
    }
    for variant, ((in_scale, in_where), (out_scale, out_where)) in settings.items():
        graph = Graph()
        x, shape = every_value(graph, source, activation(source, in_scale, in_where))
        q = Q(out_scale / 4096) if target == "int32" else activation(target, out_scale, out_where)
        yield one(f"QUANTIZE/{source}/to_{target}_{variant}", "QUANTIZE", x, graph, shape, target, q).with_trials(1)


def dequantize_specs() -> Iterator[Spec]:
    """DEQUANTIZE of every value; float16 widens; per-channel for int8."""
    for dtype in QUANTIZED:
        for where in ("low", "odd", "high") if dtype != "int16" else ("odd",):
            graph = Graph()
            x, shape = every_value(graph, dtype, activation(dtype, 0.0371, where))
            name = f"DEQUANTIZE/{dtype}/zero_point_{where}"
            yield one(name, "DEQUANTIZE", x, graph, shape, "float32", None).with_trials(1)
        graph = Graph()
        x = graph.input((2, 3, 4, 5), dtype, activation(dtype))
        yield one(f"DEQUANTIZE/{dtype}/rank4", "DEQUANTIZE", x, graph, (2, 3, 4, 5), "float32", None)
    graph = Graph()
    x = graph.input((3, 7), "float16")
    yield one("DEQUANTIZE/float16/rank2", "DEQUANTIZE", x, graph, (3, 7), "float32", None)
    graph = Graph()
    x = graph.input((3, 7), "int8", Q([0.1, 0.02, 0.3], 0, 0))
    yield one("DEQUANTIZE/int8/per_channel", "DEQUANTIZE", x, graph, (3, 7), "float32", None)
    yield from dequantized_constant_specs()


def dequantized_constant_specs() -> Iterator[Spec]:
    """A constant through DEQUANTIZE into an ADD, as in float16 and weight-only models."""
    for dtype in ("float16", "int8"):
        name = f"DEQUANTIZE/{dtype}/constant_then_add"
        graph, rng = Graph(), rng_for(name)
        x = graph.input((2, 5), "float32")
        values = rng.integers(-127, 127, (5,))
        weight = graph.const(values / 64 if dtype == "float16" else values, dtype, activation(dtype, where="mid"))
        wide = graph.tensor((5,), "float32")
        graph.op("DEQUANTIZE", [weight], [wide])
        graph.op("ADD", [x, wide], [graph.output((2, 5), "float32")])
        yield Spec(name, graph)


def fake_quant_specs() -> Iterator[Spec]:
    """FAKE_QUANT: 8 and 16 bits, narrow range, ranges that need nudging."""
    ranges = {"unit": (0.0, 1.0), "signed": (-1.0, 1.0), "nudged": (-0.7, 3.1), "relu6": (0.0, 6.0)}
    for bits in (8, 16, 4):
        for narrow in (False, True):
            for variant, (low, high) in ranges.items():
                if narrow and variant != "signed":
                    continue
                graph = Graph()
                x = graph.input((4, 64), "float32", low=low - 0.5, high=high + 0.5, step=1 / 1024)
                name = f"FAKE_QUANT/float32/bits{bits}_{'narrow_' if narrow else ''}{variant}"
                options = {"min": low, "max": high, "numBits": bits, "narrowRange": narrow}
                yield one(name, "FAKE_QUANT", x, graph, (4, 64), "float32", None, **options)


def cast_specs() -> Iterator[Spec]:
    """CAST between every pair of dtypes, with values that both can hold, or that wrap as integers do."""
    from ai_edge_litert.schema_py_generated import TensorType

    dtypes = ("float32", "int32", "int64", "uint8", "int8", "int16", "bool", "float16", "uint32", "float64")
    for source in dtypes:
        for target in dtypes:
            if source == target:
                continue
            limits = {"low": -120, "high": 120} if not source.startswith("u") else {"low": 0, "high": 250}
            if source.startswith("float") and target.startswith("u"):
                limits["low"] = 0
            if target == "bool" and not source.startswith("u"):
                limits = {"low": -1, "high": 1} | ({"step": 1.0} if source.startswith("float") else {})
            if source == "bool":
                limits = {"low": 0, "high": 1}
            if source in ("int32", "int64") and target not in ("float16", "bool"):
                limits = {"low": -70000, "high": 70000}
            graph = Graph()
            x = graph.input((3, 11), source, None, **limits)
            codes = {
                "inDataType": getattr(TensorType, source.upper()),
                "outDataType": getattr(TensorType, target.upper()),
            }
            yield one(f"CAST/{source}/to_{target}", "CAST", x, graph, (3, 11), target, None, **codes)
