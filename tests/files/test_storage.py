"""Whatever ends a writer, its target holds the old content or the new one, and nothing else is left in the folder."""

from __future__ import annotations

import ast
import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qnn_ext import QnnError
from qnn_ext.errors import TuningError
from qnn_ext.files import storage
from qnn_ext.files.storage import append_line, make_folder, replacing, write_bytes, write_text
from tests.threads import at_once

ROOT = Path(__file__).parents[2]
posix_only = pytest.mark.skipif(os.name == "nt", reason="modes, links and locks of POSIX")


@pytest.fixture
def target(tmp_path) -> Path:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    return path


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def child(script: str, *arguments: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


# ---- the file that is replaced -----------------------------------------------------------------------------------


def test_replaces_and_makes_files(target):
    write_bytes(target, b"new")
    write_text(target.with_name("other"), "größer")
    assert target.read_bytes() == b"new" and target.with_name("other").read_bytes() == "größer".encode()
    assert names(target.parent) == ["other", "table.json"]


def test_the_old_content_stays_until_the_end(target):
    with replacing(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_exception_leaves_the_old_file(target, problem):
    with pytest.raises(problem), replacing(target) as file:
        file.write(b"half of it")
        raise problem
    assert target.read_bytes() == b"old" and names(target.parent) == ["table.json"]


def test_synced_then_renamed_then_the_folder_synced(target, monkeypatch):
    events = []

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append((f"sync {kind}", os.fstat(descriptor).st_size if kind == "file" else None))

    rename = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append(("rename", None)), rename(*paths)))
    write_bytes(target, b"new content")
    assert events[:2] == [("sync file", 11), ("rename", None)]
    assert events[2:] == ([("sync folder", None)] if os.name != "nt" else [])


@posix_only
def test_modes(target):
    before = os.umask(0o027)
    try:
        write_bytes(target.with_name("new"), b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.with_name("new").stat().st_mode) == 0o640
    for mode in (0o600, 0o755, 0o664):
        target.chmod(mode)
        write_bytes(target, b"new")
        assert stat.S_IMODE(target.stat().st_mode) == mode


@posix_only
def test_links_are_followed(target, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link, dangling = folder / "link", folder / "dangling"
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "made.json")
    write_bytes(link, b"through the link")
    write_bytes(dangling, b"made")
    assert link.is_symlink() and target.read_bytes() == b"through the link"
    assert dangling.is_symlink() and (tmp_path / "made.json").read_bytes() == b"made"
    round_about = tmp_path / "loop"
    round_about.symlink_to(round_about)
    with pytest.raises(QnnError, match=r"cannot write .*loop: .*symbolic links"):
        write_bytes(round_about, b"")
    assert round_about.is_symlink()


# ---- places that cannot be written -------------------------------------------------------------------------------


def test_errors_name_path_and_reason(target, tmp_path):
    for path, reason in (
        (tmp_path, "it is a directory"),
        (tmp_path / "missing" / "a.json", os.strerror(errno.ENOENT)),
        (target / "a.json", os.strerror(errno.ENOTDIR)),
        (tmp_path / ("n" * 300), os.strerror(errno.ENAMETOOLONG)),
        ("nul\0", "null"),
    ):
        with pytest.raises(TuningError, match=r"cannot write") as caught:
            write_bytes(path, b"", TuningError)
        assert str(path).rstrip("\0") in str(caught.value) and reason in str(caught.value)
    with pytest.raises(TuningError, match="cannot create the folder"):
        make_folder(target / "folder", TuningError)
    with pytest.raises(QnnError, match="surrogates"):
        write_text(target, "\ud800")
    assert names(tmp_path) == ["table.json"] and target.read_bytes() == b"old"


def test_names_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("ö" * 127)
    write_bytes(path, b"new")
    assert names(tmp_path) == [path.name]


