"""Packed integers: known bytes, and every value of every dtype back again, in NumPy and in TIR."""

import numpy as np
import pytest
from tvm import tirx
from tvm.sym import Analyzer

from qnn_ext.numerics.packed import WIDTHS, narrow_range, pack, packed_bytes, unpack, unpacked


def test_known_bytes():
    assert pack(np.array([[1, -2, 7]]), "int4").tolist() == [[0xE1, 0x07]]
    assert pack(np.array([[3, 0, 1, 2, 3]]), "uint2").tolist() == [[0b10_01_00_11, 0b11]]
    assert unpack(np.uint8([[0x8F]]), "int4", 2).tolist() == [[-1, -8]]


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("count", [1, 3, 8, 13])
def test_there_and_back(count, dtype):
    low, high = narrow_range(dtype)
    values = np.resize(np.arange(low, high + 1), (high - low + 1, count))
    packed = pack(values, dtype)
    assert packed.dtype == np.uint8 and packed.shape[1] == packed_bytes(count, dtype)
    found = unpack(packed, dtype, count)
    assert found.dtype == ("uint8" if dtype.startswith("u") else "int8")
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_expression(dtype):
    each, analyzer = 8 // WIDTHS[dtype], Analyzer()
    for byte in (0, 1, 0x5A, 0x80, 0xE7, 255):
        for position in range(each):
            value = unpacked(tirx.const(byte, "uint8"), tirx.const(position, "int32"), dtype)
            assert int(analyzer.simplify(value)) == unpack(np.uint8([byte]), dtype, each)[position]
