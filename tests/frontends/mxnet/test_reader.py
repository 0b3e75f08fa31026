"""`.params` and `-symbol.json` readers: what they understand, and what they report about damaged files."""

import json
import struct

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.mxnet.reader import BFLOAT16, V1, V2, V3, read_params
from qnn_ext.frontends.mxnet.symbol import read_symbol

from .goldens import load

CODES = {np.dtype(kind): code for code, kind in enumerate(["f4", "f8", "f2", "u1", "i4", "i1", "i8", "?"])}


def params_bytes(arrays, magic=V2, storage=0, names=None):
    """A .params file as MXNet writes it."""
    parts = [struct.pack("<QQQ", 0x112, 0, len(arrays))]
    for array in arrays.values():
        parts.append(struct.pack("<I", magic if magic in (V1, V2, V3) else array.ndim))
        if magic in (V2, V3):
            parts.append(struct.pack("<i", storage))
        if magic in (V1, V2, V3):
            parts.append(struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape))
        else:
            parts.append(struct.pack(f"<{array.ndim}I", *array.shape))
        parts.append(struct.pack("<iii", 1, 0, CODES[array.dtype]))
        parts.append(array.tobytes())
    names = list(arrays) if names is None else names
    parts.append(struct.pack("<Q", len(names)))
    parts += [struct.pack("<Q", len(name.encode())) + name.encode() for name in names]
    return b"".join(parts)


@pytest.mark.parametrize("magic", [V1, V2, V3, "legacy"])
def test_every_version_and_dtype(magic, rng):
    arrays = {f"arg:{dtype}": rng.integers(0, 2, (2, 3)).astype(dtype) for dtype in CODES}
    read = read_params(params_bytes(arrays, magic))
    assert list(read) == [name.removeprefix("arg:") for name in arrays]
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name.removeprefix("arg:")], array)
        assert read[name.removeprefix("arg:")].dtype == array.dtype


def test_scalars_and_absent_arrays():
    scalar = {"s": np.array(3.5, np.float32)}
    assert read_params(params_bytes(scalar, V3))["s"].shape == ()
    absent = struct.pack("<QQQIiiQQ", 0x112, 0, 1, V3, 0, -1, 1, 1) + b"x"
    assert read_params(absent) == {}


def test_bfloat16():
    data = struct.pack("<QQQIii", 0x112, 0, 1, V2, 0, 1) + struct.pack("<qiiiH", 1, 1, 0, BFLOAT16, 0x3FC0)
    data += struct.pack("<QQ", 1, 1) + b"x"
    np.testing.assert_array_equal(read_params(data)["x"], np.array([1.5], np.float32))


def test_a_dict_and_a_path(tmp_path):
    arrays = {"aux:mean": np.arange(3, dtype=np.float32)}
    path = tmp_path / "p.params"
    path.write_bytes(params_bytes(arrays))
    np.testing.assert_array_equal(read_params(path)["mean"], read_params(arrays)["mean"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin"),
        (b"PK\x03\x04" + bytes(40), "does not begin"),
        (struct.pack("<QQQ", 0x112, 0, 1 << 60), "declares"),
        (params_bytes({"a": np.ones(3, np.float32)}, names=[]), "1 arrays but 0 names"),
        (params_bytes({"arg:a": np.ones(3, np.float32), "aux:a": np.ones(3, np.float32)}), "two parameters"),
        (params_bytes({"a": np.ones(3, np.float32)}) + b"x", "follow the end"),
        (struct.pack("<QQQIii", 0x112, 0, 1, V2, 0, 33) + bytes(400), "33 dimensions"),
        (struct.pack("<QQQIiiq", 0x112, 0, 1, V2, 0, 1, -4) + bytes(40), "the shape"),
        (struct.pack("<QQQIiiqqiii", 0x112, 0, 1, V2, 0, 2, 1 << 40, 1 << 40, 1, 0, 0) + bytes(40), "elements"),
        (struct.pack("<QQQIiiqqiii", 0x112, 0, 1, V2, 0, 2, 1 << 10, 1 << 10, 1, 0, 0) + bytes(40), "truncated"),
        (struct.pack("<QQQIiiqiii", 0x112, 0, 1, V2, 0, 1, 1, 1, 0, 99) + bytes(40), "unknown dtype 99"),
    ],
)
def test_damaged_params(data, message):
    with pytest.raises(ModelFormatError, match=message):
        read_params(data)


def test_sparse_arrays_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="sparse"):
        read_params(params_bytes({"a": np.ones(3, np.float32)}, storage=1))


def test_missing_files(tmp_path):
    with pytest.raises(ModelFormatError, match="no such file"):
        read_params(tmp_path / "none.params")
    with pytest.raises(ModelFormatError, match="no such file"):
        read_symbol(tmp_path / "none.json")


def test_every_truncation_is_noticed():
    data = load("fused")["conv_bn/auto"].params
    for size in range(0, len(data), 7):
        with pytest.raises(ModelFormatError):
            read_params(data[:size])


def test_overwritten_words(rng):
    """Any damage gives arrays or one of our errors."""
    good = load("fused")["conv_bn/auto"].params
    for _ in range(3000):
        data = bytearray(good)
        at = int(rng.integers(len(data) - 8))
        word = int(rng.choice([0, 1, 2, 255, 0xFFFFFFFF, 1 << 31, 1 << 20]))
        data[at : at + 4] = word.to_bytes(4, "little")
        try:
            read_params(bytes(data))
        except QnnError:
            continue


SYMBOL = {"nodes": [{"op": "null", "name": "data", "inputs": []}], "heads": [[0, 0, 0]]}


def test_symbol_as_dict_text_and_path(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SYMBOL))
    assert read_symbol(SYMBOL) == read_symbol(json.dumps(SYMBOL)) == read_symbol(path) == read_symbol(path.read_bytes())


def test_attributes_of_old_versions():
    for key in ("param", "attr", "attrs"):
        node = {"op": "Flatten", "name": "f", "inputs": [[0, 0]], key: {"axis": "1", "n": 2}}
        graph = read_symbol({"nodes": [*SYMBOL["nodes"], node], "heads": [[1, 0]]})
        assert graph.nodes[1].attrs == {"axis": "1", "n": "2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": None}, "no list 'nodes'"),
        ({"heads": []}, "no outputs"),
        ({"heads": [[1, 0, 0]]}, "not refer to an earlier node"),
        ({"heads": [[0, -1, 0]]}, "not refer to an earlier node"),
        ({"heads": [["0", 0, 0]]}, "an input must be"),
        ({"nodes": [{"op": "null"}]}, "lacks its op or name"),
        ({"nodes": [{"op": "Flatten", "name": "f", "inputs": [[0, 0, 0]]}]}, "not refer to an earlier node"),
        ({"nodes": [{"op": "null", "name": "f", "attrs": [1]}]}, "must be an object"),
        ({"nodes": [{"op": "null", "name": "f", "inputs": {"a": 1}}]}, "must be lists"),
    ],
)
def test_damaged_symbols(change, message):
    with pytest.raises(ModelFormatError, match=message):
        read_symbol({**SYMBOL, **change})


@pytest.mark.parametrize("text", ["{", "{}", '{"nodes": 1}', "{" + '"a":[' * 100_000, "[]"])
def test_not_a_symbol(text, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(ModelFormatError):
        read_symbol(path)
