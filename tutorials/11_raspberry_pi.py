"""Tutorial 11: deploy to a Raspberry Pi, or to any other ARM board or server.

    python tutorials/11_raspberry_pi.py

A model is compiled and linked here, copied to the board and run there. If QEMU and Python for aarch64 are installed
(`python -m scripts.emulators` sets them up), it runs on emulated boards at the end.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
module = qnn_ext.from_tflite(DATA / "digits_cnn_uint8.tflite")
image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 1), dtype=np.uint8)
expected = qnn_ext.Interpreter(module)(image)

# 1. A board's name says which CPU it has and how many cores. Cortex-A53 and A72 have widening multiplications: smull
#    and smlal. The Cortex-A76 of a Raspberry Pi 5 has dot products, sdot. All need signed activations: this model's
#    unsigned ones are made signed, which only changes zero points.

BOARDS = {"rpi3": "cortex-a53", "rpi4": "cortex-a72", "rpi5": "cortex-a76"}
PRODUCTS = re.compile(r"^\t(sdot|smmla|smlal2?|smull2?|mla)\t", re.MULTILINE)

engines = {}
for board, cpu in BOARDS.items():
    engine = engines[board] = qnn_ext.build(module, target=board)
    assert engine.target["mcpu"] == cpu and engine.target["num-cores"] == 4
    found = Counter(PRODUCTS.findall(engine.source("asm")))
    memory = engine.memory
    print(f"{board} ({cpu}): {', '.join(f'{count} {name}' for name, count in found.most_common())}")
    print(f"    weights {memory.weights} bytes, feature maps {memory.feature_maps} bytes")

# 2. This machine cannot run that code, and says so instead of trying.

try:
    np.testing.assert_array_equal(engines["rpi4"](image), expected)
    print("this machine runs it: it is an ARM one")
except qnn_ext.TargetError as error:
    print("here:", error)

# 3. A file is linked with a cross compiler: g++-aarch64-linux-gnu, zig (pip install ziglang) or clang. A file for
#    several boards uses on each the fastest code that its CPU can run.

with tempfile.TemporaryDirectory() as name:
    path = Path(name) / "digits.qnn"
    try:
        qnn_ext.build(module, target=list(BOARDS)).save(path)
    except qnn_ext.ArtifactError as error:
        print(f"compiled, but not linked: {error}")
        sys.exit()
    print(f"{path.name}: {path.stat().st_size} bytes for {', '.join(BOARDS)}")

    # 4. The board, with 64-bit Raspberry Pi OS or any Linux with Python 3.10 to 3.13, needs this package and what pip
    #    installs with it: the official wheel of TVM for aarch64. No compiler, no frontend.

    print("""
    scp digits.qnn photo.png pi@raspberrypi.local:
    ssh pi@raspberrypi.local
    python3 -m venv qnn && . qnn/bin/activate && pip install <this repository>
    qnn-ext run digits.qnn --input photo.png
    qnn-ext bench digits.qnn --profile
    """)

    # 5. The same on emulated boards: the same bits on each, and each runs what was built for it or for less.

    root, site = (Path(sys.prefix) / "arm" / folder for folder in ("root", "site"))
    python = next(iter((root / "usr" / "bin").glob("python3.??")), None)
    if python is None or not site.is_dir() or not shutil.which("qemu-aarch64"):
        print("no emulated board: python -m scripts.emulators sets one up")
        sys.exit()
    script = (
        "import json, sys, numpy, qnn_ext; engine = qnn_ext.load(sys.argv[1]); "
        "x = numpy.array(json.loads(sys.argv[2]), numpy.uint8).reshape(engine.inputs[0].shape); "
        "print(json.dumps([engine.target['mcpu'], engine(x).ravel().tolist()]))"
    )
    packages = os.pathsep.join([str(site), str(Path(qnn_ext.__file__).parents[1])])
    for cpu in ("cortex-a53", "cortex-a72", "cortex-a76"):
        command = [
            "qemu-aarch64",
            "-cpu",
            cpu,
            "-L",
            root,
            python,
            "-c",
            script,
            path,
            json.dumps(image.ravel().tolist()),
        ]
        environment = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        target, output = json.loads(answer)
        np.testing.assert_array_equal(np.reshape(output, expected.shape), expected)
        print(f"emulated {cpu}: runs the code for {target}, the interpreter's bits")

# 6. TVM has no wheel for 32-bit systems, so Python cannot load a model there. Code can still be compiled for them, with
#    target="armv7"; tests/arm/main.c shows the little that a C program needs to call it.
#
# 7. Kernels can be tuned on the board: see tutorial 10, with TVM's RPC server on the board, `--target rpi4` and
#    `--rpc`.
