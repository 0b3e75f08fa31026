"""Weights in external data files: read beside the model, and never from anywhere else."""

import os

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


def cached(tmp_path, below=""):
    """Hugging Face's cache of one repository: links in a snapshot's folder, files under `blobs`."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1f0c" / below
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    up = "../" * (2 + bool(below))
    (snapshot / "model.onnx").symlink_to(f"{up}blobs/6a2b")
    (snapshot / "weights.bin").symlink_to(f"{up}blobs/93e1")
    (blobs / "93e1").write_bytes(WEIGHTS.tobytes())
    return blobs, snapshot


@pytest.mark.parametrize("below", ["", "onnx"])
def test_cache_of_links(tmp_path, below):
    blobs, snapshot = cached(tmp_path, below)
    save(blobs).rename(blobs / "6a2b")
    np.testing.assert_array_equal(read_model(snapshot / "model.onnx").constants["w"], WEIGHTS)


@pytest.mark.parametrize("location", ["../../blobs/93e1", "secret.bin", "folder/secret.bin", "twice.bin"])
def test_no_way_out_of_the_cache(tmp_path, location):
    """Links lead to where the model file lies and nowhere else; a name that leaves the folder is refused as it is."""
    blobs, snapshot = cached(tmp_path)
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    (snapshot / "secret.bin").symlink_to("../../secret.bin")
    (snapshot / "folder").symlink_to("../..")
    (snapshot / "twice.bin").symlink_to("../../blobs/out")
    (blobs / "out").symlink_to("../secret.bin")
    save(blobs, location).rename(blobs / "6a2b")
    with pytest.raises(ModelFormatError, match="outside the model's folder"):
        read_model(snapshot / "model.onnx")


def test_links_of_a_model_that_is_none(tmp_path):
    """The rule is for model files that are links: beside a regular file, links must not lead out."""
    _, snapshot = cached(tmp_path)
    (snapshot / "model.onnx").unlink()
    with pytest.raises(ModelFormatError, match="outside the model's folder"):
        read_model(save(snapshot))


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
    with pytest.raises(ModelFormatError, match="not a number"):
        read_model(save(tmp_path, offset="much"))


def test_ranges_are_those_of_the_tensors(tmp_path):
    """A length that is not the tensor's is reported before anything is read, however large the file is."""
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(1 << 40)  # no byte of it is on the disk
    for offset, length, message in (
        (0, 1 << 40, "takes 16 bytes, but its external data has"),
        (0, None, "must end where the file ends"),
        (0, 12, "takes 16 bytes, but its external data has 12"),
        (1 << 62, 16, "at offset 4611686018427387904"),
        ("9" * 5000, 16, "offset of its external data is not a number"),
        (" 8", 16, "not a number"),
        ("٣", 16, "not a number"),
    ):
        with pytest.raises(ModelFormatError, match=rf"'w'.*{message}"):
            read_model(save(tmp_path, offset=offset, length=length))
    assert not read_model(save(tmp_path, offset=1 << 39, length=16)).constants["w"].any()


@pytest.mark.parametrize("location", ["n" * 300, "loop", "fifo", "."])
def test_names_that_are_no_files(tmp_path, location):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelFormatError, match="'w': external data file"):
        read_model(save(tmp_path, location))


def test_tensors_share_ranges_and_do_not_overlap(tmp_path):
    """A small file does not stand for much memory: ten thousand tensors of one range are one."""
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes() + WEIGHTS.tobytes())
    path = save(tmp_path, offset=0, length=16)
    proto = onnx.load_model_from_string(path.read_bytes())

    def add(name: str, offset: int) -> None:
        tensor = proto.graph.initializer.add()
        tensor.CopyFrom(proto.graph.initializer[0])
        tensor.name = name
        tensor.external_data[1].value = str(offset)
        path.write_bytes(proto.SerializeToString())

    add("same", 0)
    add("next", 16)
    found = read_model(path).constants
    assert np.shares_memory(found["w"], found["same"]) and not np.shares_memory(found["w"], found["next"])
    np.testing.assert_array_equal(found["next"], WEIGHTS)
    add("between", 12)
    with pytest.raises(ModelFormatError, match=r"'between': bytes 12 to 28 of its external data overlap .* 0 to 16"):
        read_model(path)


def test_bytes_have_no_folder(tmp_path):
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelFormatError, match="pass the model's path"):
        read_model(save(tmp_path).read_bytes())
