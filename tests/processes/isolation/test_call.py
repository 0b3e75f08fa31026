"""A call in a separate process: how it ends, what it may not do, and that no process is left behind."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.processes.isolation import Bounds, Ended, call, client, server
from tests.threads import at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

BOUNDS = Bounds(seconds=30, memory=1 << 28, answer=1 << 20)
SHORT = Bounds(seconds=0.3, memory=1 << 28, answer=1 << 20)


def task(name, request=b"", bounds=BOUNDS):
    return bytes(
        call(f"tests.processes.isolation.tasks:{name}", [request], bounds, ["tests.processes.isolation.tasks"])
    )


def servers(process=None):
    """The processes below one that serve calls."""
    children = (process or psutil.Process()).children(recursive=True)
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(params=["forks", "once"])
def way(request, monkeypatch):
    """By a server that forks, and by one process per call, as on systems without fork."""
    monkeypatch.setattr(client, "_FORKS", request.param == "forks")
    return request.param


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    yield
    client.close_all()
    assert not servers()


# ---- how calls end -----------------------------------------------------------------------------------------------


def test_results(way):
    content = os.urandom(1 << 19)
    assert task("echo", content) == content
    assert task("echo") == b""


@pytest.mark.parametrize(
    ("name", "bounds", "kind", "what"),
    [
        ("crash", BOUNDS, "crash", "SIGSEGV"),
        ("leave", BOUNDS, "crash", "exit code 3"),
        ("raises", BOUNDS, "error", "ValueError: no such thing"),
        ("sleep", SHORT, "time", ""),
        ("fill", BOUNDS, "memory", ""),
    ],
)
def test_failures(way, name, bounds, kind, what):
    with pytest.raises(Ended) as caught:
        task(name, bounds=bounds)
    assert caught.value.kind == kind
    assert what in caught.value.what
    if way == "forks" and name in ("crash", "sleep", "fill"):
        assert caught.value.doing in ("reading address 0", "sleeping", "filling")
    assert task("echo", b"again") == b"again"


def test_no_limits(way):
    assert task("echo", b"x", Bounds(seconds=float("inf"), memory=1 << 80, answer=1 << 80, threads=4)) == b"x"


def test_an_answer_that_is_too_long():
    with pytest.raises(Ended) as caught:
        task("flood")
    assert caught.value.kind == "memory"
    assert task("echo", b"again") == b"again"


def test_a_request_that_nobody_reads_to_its_end():
    with pytest.raises(Ended):
        call("tests.processes.isolation.tasks:crash", [bytes(1 << 25)], BOUNDS)


def test_modules_that_cannot_be_imported():
    with pytest.raises(Ended, match="no_such_module"):
        call("tests.processes.isolation.tasks:echo", [b""], BOUNDS, ["no_such_module"])


def test_a_program_without_an_interpreter(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    client.close_all()
    with pytest.raises(QnnError, match=r"torch\.jit\.load"):
        task("echo")


# ---- what a call may not do --------------------------------------------------------------------------------------


def test_confinement(tmp_path):
    """Its own process group, nothing on stdin, only its connection open, no core dump, no file."""
    target = tmp_path / "written"
    found = task("state", os.fsencode(target))
    own_group, stdin, descriptors, core, writes = eval(found)
    assert (own_group, stdin, core, writes) == (True, "", 0, False)
    assert descriptors <= 3  # the connection, the folder that is listed


def test_calls_share_nothing():
    assert task("remember") == task("remember") == b"1"


def test_many_calls_leave_nothing_open():
    task("echo")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        task("echo")
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(servers()) == 1


# ---- threads, forks, interrupts, ends ----------------------------------------------------------------------------


def test_threads():
    """Each call has its own server; one of them is kept when the threads have ended."""
    contents = [b"%d" % index for index in range(3)]
    assert at_once(lambda content: task("echo", content), contents) == contents
    assert task("echo", b"after") == b"after"
    assert len(servers()) == 1


def test_a_server_that_has_ended_is_replaced():
    task("echo")
    (idle,) = servers()
    idle.send_signal(signal.SIGTERM)
    idle.wait(10)
    assert task("echo", b"again") == b"again"


def test_idle_servers_end(monkeypatch):
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(server, "_PARENT_SECONDS", 0.05)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert server._next_job(theirs, os.getppid()) is None


def run(code, **options):
    """A Python process with these lines, which has no guard around what it does."""
    lines = textwrap.dedent(code)
    head = "from tests.processes.isolation.test_call import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + lines], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_end_of_the_interpreter():
    process = run("task('echo'); print(servers()[0].pid)")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert not psutil.pid_exists(int(out))


@pytest.mark.parametrize("name", ["echo", "sleep"])
def test_a_killed_parent(name):
    """Nobody is left when the parent is killed, idle or waiting for a call."""
    process = run(f"task('echo'); print(flush=True); task({name!r}); time.sleep(1000)")
    process.stdout.readline()
    parent = psutil.Process(process.pid)
    wait_for(lambda: len(servers(parent)) == (2 if name == "sleep" else 1))
    children = servers(parent)
    process.kill()
    process.communicate()
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() for child in children)


def test_an_interrupt():
    """Ctrl-C ends the call and its process, and the parent can go on."""
    process = run(
        """
        task('echo')
        print(flush=True)
        try:
            task('sleep')
        except KeyboardInterrupt:
            assert not servers()
            print(task('echo', b'again').decode())
        """,
        start_new_session=True,
    )
    process.stdout.readline()
    wait_for(lambda: len(servers(psutil.Process(process.pid))) == 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (out.strip(), process.returncode) == ("again", 0), err


def test_forked_processes_have_servers_of_their_own():
    process = run(
        """
        task('echo')
        ours = servers()[0].pid
        child = os.fork()
        if child == 0:
            assert task('echo', b'forked') == b'forked'
            assert ours not in [one.pid for one in servers()]
            client.close_all()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert task('echo', b'parent') == b'parent'
        assert [one.pid for one in servers()] == [ours]
        """
    )
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
