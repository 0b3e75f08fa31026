"""CMake compiles a microcontroller's library with somebody's program, both ways of the guide, and that runs."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from tests.arm.test_models import digits
from tests.cases.bundled import DATA
from tests.micro import boards

GUIDE = Path(qnn_ext.__file__).parents[1] / "docs" / "guides" / "microcontrollers.md"
(IMPORTED,) = re.findall(r"^  ```cmake\n(.*?)^  ```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
"""Zephyr's lines, for whose target `app` an executable stands in."""

PROJECT = """
cmake_minimum_required(VERSION 3.13)
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_COMPILER {compiler})
set(CMAKE_C_FLAGS "-mcpu={cpu} -mthumb -mfloat-abi={abi} -O2 -ffreestanding")
project(mine C)
add_executable(app {sources})
target_compile_definitions(app PRIVATE {definitions})
target_include_directories(app PRIVATE {here})
target_link_options(app PRIVATE -nostartfiles -T {here}/start.ld -Wl,{places} -Wl,--no-warn-mismatch)
set_target_properties(app PROPERTIES C_STANDARD 11)
{library}
target_link_libraries(app PUBLIC m c gcc)
"""
ADDED = "add_subdirectory(digits)\ntarget_link_libraries(app PUBLIC digits)\n"


def project(firmware: boards.Firmware, library: str) -> str:
    board = firmware.board
    return PROJECT.format(
        compiler=boards.COMPILER,
        cpu=board.cpu,
        abi="hard" if board.hard else "soft",
        sources=f"{boards.HERE}/main.c {boards.HERE}/start.c",
        definitions=" ".join(f'"{one}"' for one in firmware.definitions),
        here=boards.HERE,
        places=boards.places(board),
        library=library,
    )


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m4", "m0plus", "m55"])
@pytest.mark.parametrize("library", [ADDED, IMPORTED], ids=["added", "imported"])
def test_cmake(library, board, tmp_path):
    boards.require()
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite", numerics="tflite")
    (image,) = digits(module, 1)
    chosen = boards.BOARDS[board]
    engine = qnn_ext.build(module, chosen.target, code=False)
    engine.export_c(tmp_path / "model", name="model")
    firmware = boards.Firmware(chosen, tmp_path, engine, calls=1)
    (tmp_path / "CMakeLists.txt").write_text(project(firmware, library.replace("digits", "model")))
    for command in (("-S", ".", "-B", "build"), ("--build", "build")):
        done = subprocess.run(["cmake", *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(tmp_path / "build" / "app", firmware.program)
    (found,) = firmware.run(image)
    np.testing.assert_array_equal(found, qnn_ext.Interpreter(module)(image))
