"""Tutorial 6: CPUs by name, and one file that runs at full speed on all of them.

    python tutorials/06_targets.py

A model is compiled for a family of CPUs, on any machine. A CPU that lacks its instructions refuses it before running.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pictures
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import qnn_ext
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.names import CPU_FAMILIES

DATA = Path(qnn_ext.__file__).parent / "data"
module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
image = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
expected = qnn_ext.Interpreter(module)(image)

# 1. A family is named after the instructions that matter to integer kernels. All give the same bits.

times: dict[str, float] = {}
for family in CPU_FAMILIES:
    engine = qnn_ext.build(module, target=family, num_threads=1)
    kernels = sorted({kernel.implementation for kernel in engine.kernels if "conv2d_nhwc" in kernel.implementation})
    try:
        np.testing.assert_array_equal(engine(image), expected)
        times[family] = engine.time().best
        answer = f"the interpreter's bits in {1e6 * times[family]:.2f} µs"
    except qnn_ext.TargetError as error:  # it is compiled nevertheless, for another machine
        answer = str(error).split(";")[0]
    print(f"{family:12} {', '.join(kernels)}: {answer}")

# What to look at: the fewer multiplications an instruction makes at once, the longer the bar. On this machine:

pictures.bars(list(times), [1e6 * seconds for seconds in times.values()], "microseconds a call, on one thread")

# 2. One file for several targets. It holds the model once for each of them, fastest first.

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
path = folder / "digits.qnn"
targets = ["avx512_vnni", "avx2", "x86-64"]
if host_architecture() != "x86_64":
    targets.append("native")
qnn_ext.build(module, target=targets, num_threads=1).save(path)

# 3. `load` takes the first that this CPU can run; the others are not even unpacked.

loaded = qnn_ext.load(path)
print("inside:", ", ".join(target.get("mcpu", "?") for target in loaded.variants), "| runs:", loaded.target["mcpu"])
np.testing.assert_array_equal(loaded(image), expected)

# 4. A process that only runs compiled models imports neither TVM's compiler nor a framework: it starts in a
#    fraction of a second and takes little more memory than NumPy and the model.

script = f"import sys, qnn_ext; qnn_ext.load({str(path)!r}); print('tvm imported:', 'tvm' in sys.modules)"
subprocess.run([sys.executable, "-c", script], check=True)

# 5. The file holds machine code. Its distributor can sign it; users with the public key then load nothing else.
#    This takes pip install 'qnn-ext[sign]'. Keys may also be PEM files, see README for how to make them.

private = Ed25519PrivateKey.generate()
qnn_ext.build(module, num_threads=1).save(path, sign=private)
np.testing.assert_array_equal(qnn_ext.load(path, verify=private.public_key())(image), expected)
try:
    qnn_ext.load(path, verify=Ed25519PrivateKey.generate().public_key())
except qnn_ext.ArtifactError as error:
    print("with another key:", str(error).partition(": ")[2])

# 6. The same on the command line.

for command in (
    ["qnn-ext", "compile", DATA / "digits_cnn_int8.tflite", "--target", ",".join(targets), "-o", path],
    ["qnn-ext", "inspect", path],
):
    print("$", *command, flush=True)
    subprocess.run(command, check=True)

temporary.cleanup()