@posix_only
def test_devices_and_pipes_are_left_alone(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/null"):
        with pytest.raises(QnnError, match="not a regular file"):
            write_bytes(path, b"new")
    assert fifo.is_fifo() and not Path("/dev/null").is_file()


@posix_only
@pytest.mark.parametrize("mode", [0o555, 0o755], ids=["folder", "file"])
def test_read_only(target, mode):
    """As a user who may not write there: root may write anywhere."""
    script = (
        "import os, sys; from qnn_ext.files.storage import write_bytes; from qnn_ext import QnnError\n"
        "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "try: write_bytes(sys.argv[1], b'new')\n"
        "except QnnError as error: print(error)\n"
    )
    target.chmod(0o444)
    folders = [target.parent, *(parent for parent in target.parents if os.stat(parent).st_uid == os.getuid())]
    before = [(folder, stat.S_IMODE(folder.stat().st_mode)) for folder in folders]
    for folder, bits in before:
        folder.chmod(bits | 0o055)
    target.parent.chmod(mode)
    try:
        output, _ = child(script, target).communicate()
    finally:
        for folder, bits in reversed(before):
            folder.chmod(bits)
    assert "cannot write" in output and str(target) in output
    assert target.read_bytes() == b"old" and names(target.parent) == ["table.json"]


FULL = """
import resource, sys
from qnn_ext import QnnError
from qnn_ext.files import storage
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for write in (storage.write_bytes, lambda path, data: storage.append_line(path, data.decode())):
    try:
        write(sys.argv[1], b"x" * int(sys.argv[2]))
    except QnnError as error:
        print(error)
"""


@posix_only
@pytest.mark.parametrize("size", [6000, 10_000_000], ids=["in the buffer", "beyond it"])
def test_a_full_disk(target, size):
    """The system refuses to make files longer, as on a full disk: at the write, or when the buffer is flushed."""
    output, _ = child(FULL, target, size).communicate()
    assert output.count("cannot write") == 2 and str(target) in output
    assert target.read_bytes() == b"old" and names(target.parent) == ["table.json"]


# ---- writers that die, and several at once -----------------------------------------------------------------------

HALF = """
import sys
from qnn_ext.files.storage import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@posix_only
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_cleans_up(target):
    dead, alive = (child(HALF, target, stdin=subprocess.PIPE) for _ in range(2))
    for process in (dead, alive):
        assert process.stdout.readline() == "writing\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    assert target.read_bytes() == b"old" and len(names(target.parent)) == 3
    stranger = target.with_name(".tables.json.0000.part")
    stranger.write_bytes(b"of another target")
    write_bytes(target, b"new")
    left = names(target.parent)
    assert len(left) == 3 and stranger.name in left  # what the living one writes, and what is not ours
    alive.communicate()
    assert target.read_bytes() == b"half" and names(target.parent) == sorted([stranger.name, "table.json"])


def test_several_writers_at_once(target):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    seen = set()

    def work(content: bytes) -> None:
        for _ in range(10):
            write_bytes(target, content)
            seen.add(target.read_bytes())

    at_once(work, contents)
    assert seen <= set(contents) and names(target.parent) == ["table.json"]


@posix_only
def test_a_new_file_with_the_name_of_a_removed_one_is_kept(target, monkeypatch):
    """Two writers see what a dead one left; the other removes it, and its owner, which had only been late, starts anew,
    all before this one has its lock."""
    left = target.with_name(".table.json.0000.part")
    left.write_bytes(b"left")

    def lock_late(descriptor: int, wait: bool) -> bool:
        if not wait:
            left.unlink()
            left.write_bytes(b"anew")
        return True

    monkeypatch.setattr(storage, "_lock", lock_late)
    write_bytes(target, b"new")
    assert left.read_bytes() == b"anew" and target.read_bytes() == b"new"


def test_lines_of_several_processes_stay_whole(tmp_path):
    log = tmp_path / "log"
    script = (
        "import sys; from qnn_ext.files.storage import append_line\n"
        "for index in range(200): append_line(sys.argv[1], f'{sys.argv[2]} {index} ' + 'x' * 3000)"
    )
    for process in [child(script, log, number) for number in range(3)]:
        assert process.wait() == 0
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    assert all(line[2] == "x" * 3000 for line in lines)
    assert sorted((int(a), int(b)) for a, b, _ in lines) == [(a, b) for a in range(3) for b in range(200)]


def test_a_torn_line_is_ended_first(tmp_path):
    log = tmp_path / "log"
    append_line(log, "one")
    with open(log, "ab") as file:
        file.write(b"tor")
    append_line(log, "two")
    assert log.read_bytes() == b"one\ntor\ntwo\n"


# ---- every writer ------------------------------------------------------------------------------------------------

SCRATCH = {
    "qnn_ext/compat/remote.py": "in a temporary folder",
    "qnn_ext/compiling/program/objects.py": "to a temporary folder",
    "qnn_ext/export_c/exporting.py": "in a temporary folder",
    "qnn_ext/processes/apart.py": "to a pipe",
    "qnn_ext/running/artifact.py": "in a temporary folder",
    "qnn_ext/targets/cuda_compiler.py": "in a temporary folder",
    "qnn_ext/autotune/worker.py": "in a temporary folder",
    "benchmarks/architectures.py": "frameworks write the files it is about",
    "benchmarks/arm/litert.py": "in a temporary folder",
    "benchmarks/memory.py": "to the kernel",
    "benchmarks/micro/__main__.py": "in a temporary folder",
    "benchmarks/micro/peer.py": "to the folder in which the peer is compiled",
    "scripts/train_digits.py": "where TVM is not installed",
    "scripts/networks.py": "frameworks write the files it is about",
    "scripts/networks_mxnet.py": "where TVM is not installed",
    "scripts/digits_mxnet.py": "where TVM is not installed",
}
"""Who writes otherwise, and where."""


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("write_text", "write_bytes"):
        return isinstance(call.func, ast.Attribute)
    if name in ("save", "savez", "savez_compressed"):
        is_numpy = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "np"
        return is_numpy and not _is_open_file(call.args[0])
    if name in ("savefig", "print_figure"):
        return not _is_open_file(call.args[0])
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [mode.value for mode in given if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return name == "open" and any(set(mode) & set("wax+") for mode in modes)


def _is_open_file(argument: ast.expr) -> bool:
    name = argument.attr if isinstance(argument, ast.Attribute) else getattr(argument, "id", "")
    return name in ("file", "_file", "content", "buffer")


def test_every_writer_writes_whole_files():
    found = {
        f"{path.relative_to(ROOT)}"
        for folder in ("qnn_ext", "benchmarks", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "storage.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and _writes(node)
        and not any(getattr(argument, "attr", "") == "devnull" for argument in node.args)
    }
    assert found == set(SCRATCH)
