"""Tutorial 19: keyword spotting on a microcontroller.

    python tutorials/19_microcontroller.py [KEYWORDS.tflite FEATURES.npy]

From a .tflite to the printed word on a Cortex-M4, which QEMU emulates: a chip without an operating system, with less
memory than a picture takes. Given the model of MLPerf Tiny for keywords, it hears one; otherwise it takes the bundled
one for handwritten digits, whose words are "zero" to "nine". Needed are qemu-system-arm and arm-none-eabi-gcc
(`python -m scripts.emulators`).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import qnn_ext

ROOT = Path(__file__).parents[1]
DATA = Path(qnn_ext.__file__).parent / "data"
WORDS = ["down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes", "silence", "unknown"]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

folder = tempfile.TemporaryDirectory(prefix="qnn-ext-")
work = Path(folder.name)
if not (shutil.which("qemu-system-arm") and shutil.which("arm-none-eabi-gcc")):
    print("this tutorial needs qemu-system-arm and arm-none-eabi-gcc: python -m scripts.emulators")
    sys.exit(0)

# 1. The model and something to recognize: features of one second of sound, or a digit. `numerics="tflite"` gives the
#    results of LiteRT's reference kernels bit for bit, and TFLite Micro's; it takes no floating point.

if len(sys.argv) == 3:
    path, words = Path(sys.argv[1]), WORDS
    features = np.load(sys.argv[2])
else:
    path, words = DATA / "digits_cnn_int8.tflite", DIGITS
    with np.load(DATA / "digits_test.npz") as arrays:
        image = arrays["x"][:1].reshape(1, 8, 8, 1).astype(np.float32) / 16
    features = qnn_ext.from_tflite(path, numerics="tflite").inputs[0].qparams.quantize(image)
module = qnn_ext.from_tflite(path, numerics="tflite")

# 2. A C library for the chip. On the command line:
#    `qnn-ext compile kws_ref_model.tflite --target cortex-m4 --numerics tflite --emit c --name spotter -o spotter`

engine = qnn_ext.build(module, target="cortex-m4", code=False)
exported = engine.export_c(work, name="spotter")
(one,) = exported.library.compiled
print(f"flash {one.size.flash + len(one.data):,} B, arena {one.workspace:,} B, stack about {one.size.stack} B")

# 3. The program: no heap, no files, no operating system. Here the features are constants; on a chip they come from the
#    microphone. `start.c` has the vectors and the console of the emulator, which a board's own support replaces.

numbers = ", ".join(map(str, features.reshape(-1)))
names = ", ".join(f'"{word}"' for word in words)
(work / "main.c").write_text(f"""
#include "spotter.h"
#include "start.h"

static _Alignas(SPOTTER_ALIGNMENT) unsigned char workspace[SPOTTER_WORKSPACE_BYTES];
static const SPOTTER_INPUT0_TYPE features[] = {{{numbers}}};
static const char *const words[] = {{{names}}};

int main(void) {{
  const spotter_inputs inputs = {{features}};
  spotter_outputs outputs = {{0}};
  if (spotter_init(workspace, sizeof workspace) || spotter_run(workspace, &inputs, &outputs)) return 1;
  const SPOTTER_OUTPUT0_TYPE *scores = spotter_output(workspace, 0);
  int best = 0;
  for (int i = 1; i < SPOTTER_OUTPUT0_ELEMENTS; ++i)
    if (scores[i] > scores[best]) best = i;
  say(words[best]);
  say("\\n");
  return 0;
}}
""")

# 4. Compile, link and run.

SUPPORT = ROOT / "tests" / "micro"
memory = "--defsym=FLASH=0,--defsym=FLASH_SIZE=1M,--defsym=RAM=0x20000000,--defsym=RAM_SIZE=256K"
core = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-O2", "-ffreestanding", "-nostartfiles"]
sources = [work / "main.c", work / "spotter.c", SUPPORT / "start.c", *work.glob("spotter_*.o")]
script = ["-T", SUPPORT / "start.ld", f"-Wl,{memory},--gc-sections,-z,noexecstack", "-lc", "-lgcc"]


def run(*command: object) -> str:
    """What a program prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


run("arm-none-eabi-gcc", *core, f"-I{SUPPORT}", *sources, *script, "-o", work / "spotter.elf")
emulator = ["qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "none"]
word = run(*emulator, "-semihosting", "-kernel", work / "spotter.elf").strip()
print("heard:", word)

# 5. It is the word of the oracle, the same model computed here operator by operator.

scores = qnn_ext.Interpreter(module)(features)
assert word == words[int(scores.argmax())]
folder.cleanup()
