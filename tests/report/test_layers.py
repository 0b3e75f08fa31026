"""The figures of a page: rates, bounds, estimates, names."""

from __future__ import annotations

import pytest

from qnn_ext.report.layers import layer_rows, peak_tensors, totals
from qnn_ext.report.machine import Machine, dot_products, measure
from qnn_ext.running.kernels import Kernel
from qnn_ext.running.names import short_names
from qnn_ext.running.timing import LayerProfile
from qnn_ext.topi_int8.x86.amx import TDPBUSD
from tests.cpus import cpu_target
from tests.x86 import emulator as amx

MACHINE = Machine(1, "dot", integer=1000e9, floating=250e9, bytes=1 << 20, bandwidth=10e9)


def _kernel(macs: int, dtype: str, moved: int = 1000, **fields) -> Kernel:
    workload = {"out_dtype": "int32" if "int" in dtype else dtype} if macs else {}
    results = [{"shape": [moved], "dtype": "uint8" if "int" in dtype else "float32"}]
    return Kernel("f", fields.pop("name", "a"), "op", "x", macs, 0, moved, workload, results=results, **fields)


def test_a_row_has_rates_and_what_bounds_it():
    kernels = [_kernel(10**6, "uint8"), _kernel(0, "uint8", 10**6)]
    profile = [LayerProfile(kernel, seconds) for kernel, seconds in zip(kernels, (8e-6, 4e-4), strict=True)]
    product, move = layer_rows(kernels, {}, profile, MACHINE)
    assert product["bound"] == "compute" and product["of_peak"] == pytest.approx(0.25)
    assert product["gops"] == pytest.approx(250)
    assert move["bound"] == "memory" and move["of_bound"] == pytest.approx(0.25) and move["of_peak"] is None


def test_a_slice_that_is_read_in_place_has_no_rates():
    """A megabyte takes 100 µs at 10 GB/s: in 10 µs it was copied within a cache, in 0.1 µs it was not copied."""
    slices = [Kernel("f", "a", "strided_slice", "relax", 0, 0, 10**6) for _ in range(2)]
    profile = [LayerProfile(kernel, seconds) for kernel, seconds in zip(slices, (1e-5, 1e-7), strict=True)]
    copied, in_place = layer_rows(slices, {}, profile, MACHINE)
    assert copied["of_bound"] == pytest.approx(10) and copied["gbps"] == pytest.approx(100)
    assert in_place["of_bound"] is None and in_place["bound"] is None and "gbps" not in in_place


def test_a_function_whose_result_is_quantized_is_float():
    """Of 5000 bytes, the 1000 of the result are integers already: 4000 could be 1000."""
    results = [{"shape": [1000], "dtype": "uint8"}]
    kernel = Kernel("f", "a", "nn.softmax+quantize", "generic", 0, 0, 5000, results=results)
    (row,) = layer_rows([kernel], {}, [LayerProfile(kernel, 1e-5)], MACHINE)
    assert row["kind"] == "float" and row["gain"] == pytest.approx(0.6e-5)
    assert row["why"] == "a float function, whose result is quantized"


def test_what_floats_would_gain():
    """At the rate of the integer products, 100 GOP/s, a product of 2 MOP takes 20 µs; other floats a quarter."""
    kernels = [_kernel(10**6, "uint8"), _kernel(10**6, "float32", name="b"), _kernel(0, "float32", name="c")]
    profile = [LayerProfile(kernel, seconds) for kernel, seconds in zip(kernels, (2e-5, 8e-5, 4e-6), strict=True)]
    rows = layer_rows(kernels, {"b": "no rule"}, profile, MACHINE)
    assert [row.get("gain") for row in rows] == [None, pytest.approx(6e-5), pytest.approx(3e-6)]
    assert [row.get("why") for row in rows] == [None, "no rule", "it is float in the model"]
    total = totals(rows)
    assert total["integer_share"] == 0.5 and total["gain"] == pytest.approx(6.3e-5)
    assert total["float_seconds"] == pytest.approx(8.4e-5)
    only = layer_rows(kernels[1:2], {}, profile[1:2], MACHINE)
    assert only[0]["gain"] == pytest.approx(6e-5), "without integer products, by the ratio of the peaks"


def test_without_times_there_are_no_rates():
    (row,) = layer_rows([_kernel(5, "float32")], {})
    assert row["seconds"] is None and "gops" not in row and "gain" not in row and row["why"]


def test_the_largest_tensors_at_the_peak():
    kernels = [
        _kernel(0, "uint8", 100, live_bytes=100, reads=[-1]),
        _kernel(0, "uint8", 300, name="b", live_bytes=400, reads=[0]),
        _kernel(0, "uint8", 10, name="c", live_bytes=310, reads=[1]),
    ]
    peak, tensors = peak_tensors(kernels)
    assert peak == 1 and [(one["name"], one["bytes"]) for one in tensors] == [("b", 300), ("a", 100)]
    assert peak_tensors([_kernel(0, "uint8")]) == (0, []), "a file from before memory was recorded"


def test_short_names():
    fused = "MobilenetV2_expand_Relu6_MobilenetV2_expand_BatchNorm_Fold_bias"
    other = "MobilenetV2_project_add_MobilenetV2_project_BatchNorm_Fold_bias"
    assert short_names(["input", fused, other]) == {"input": "input", fused: "expand_Relu6", other: "project_add"}
    assert short_names(["conv", "relu", "layers_1"]) == {"conv": "conv", "relu": "relu", "layers_1": "layers_1"}
    same = ["net_a_net_b", "net_a_net_c", "net_d"]
    assert short_names(same) == {"net_a_net_b": "a_net_b", "net_a_net_c": "a_net_c", "net_d": "d"}


def test_the_machine_reaches_something():
    found = measure(1, 1 << 16, repeat=3)
    assert found.bytes >= 1 << 15 and found.bandwidth > 1e8
    assert found.integer is None or found.integer > 1e9
    assert found.floating is None or found.integer is None or found.floating < found.integer
    compute, memory = found.seconds(10**6, 10**6, floats=False)
    assert memory == pytest.approx(10**6 / found.bandwidth)
    assert compute == (2 * 10**6 / found.integer if found.integer else 0)


def test_the_peak_of_matrices_counts_all_products():
    target = cpu_target("amx", 2)
    if not amx.emulates(target):
        pytest.skip("this CPU has AMX, whose instructions are not counted")
    seconds, operations = dot_products.__wrapped__(TDPBUSD, 2)
    before = amx.counts()["tdpbusd"]
    assert seconds(1) > 0
    calls = 2  # the first is to warm up
    assert (amx.counts()["tdpbusd"] - before) * 2 * 16 * 16 * 64 == calls * operations
