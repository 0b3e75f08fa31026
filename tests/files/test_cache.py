"""What is kept is what was stored, or it is not there; and nothing of it comes from anybody else."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from qnn_ext import QnnError
from qnn_ext.files import cache as module
from qnn_ext.files.cache import Cache, default_folder
from tests.threads import at_once

posix_only = pytest.mark.skipif(os.name == "nt", reason="modes, owners and links of POSIX")
KEY, OTHER = (hashlib.sha256(name).hexdigest() for name in (b"one", b"other"))


@pytest.fixture
def kept(tmp_path) -> Cache:
    return Cache(tmp_path / "parent" / "cache")


def entry(cache: Cache, key: str = KEY) -> Path:
    return cache.folder / f"{key}.entry"


def test_keeps_and_replaces(kept):
    assert kept.get(KEY) is None and kept.entries() == []
    kept.put(KEY, b"old")
    kept.put(KEY, b"new")
    kept.put(OTHER, b"")
    assert (kept.get(KEY), kept.get(OTHER), len(kept.entries())) == (b"new", b"", 2)
    assert Cache(kept.folder).get(KEY) == b"new"


def test_damage_is_removed(kept):
    for damage in (lambda data: data[:-1], lambda data: data[:10], lambda data: b"", lambda data: data[:-1] + b"X"):
        kept.put(KEY, b"value")
        entry(kept).write_bytes(damage(entry(kept).read_bytes()))
        assert kept.get(KEY) is None and kept.entries() == []


def test_an_entry_counts_only_under_its_own_key(kept):
    kept.put(KEY, b"value")
    entry(kept).rename(entry(kept, OTHER))
    assert kept.get(OTHER) is None


def test_the_longest_unused_goes_first(kept):
    kept.most = 300
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    for age, key in enumerate(keys[:3]):
        kept.put(key, bytes(60))
        os.utime(entry(kept, key), (age, age))
    kept.get(keys[0])  # the oldest, now used again
    kept.put(keys[3], bytes(60))
    assert [kept.get(key) is not None for key in keys] == [True, False, True, True]
    kept.put(KEY, bytes(1000))
    assert kept.get(KEY) is None, "larger than everything together may be"


def test_clear_removes_only_what_is_its_own(kept):
    kept.put(KEY, b"value")
    (kept.folder / f".{KEY}.entry.0123456789abcdef.part").write_bytes(b"of a writer that was killed")
    (kept.folder / "letter.txt").write_text("keep me")
    assert len(kept.clear()) == 2
    assert [path.name for path in kept.folder.iterdir()] == ["letter.txt"]


@posix_only
def test_is_private(kept):
    old = os.umask(0)
    try:
        kept.put(KEY, b"value")
    finally:
        os.umask(old)
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry(kept).stat().st_mode) == 0o600


@posix_only
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(kept, mode):
    kept.put(KEY, b"value")
    kept.folder.chmod(mode)
    kept.put(OTHER, b"value")
    assert kept.get(KEY) is None and not entry(kept, OTHER).exists()
    for use in (kept.check, kept.entries, kept.clear):
        with pytest.raises(QnnError, match="other users can write to it"):
            use()


@posix_only
def test_nor_is_another_users_folder(kept, monkeypatch):
    kept.put(KEY, b"value")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert kept.get(KEY) is None
    with pytest.raises(QnnError, match="belongs to another user"):
        kept.check()


@posix_only
def test_nor_is_an_entry_that_others_can_write_to_or_a_link(kept):
    kept.put(KEY, b"value")
    entry(kept).chmod(0o666)
    assert kept.get(KEY) is None
    entry(kept).chmod(0o600)
    entry(kept).rename(kept.folder / "elsewhere")
    entry(kept).symlink_to(kept.folder / "elsewhere")
    assert kept.get(KEY) is None
    os.mkfifo(entry(kept, OTHER))
    assert kept.get(OTHER) is None, "and does not wait for a writer"


def test_a_place_that_cannot_be_written_only_keeps_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    blocked = Cache(tmp_path / "file" / "cache")
    blocked.put(KEY, b"value")
    assert blocked.get(KEY) is None

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept = Cache(tmp_path / "cache")
    kept.put(KEY, b"value")
    assert list(kept.folder.iterdir()) == []


def test_many_at_once(kept):
    values = {hashlib.sha256(bytes([number])).hexdigest(): bytes([number]) * 1000 for number in range(4)}

    def use(_: int) -> None:
        for key, value in values.items():
            kept.put(key, value)
            assert kept.get(key) == value

    at_once(use, range(3))
    assert {key: kept.get(key) for key in values} == values


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    for cache, xdg, expected in (
        ("", "", tmp_path / ".cache" / "qnn_ext"),
        ("", "relative", tmp_path / ".cache" / "qnn_ext"),
        ("", str(tmp_path / "xdg"), tmp_path / "xdg" / "qnn_ext"),
        (str(tmp_path / "own"), str(tmp_path / "xdg"), tmp_path / "own"),
        ("off", "", None),
    ):
        monkeypatch.setenv("QNN_EXT_CACHE", cache)
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert default_folder() == expected
