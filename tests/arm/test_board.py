"""What a user does on a board: files built here are loaded, refused and run by Python for aarch64, CPU by CPU."""

import json
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.cpus import ARM_CPUS
from qnn_ext.targets.names import make_target, required_features

from . import board

pytestmark = [
    pytest.mark.skipif(host_architecture() == "aarch64", reason="this machine runs such code itself"),
    pytest.mark.usefixtures("emulated"),
]
DATA = Path(qnn_ext.__file__).parent / "data"
DIGIT = board.REPOSITORY / "tutorials" / "digit.png"
EVERYWHERE = ["rpi4", "rpi5", "graviton3", "x86-64"]

RUN = """
import json, sys
import numpy as np
import qnn_ext

found = {}
for path in sys.argv[2:]:
    try:
        engine = qnn_ext.load(path)
        found[path] = engine.target["mcpu"], np.ravel(engine(np.load(sys.argv[1]))).tolist()
    except qnn_ext.QnnError as error:
        found[path] = type(error).__name__, str(error)
print(json.dumps([found, "tvm" in sys.modules]))
"""


@pytest.fixture(scope="module")
def emulated():
    board.require()


@pytest.fixture(scope="module")
def files(tmp_path_factory, emulated):
    """A model built for several CPUs, each alone and all in one file; an input, and the oracle's output for it."""
    folder = tmp_path_factory.mktemp("board")
    module = qnn_ext.from_tflite(DATA / "digits_cnn_uint8.tflite")
    for target in (*EVERYWHERE, "armv7"):
        qnn_ext.build(module, target).save(folder / f"{target}.qnn")
    qnn_ext.build(module, EVERYWHERE).save(folder / "everywhere.qnn")
    x = np.random.default_rng(7).integers(0, 256, module.inputs[0].shape).astype(np.uint8)
    np.save(folder / "x.npy", x)
    return folder, np.ravel(qnn_ext.Interpreter(module)(x)).tolist()


@pytest.mark.parametrize(
    "cpu, runs, best",
    [
        ("cortex-a53", {"rpi4"}, "cortex-a72"),
        ("cortex-a76", {"rpi4", "rpi5"}, "cortex-a76"),
        ("max", {"rpi4", "rpi5", "graviton3"}, "neoverse-v1"),
    ],
)
def test_files_are_run_or_refused(files, cpu, runs, best):
    """A CPU runs what it can and names what it lacks for the rest; of several targets it takes the fastest. Loading
    imports no compiler."""
    folder, expected = files
    names = [*EVERYWHERE, "armv7", "everywhere"]
    done = board.python(cpu, "-c", RUN, folder / "x.npy", *(folder / f"{name}.qnn" for name in names))
    assert done.returncode == 0, done.stderr
    found, compiler = json.loads(done.stdout)
    assert not compiler
    for name in names:
        first, second = found[str(folder / f"{name}.qnn")]
        if name in runs:
            assert (first, second) == (make_target(name).attrs["mcpu"], expected)
        elif name == "everywhere":
            assert (first, second) == (best, expected)
        elif name in ARM_CPUS and name != "armv7":
            assert first == "TargetError" and second.startswith("built for a CPU with ") and "'aarch64'" in second
        else:
            wanted = "arm" if name == "armv7" else "x86_64"
            assert first == "TargetError" and f"built for {wanted}, but this machine is aarch64" in second


def test_the_command_line_runs_there(files):
    folder, _ = files
    here = qnn_ext.from_tflite(DATA / "digits_cnn_uint8.tflite")
    done = board.qnn_ext_command("cortex-a72", "run", folder / "everywhere.qnn", "--input", DIGIT, "--json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["outputs"][0]["top"][0]["index"] == 3, "the digit of the picture"
    assert result["outputs"][0]["name"] == here.outputs[0].name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76", "neoverse-n1", "max"])
def test_a_cpu_tells_its_features(cpu):
    """LLVM's model of a CPU has no more than the CPU itself reports, or code for `native` would not run."""
    done = board.python(
        cpu, "-c", "from qnn_ext.targets.host import *; print(host_architecture(), *sorted(host_features()))"
    )
    architecture, *features = done.stdout.split()
    assert architecture == "aarch64"
    if cpu == "max":
        assert {"neon", "dotprod", "i8mm", "sve", "fullfp16"} <= set(features)
    else:
        assert features == required_features(make_target(cpu))
