"""Weights in external data files: read beside the model, and never from anywhere else."""

import numpy as np
import pytest

from qnn_ext import ModelFormatError
from qnn_ext.frontends.onnx.reader import read_model

from .graphs import model, node, onnx, value


def save(folder, location="weights.bin", offset=None, length=None):
    """A model whose one constant says that it lies in `location`."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        if entry is not None:
            tensor.external_data.add(key=key, value=str(entry))
    proto = model([node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])])
    proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


WEIGHTS = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("before", [0, 64])
def test_data_at_an_offset(tmp_path, before):
    (tmp_path / "weights.bin").write_bytes(bytes(before) + WEIGHTS.tobytes() + b"more")
    found = read_model(save(tmp_path, offset=before, length=16)).constants["w"]
    np.testing.assert_array_equal(found, WEIGHTS)


def test_whole_file_without_offset(tmp_path):
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    np.testing.assert_array_equal(read_model(save(tmp_path)).constants["w"], WEIGHTS)


def test_folder_below_the_model(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(WEIGHTS.tobytes())
    np.testing.assert_array_equal(read_model(save(tmp_path, "data/w.bin")).constants["w"], WEIGHTS)


def test_as_onnx_writes_it(tmp_path, rng):
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    proto = model([node("MatMul", ["x", "w"], ["y"])], [value("x", [2, 64])], [value("y", [2, 64])], {"w": weights})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(read_model(tmp_path / "m.onnx").constants["w"], weights)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "", "a\0b", "data/../../secret.bin", "link.bin"]
)
def test_no_way_out_of_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelFormatError, match="outside the model's folder"):
        read_model(save(folder, location))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFormatError, match=r"weights\.bin is missing"):
        read_model(save(tmp_path))


@pytest.mark.parametrize("offset, length", [(0, 17), (8, 16), (100, 1), (-4, 16), (0, -5)])
def test_file_too_short(tmp_path, offset, length):
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelFormatError, match="'w'"):
        read_model(save(tmp_path, offset=offset, length=length))


def test_numbers_that_are_none(tmp_path):
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelFormatError, match="no number"):
        read_model(save(tmp_path, offset="much"))


def test_bytes_have_no_folder(tmp_path):
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelFormatError, match="give from_onnx the model's path"):
        read_model(save(tmp_path).read_bytes())
