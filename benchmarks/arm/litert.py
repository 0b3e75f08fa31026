"""LiteRT's aarch64 build under emulation: the instructions of one inference.

At first use its wheel is unpacked beside what `scripts.emulators` sets up. LiteRT reads the CPU from /proc/cpuinfo and
/sys and chooses kernels accordingly; QEMU would show it this machine's files, so it gets its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scripts.emulators import FOLDER, PLATFORMS, ROOT, SITE, emulated_python
from tests.arm.count import Counts, executed
from tests.arm.emulator import AARCH64, EmulationError

PACKAGES = FOLDER / "litert"
PARTS = {"cortex-a53": 0xD03, "cortex-a72": 0xD08, "cortex-a76": 0xD0B, "neoverse-n1": 0xD0C, "max": 0xD40}
"""QEMU's CPUs -> ARM's part numbers; `max` poses as a Neoverse V1."""

REPEATS = 4  # additional inferences: a run with these and one more, minus a run with one

SCRIPT = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
for tensor in interpreter.get_input_details():
    interpreter.set_tensor(tensor["index"], np.zeros(tensor["shape"], tensor["dtype"]))
for _ in range(int(sys.argv[2])):
    interpreter.invoke()
"""


class Unavailable(Exception):
    """Why LiteRT cannot be run."""


def instructions(model: Path, cpu: str) -> Counts:
    """LiteRT's instruction count for one inference on zeros, on one thread of an emulated CPU. Raises Unavailable."""
    _set_up()
    with tempfile.TemporaryDirectory() as name:
        root = _root(Path(name), cpu)
        options = ["-L", str(root), "-E", f"PYTHONPATH={PACKAGES}:{SITE}", "-E", "PYTHONHASHSEED=0"]
        runs = []
        for calls in (1, 1 + REPEATS):
            command = [emulated_python(), "-c", SCRIPT, model, calls]
            try:
                runs.append(executed(command, AARCH64, cpu, options))
            except EmulationError as error:
                raise Unavailable(str(error).splitlines()[-1]) from error
    once, often = runs
    blocks: Counter = Counter()
    blocks.update(often)
    blocks.subtract(once)
    # start-ups differ by some thousand instructions; a remainder of that size does not belong to an inference
    return Counts(AARCH64, {block: round(count / REPEATS) for block, count in blocks.items() if count >= REPEATS})


def _set_up() -> None:
    """Unpack the wheel of the locally installed version."""
    if emulated_python() is None or not SITE.is_dir():
        raise Unavailable("Python for aarch64 is not set up: python -m scripts.emulators")
    if PACKAGES.is_dir():
        return
    try:
        wanted = f"ai-edge-litert=={version('ai-edge-litert')}"
    except PackageNotFoundError as error:
        raise Unavailable("LiteRT is not installed: pip install 'qnn-ext[bench]'") from error
    minor = emulated_python().name.removeprefix("python3.")  # type: ignore[union-attr]
    fitting = ["--only-binary=:all:", "--python-version", f"3.{minor}", "--implementation", "cp"]
    fitting += [f"--platform={platform}" for platform in PLATFORMS]
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        target = Path(name) / "litert"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", *fitting]
        done = subprocess.run(
            [*command, "--target", str(target), wanted, "flatbuffers"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable((done.stderr.strip().splitlines() or ["pip failed"])[-1])
        target.rename(PACKAGES)


def _root(folder: Path, cpu: str) -> Path:
    """Where QEMU looks for files first: the emulated Python's libraries, and one core of the CPU."""
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)
    features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
    if cpu not in ("cortex-a53", "cortex-a72"):
        features += " atomics fphp asimdhp asimdrdm lrcpc asimddp"
    if cpu == "max":
        features += " i8mm bf16"
    core = "sys/devices/system/cpu/cpu0"
    files = {
        "proc/cpuinfo": f"processor\t: 0\nBogoMIPS\t: 100.00\nFeatures\t: {features}\nCPU implementer\t: 0x41\n"
        f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {PARTS[cpu]:#x}\nCPU revision\t: 1\n",
        **{f"sys/devices/system/cpu/{name}": "0\n" for name in ("possible", "present", "online", "kernel_max")},
        f"{core}/cpufreq/cpuinfo_max_freq": "2400000\n",
        f"{core}/cpufreq/cpuinfo_min_freq": "1500000\n",
        f"{core}/topology/physical_package_id": "0\n",
        **{f"{core}/topology/{name}": "0\n" for name in ("core_siblings_list", "cluster_cpus_list")},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
