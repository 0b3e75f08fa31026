"""Tutorial 18: a model without Python: a C library.

    python tutorials/18_c_library.py

A compiled model is one function over one block of memory, with its weights in one array. Here it becomes a C library,
and programs in C, C++ and plain Python call it: none of them needs this package, nor TVM. A C compiler (gcc) must be
installed.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext.targets.architectures import host_architecture

DATA = Path(qnn_ext.__file__).parent / "data"
folder = tempfile.TemporaryDirectory(prefix="qnn-ext-")
work = Path(folder.name)
if not (shutil.which("gcc") and shutil.which("make")):
    sys.exit("this tutorial needs a C compiler and make: apt-get install gcc make")

# 1. Export. On the command line: `qnn-ext compile digits_cnn_int8.tflite --emit c -o digits --shared`. Several targets
#    of one architecture go into one library, which picks the fastest that its CPU can run. `code=False`: no code for
#    Python.

module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
targets = ["avx2", "x86-64"] if host_architecture() == "x86_64" else ["native"]
engine = qnn_ext.build(module, targets, num_threads=1, code=False)
exported = engine.export_c(work / "digits", name="digits", shared=True)
print(*exported.files)

# 2. What it takes: code and weights where it is stored, the workspace and some stack where it runs.

for one in exported.library.compiled:
    size = one.size
    print(f"{one.target}: flash {size.flash + len(one.data)} B, RAM {one.workspace} B, stack about {size.stack} B")

# 3. The interface: one struct of pointers for the inputs, one for the outputs. Scales and zero points are constants.

header = (work / "digits" / "digits.h").read_text()
print(header[header.index("#define DIGITS_INPUT0_NAME") : header.index("/* What functions return")])


def run(*command: object) -> str:
    """What a program prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# 4. `make` builds an example that reads and writes files of raw bytes. It needs nothing but a C compiler.

with np.load(DATA / "digits_test.npz") as arrays:
    image = module.inputs[0].qparams.quantize(arrays["x"][:1].reshape(1, 8, 8, 1).astype(np.float32) / 16)
    label = arrays["y"][0]
run("make", "-C", work / "digits")
(work / "image.bin").write_bytes(image.tobytes())
run(work / "digits" / "example", work / "image.bin", work / "scores.bin")
scores = np.fromfile(work / "scores.bin", np.int8)
print(f"digit {scores.argmax()}, should be {label}; scores {scores}")
np.testing.assert_array_equal(scores, qnn_ext.Interpreter(module)(image).ravel())

# 5. A program of one's own: a workspace, `digits_init` once, `digits_run` as often as wanted. What goes wrong is a
#    status.

(work / "main.c").write_text("""
#include <stdio.h>
#include "digits.h"

static _Alignas(DIGITS_ALIGNMENT) unsigned char workspace[DIGITS_WORKSPACE_BYTES];

int main(void) {
  static int8_t image[DIGITS_INPUT0_ELEMENTS], scores[DIGITS_OUTPUT0_ELEMENTS];
  digits_inputs inputs = {image};
  digits_outputs outputs = {scores};
  printf("%s\\n", digits_status_text(digits_run(workspace, &inputs, &outputs)));
  int status = digits_init(workspace, sizeof workspace);
  if (!status) status = digits_run(workspace, &inputs, &outputs);
  printf("%s, on %s: %.3f\\n", digits_status_text(status), digits_target(workspace),
         DIGITS_OUTPUT0_SCALE * (scores[0] - DIGITS_OUTPUT0_ZERO_POINT));
  return status;
}
""")
libraries = ["-lm"] if exported.library.needs_libm else []
run("gcc", f"-I{work / 'digits'}", work / "main.c", work / "digits" / "libdigits.a", *libraries, "-o", work / "main")
print(run(work / "main"))

# 6. Python with NumPy alone. The library loads in microseconds, as nothing is unpacked or compiled.

np.save(work / "image.npy", image)
print(
    run(
        sys.executable,
        "-c",
        "import sys, numpy as np\n"
        "sys.modules['tvm'] = sys.modules['qnn_ext'] = None  # they cannot be imported\n"
        f"sys.path.insert(0, {str(work / 'digits')!r})\n"
        "from digits import Model, OUTPUTS\n"
        f"(scores,) = Model()(np.load({str(work / 'image.npy')!r}))\n"
        "print('digit', scores.argmax(), OUTPUTS[0])",
    )
)

# 7. C++: `digits.hpp` has a class whose inputs and outputs are spans of the workspace, so that nothing is copied.

lines = (work / "digits" / "digits.hpp").read_text().splitlines()
print(*(line.strip() for line in lines if line.startswith("  std::span<")), sep="\n")

folder.cleanup()
