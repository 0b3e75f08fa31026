"""Linking for other architectures: which compiler is used, and what is reported if there is none."""

import stat
import sys
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext import ArtifactError
from qnn_ext.files import container
from qnn_ext.targets import linking
from qnn_ext.targets.architectures import host_architecture

MODEL = Path(qnn_ext.__file__).parent / "data" / "digits_cnn_int8.tflite"
OTHER, BOARD = ("aarch64", "rpi4") if host_architecture() == "x86_64" else ("x86_64", "x86-64")
GNU = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}[OTHER]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """PATH contains only the given programs; ziglang is not installed."""

    def have(*names: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in names:
            (folder / name).write_text("#!/bin/sh\nexit 1\n")
            (folder / name).chmod((folder / name).stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    monkeypatch.delenv(linking.environment_variable(OTHER), raising=False)
    monkeypatch.setattr(linking.importlib.util, "find_spec", lambda name: None)
    return have


def test_this_architecture_needs_no_cross_compiler(programs):
    programs()
    assert linking.cross_compiler(host_architecture()) is None


@pytest.mark.parametrize(
    "names, options",
    [
        ([f"{GNU}-g++", f"{GNU}-gcc", "zig"], []),
        ([f"{GNU}-gcc", "zig"], []),
        (["zig", "clang++", "ld.lld"], ["cc", "-target", GNU]),
        (["clang++", "ld.lld"], [f"--target={GNU}", "-fuse-ld=lld"]),
    ],
)
def test_the_first_compiler_found_is_taken(programs, names, options):
    folder = programs(*names)
    assert linking.cross_compiler(OTHER) == [str(folder / names[0]), *options]


def test_ziglang_the_package_will_do(programs, monkeypatch):
    programs()
    monkeypatch.setattr(linking.importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    assert linking.cross_compiler(OTHER) == [sys.executable, "-m", "ziglang", "cc", "-target", GNU]


def test_the_environment_goes_first(programs, monkeypatch):
    programs(f"{GNU}-g++")
    monkeypatch.setenv(linking.environment_variable(OTHER), "clang++ --target=x --sysroot '/a b'")
    assert linking.cross_compiler(OTHER) == ["clang++", "--target=x", "--sysroot", "/a b"]


def test_without_a_compiler_saving_says_what_to_install(programs, tmp_path):
    programs("clang++")  # without lld it links for this machine only
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), BOARD, num_threads=1)
    with pytest.raises(ArtifactError, match=f"linking for {OTHER} needs a cross compiler: install g.*ziglang.*CXX"):
        engine.save(tmp_path / "m.qnn")
    assert not (tmp_path / "m.qnn").exists()


@pytest.mark.parametrize("script, reason", [("echo sorry >&2; exit 1", "sorry"), ("exit 3", "exit code 3")])
def test_a_compiler_that_fails_is_quoted(programs, tmp_path, monkeypatch, script, reason):
    program = programs(f"{GNU}-g++") / f"{GNU}-g++"
    program.write_text(f"#!/bin/sh\n{script}\n")
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), BOARD, num_threads=1)
    with pytest.raises(ArtifactError, match=f"linking for {OTHER} with .* failed: {reason}; install"):
        engine.save(tmp_path / "m.qnn")
    monkeypatch.setenv(linking.environment_variable(OTHER), str(tmp_path / "nothing"))
    with pytest.raises(ArtifactError, match="No such file or directory"):
        engine.save(tmp_path / "m.qnn")


def test_a_library_for_each_architecture(links_for, tmp_path):
    """The libraries inside are ELF files of their machine, whatever this one is."""
    links_for("aarch64")
    links_for("arm")
    path = tmp_path / "everywhere.qnn"
    qnn_ext.build(qnn_ext.from_tflite(MODEL), ["rpi4", "armv7"], num_threads=1).save(path)
    with open(path, "rb") as file:
        members = container.Reader(file)
        machines = [members.read(name)[18] for name in members.names() if name.endswith(".so")]
    assert sorted(machines) == [40, 183], "EM_ARM, EM_AARCH64"


def test_microcontrollers_load_no_libraries(tmp_path):
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), "cortex-m4")
    with pytest.raises(ArtifactError, match=r"cortex-m: a \.qnn file.*--emit c"):
        engine.save(tmp_path / "model.qnn")
    assert list(tmp_path.iterdir()) == []
