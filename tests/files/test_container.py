"""Large members that packing would hardly shorten are stored as they are, and mapped."""

import io
import json

import numpy as np
import pytest

from qnn_ext.errors import ArtifactError
from qnn_ext.files import container
from qnn_ext.files.container import Reader, Writer

RANDOM = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()


@pytest.fixture(autouse=True)
def lower_limits(monkeypatch):
    monkeypatch.setattr(container, "_MAPPED_FROM", 1 << 16)
    monkeypatch.setattr(container, "_SAMPLE", 1 << 12)


def write(path, packs=True, **members):
    with open(path, "wb") as file, Writer(file, packs) as writer:
        for name, content in members.items():
            writer.add_large(name, memoryview(content))
        writer.finish(None)
    return path


def reader(path, verify=None):
    file = open(path, "rb")  # noqa: SIM115  # closed by the collector
    return Reader(file, verify)


@pytest.mark.parametrize("before", range(3))
def test_a_large_member_is_mapped_from_a_page_on(before, tmp_path):
    members = {"abc"[:before]: RANDOM[:before]} if before else {}
    path = write(tmp_path / "file", **members, weights=RANDOM, zeros=bytes(100_000))
    found = reader(path)
    assert set(found.names()) == {*members, "weights", "zeros"}
    assert path.read_bytes().index(RANDOM) % 4096 == 0
    assert found.mapped("weights") == RANDOM == found.read("weights")
    assert found.mapped("zeros") is None and found.read("zeros") == bytes(100_000)  # it is packed
    assert path.stat().st_size < len(RANDOM) + 20_000


def test_a_mapping_outlives_the_file(tmp_path):
    path = write(tmp_path / "file", weights=RANDOM)
    with open(path, "rb") as file:
        mapped = Reader(file).mapped("weights")
    path.unlink()
    assert mapped == RANDOM


@pytest.mark.parametrize("position", [0, 50_000, 99_999])
def test_a_mapping_is_checked(position, tmp_path):
    path = write(tmp_path / "file", weights=RANDOM)
    content = bytearray(path.read_bytes())
    content[content.index(RANDOM) + position] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="checksum of weights"):
        reader(path).mapped("weights")


def test_not_mapped(tmp_path):
    path = write(tmp_path / "file", weights=RANDOM, short=RANDOM[:1000])
    assert reader(path).mapped("short") is None
    assert Reader(io.BytesIO(path.read_bytes())).mapped("weights") is None
    signed = path.parent / "signed"
    with open(signed, "wb") as file, Writer(file) as writer:
        writer.add_large("weights", RANDOM)
        writer.finish(lambda manifest: b"signature")
    assert reader(signed, lambda manifest, signature: None).mapped("weights") is None  # anybody may write to it later


def test_a_start_beyond_the_file(tmp_path):
    """The header of a member may say anything."""
    path = write(tmp_path / "file", weights=RANDOM)
    content = bytearray(path.read_bytes())
    content[28:30] = b"\xff\xff"  # the length of its extra fields
    path.write_bytes(content)
    try:
        assert reader(path).mapped("weights") is None
    except ArtifactError as error:
        assert "weights" in str(error)


def test_members_listed(tmp_path):
    manifest = json.loads(reader(write(tmp_path / "file", weights=RANDOM, zeros=bytes(100_000))).manifest)
    assert set(manifest["members"]) == {"weights", "zeros.zlib"}
