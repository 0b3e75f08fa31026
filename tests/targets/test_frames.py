"""The stack of functions against what GCC says of its own code."""

import shutil
import subprocess

import pytest

from qnn_ext.targets.elf import Object
from qnn_ext.targets.frames import code_size, frames_of

COMPILERS = {
    "x86_64": ["gcc"],
    "aarch64": ["aarch64-linux-gnu-gcc"],
    "arm": ["arm-linux-gnueabihf-gcc", "-marm"],
    "thumb": ["arm-linux-gnueabihf-gcc", "-mthumb"],
    "riscv64": ["riscv64-linux-gnu-gcc"],
}
SOURCE = """
void use(void *);
int flat(int a) { char b[SIZE]; use(b); return b[a]; }
double deep(double a, int n) {
  volatile double b[SIZE / 8];
  for (int i = 0; i < n; ++i) b[i] = a * i;
  use((void *)b);
  return b[n] * a;
}
int leaf(int a) { return a + 1; }
"""


@pytest.mark.parametrize("architecture", COMPILERS)
def test_gccs_own_figures(architecture, tmp_path):
    command = COMPILERS[architecture]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} not found: python -m scripts.emulators")
    (tmp_path / "code.c").write_text(SOURCE)
    for size in (64, 200, 1000, 3000, 5000, 20000):
        options = ["-O2", "-fno-stack-protector", "-fstack-usage", f"-DSIZE={size}", "-c", "code.c", "-o", "code.o"]
        subprocess.run([*command, *options], cwd=tmp_path, check=True)
        rows = [line.split("\t") for line in (tmp_path / "code.su").read_text().splitlines()]
        expected = {row[0].split(":")[-1]: int(row[1]) for row in rows}
        file = Object((tmp_path / "code.o").read_bytes())
        assert frames_of(file) == expected
        assert file.undefined == ["_GLOBAL_OFFSET_TABLE_", "use"] or file.undefined == ["use"]
        found = code_size([file], ["leaf"])
        assert found.stack == expected["leaf"] + max(expected["flat"], expected["deep"])
        assert found.chain[0] == "leaf" and found.flash >= found.largest > 0
