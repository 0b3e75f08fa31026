"""Calibration tables: round trip, editing by hand, tables that are corrupt or made for another model."""

import json

import numpy as np
import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.quantize import CalibrationTable, Range

TABLE = CalibrationTable(
    {"relu_1": Range(0.0, 6.25, "kl_divergence", {"clipped": 0.01}), "conv.weight": Range([-1.0, -0.1], [0.1, 1 / 3])},
    model="0123456789abcdef",
)


def test_round_trip(tmp_path):
    path = tmp_path / "table.json"
    TABLE.save(path)
    loaded = CalibrationTable.load(path)
    assert loaded == TABLE
    assert loaded["relu_1"].extra == {"clipped": 0.01}
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_can_be_edited_by_hand(tmp_path):
    path = tmp_path / "table.json"
    TABLE.save(path)
    lines = path.read_text().splitlines()
    assert lines[5] == '  "conv.weight": {"low": [-1.0, -0.1], "high": [0.1, 0.3333333333333333]},'
    path.write_text(path.read_text().replace("6.25", "5.5"))
    assert CalibrationTable.load(path)["relu_1"].high == 5.5


def test_an_empty_table(tmp_path):
    CalibrationTable().save(tmp_path / "empty.json")
    assert CalibrationTable.load(tmp_path / "empty.json") == CalibrationTable()


def content(**changes) -> str:
    good = {"format": "qnn_ext calibration table", "version": 1, "model": "", "ranges": {"a": {"low": 0, "high": 1}}}
    return json.dumps({**good, **changes})


BAD = {
    "empty": ("", "not a calibration table"),
    "truncated": (content()[:-9], "not a calibration table"),
    "binary": (b"\xff\xfe\x00", "not a text file in UTF-8"),
    "digits": ("1" * 5000, "not a calibration table"),
    "deep": ("[" * 100_000, "not a calibration table"),
    "list": ("[]", '"format" must be'),
    "format": (content(format="other"), '"format" must be'),
    "version": (content(version=2), "version 2, but this qnn_ext reads version 1"),
    "ranges": (content(ranges=[1]), '"ranges" must map'),
    "model": (content(model=3), '"model" must be a string'),
    "range": (content(ranges={"conv": [0, 1]}), 'conv: a range must have "low" and "high"'),
    "misspelt": (content(ranges={"conv": {"low": 0, "hihg": 1}}), "conv: a range must have"),
    "method": (content(ranges={"conv": {"low": 0, "high": 1, "method": 2}}), '"method" must be a string'),
    "nan": (content(ranges={"conv": {"low": 0, "high": float("nan")}}), "conv: range 0 … nan is not finite"),
    "order": (content(ranges={"conv": {"low": 1, "high": 0}}), "conv: .*low must not exceed high"),
    "words": (content(ranges={"conv": {"low": "a", "high": 0}}), "conv: the bounds of a range must be numbers"),
    "huge": (content(ranges={"conv": {"low": 0, "high": 10**400}}), "conv: the bounds of a range must be numbers"),
    "lengths": (content(ranges={"conv": {"low": [0, 1], "high": 1}}), "conv: .*two vectors of the same length"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path, name):
    written, message = BAD[name]
    path = tmp_path / "table.json"
    path.write_bytes(written if isinstance(written, bytes) else written.encode())
    with pytest.raises(QuantizationError, match=message) as caught:
        CalibrationTable.load(path)
    assert str(path) in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(QuantizationError, match="no such file"):
        CalibrationTable.load(tmp_path / "absent.json")
    with pytest.raises(QuantizationError, match="cannot write"):
        TABLE.save(tmp_path / "absent" / "table.json")


def test_check():
    sites = ["relu_1", "conv.weight"]
    TABLE.check(sites, "0123456789abcdef")
    TABLE.check(sites)
    with pytest.raises(QuantizationError, match="no range for 'relu_2'"):
        TABLE.check([*sites, "relu_2"])
    with pytest.raises(QuantizationError, match=r"unknown sites 'conv\.weight'"):
        TABLE.check(["relu_1"])
    with pytest.raises(QuantizationError, match="another model"):
        TABLE.check(sites, "fedcba9876543210")


def test_with_ranges():
    changed = TABLE.with_ranges({"relu_1": Range(0.0, 1.0)})
    assert changed["relu_1"] == Range(0.0, 1.0)
    assert changed.model == TABLE.model
    assert TABLE["relu_1"].high == 6.25
    np.testing.assert_array_equal(changed["conv.weight"].low, [-1.0, -0.1])


def test_print():
    assert str(TABLE).splitlines() == [
        "relu_1       0 … 6.25  kl_divergence",
        "conv.weight  [-1, -0.1] … [0.1, 0.333333] (2 channels)",
    ]
