"""Sets up what the tests of ARM and RISC-V code need: emulators, compilers, and Python with TVM's wheels for aarch64.

    python -m scripts.emulators

Whatever already exists is left alone. Whatever cannot be obtained, say without a network, is listed with the reason,
and the tests that need it skip: this never fails.

    programs           QEMU's user mode and its boards, and GNU's cross compilers, from Debian's or Ubuntu's packages,
                       by root only
    <venv>/arm/root    Python for aarch64 and the libraries it needs, from the same packages: unpacked, not installed,
                       which takes no rights and changes nothing outside of that folder
    <venv>/arm/site    the packages a loaded model needs, as wheels for aarch64
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(sys.prefix) / "arm"
ROOT, SITE = FOLDER / "root", FOLDER / "site"
PROGRAMS = {
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "arm-linux-gnueabihf-g++": "g++-arm-linux-gnueabihf",
    "qemu-system-arm": "qemu-system-arm",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-linux-gnu-g++": "g++-riscv64-linux-gnu",
}
PINNED = ("apache-tvm", "apache-tvm-ffi")  # the versions installed here
PACKAGES = ("numpy", "ml_dtypes", "typing_extensions", "click", "rich", "pillow")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
LIMIT = 600.0  # time limit of one command in seconds


class Missing(Exception):
    """Why something cannot be set up."""


def main() -> None:
    for title, step in (("emulators", programs), ("Python for aarch64", python), ("wheels for aarch64", wheels)):
        try:
            step()
        except Missing as reason:
            print(f"{title}: not set up, tests that need it are skipped: {reason}")


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command quietly; returns its output. Raises Missing."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except FileNotFoundError as error:
        raise Missing(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{command[0]} took more than {LIMIT:.0f} s") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{' '.join(command[:2])}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def programs() -> None:
    """Install the packages of the programs that are missing."""
    packages = [name for program, names in PROGRAMS.items() if not shutil.which(program) for name in names.split()]
    if not packages:
        return
    wanted = "apt-get install " + " ".join(packages)
    if not shutil.which("apt-get"):
        raise Missing(f"apt-get is not installed here; Debian and Ubuntu have the packages: {wanted}")
    if os.geteuid() != 0:
        raise Missing(f"only root can run: {wanted}")
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    try:
        run(*install)
    except Missing:  # the package lists may be old or missing
        run("apt-get", "update", "-qq")
        run(*install)


def python() -> None:
    """Unpack Python for aarch64 and all its dependencies."""
    if emulated_python() is not None:
        return
    if not shutil.which("dpkg"):
        raise Missing("unpacking Debian's or Ubuntu's packages needs dpkg, which is not installed here")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        state, unpacked = Path(name) / "apt", Path(name) / "root"
        archives = state / "cache" / "archives"
        for folder in (state / "lists" / "partial", archives / "partial"):
            folder.mkdir(parents=True)
        (state / "status").touch()  # nothing is installed there, so dependencies are included
        options = [
            *("-o", "APT::Architecture=arm64", "-o", "APT::Architectures::=arm64", "-o", "APT::Sandbox::User=root"),
            *("-o", f"Dir::State={state}", "-o", f"Dir::State::status={state / 'status'}"),
            *("-o", f"Dir::Cache={state / 'cache'}"),
        ]
        run("apt-get", *options, "update", "-qq")
        minor = _packaged_minor(options)
        wanted = [f"python3.{minor}-minimal", f"libpython3.{minor}-stdlib", "libstdc++6"]
        run("apt-get", *options, "install", "-y", "-qq", "--no-install-recommends", "--download-only", *wanted)
        for archive in sorted(archives.glob("*.deb")):
            run("dpkg", "-x", str(archive), str(unpacked))
        shutil.rmtree(ROOT, ignore_errors=True)
        unpacked.rename(ROOT)


def _packaged_minor(options: Sequence[str]) -> int:
    """The minor version of a Python packaged for aarch64: this one's if available, else the newest qnn_ext supports."""
    names = run("apt-cache", *options, "search", "--names-only", r"^python3\.[0-9]+-minimal$")
    packaged = {int(line.split("-")[0].removeprefix("python3.")) for line in names.splitlines()}
    usable = sorted(packaged & set(range(10, 14)))
    if not usable:
        raise Missing("no Python 3.10 to 3.13 is packaged for arm64 in apt's sources")
    return sys.version_info.minor if sys.version_info.minor in usable else usable[-1]


def emulated_python() -> Path | None:
    """The interpreter for aarch64, if it has been unpacked."""
    return next(iter(sorted((ROOT / "usr" / "bin").glob("python3.??"))), None)


def wheels() -> None:
    """Unpack wheels for aarch64 for the emulated Python's version, or for this one's where there is none."""
    if (SITE / "tvm").is_dir() and (SITE / "PIL").is_dir():
        return
    interpreter = emulated_python()
    minor = interpreter.name.removeprefix("python3.") if interpreter else str(sys.version_info.minor)
    pinned = [f"{name}=={version(name)}" for name in PINNED]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        options = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--no-compile"]
        fitting = ["--only-binary=:all:", "--python-version", f"3.{minor}", "--implementation", "cp"]
        fitting += [f"--platform={platform}" for platform in PLATFORMS]
        run(sys.executable, "-m", "pip", "install", *options, *fitting, "--target", f"{name}/site", *pinned, *PACKAGES)
        shutil.rmtree(SITE, ignore_errors=True)
        (Path(name) / "site").rename(SITE)


if __name__ == "__main__":
    main()
