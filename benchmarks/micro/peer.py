"""TFLite Micro with CMSIS-NN as the other side of `benchmarks.micro`, compiled from sources that lie in a folder:

    tflite-micro/ cmsis-nn/ flatbuffers/ gemmlowp/     checkouts of these projects on GitHub

They are not part of this project; without them the table has no such rows. FlatBuffers has to be the version that
TFLite Micro's schema names. The options of the compiler are those of TFLite Micro's release build, and int8 operators
bring no kernels of other types, as its documentation advises.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.micro import boards
from tests.micro.boards import Board

HERE = Path(__file__).parent
PROJECTS = ("tflite-micro", "cmsis-nn", "flatbuffers", "gemmlowp")
ARENA = 192 << 10
"""More bytes than any of the models takes; what it takes the interpreter reports."""

OPERATORS = {
    "CONV_2D": ("AddConv2D(tflite::Register_CONV_2D_INT8())", "conv"),
    "DEPTHWISE_CONV_2D": ("AddDepthwiseConv2D(tflite::Register_DEPTHWISE_CONV_2D_INT8())", "depthwise_conv"),
    "FULLY_CONNECTED": ("AddFullyConnected(tflite::Register_FULLY_CONNECTED_INT8())", "fully_connected"),
    "AVERAGE_POOL_2D": ("AddAveragePool2D(tflite::Register_AVERAGE_POOL_2D_INT8())", "pooling"),
    "MAX_POOL_2D": ("AddMaxPool2D(tflite::Register_MAX_POOL_2D_INT8())", "pooling"),
    "SOFTMAX": ("AddSoftmax(tflite::Register_SOFTMAX_INT8())", "softmax"),
    "ADD": ("AddAdd(tflite::Register_ADD_INT8())", "add"),
    "RESHAPE": ("AddReshape()", "reshape"),
    "QUANTIZE": ("AddQuantize()", "quantize"),
    "DEQUANTIZE": ("AddDequantize()", "dequantize"),
}
"""What adds an operator to the resolver, and the stem of its kernel's files."""

_CORE = (
    "tensorflow/lite/micro",
    "tensorflow/lite/micro/arena_allocator",
    "tensorflow/lite/micro/memory_planner",
    "tensorflow/lite/micro/tflite_bridge",
    "tensorflow/lite/core/c",
    "tensorflow/lite/core/api",
    "tensorflow/compiler/mlir/lite/core/api",
    "tensorflow/compiler/mlir/lite/schema",
    "tensorflow/lite/schema",
    "tensorflow/lite/kernels/internal",
    "tensorflow/lite/kernels/internal/reference",
    "tensorflow/lite/kernels",
)
_CMSIS = (
    *("ConvolutionFunctions", "FullyConnectedFunctions", "PoolingFunctions", "SoftmaxFunctions", "NNSupportFunctions"),
    *("BasicMathFunctions", "ActivationFunctions", "PadFunctions", "TransposeFunctions", "LSTMFunctions"),
)
_LEFT_OUT = ("_test", "fake_", "debug_log.cc", "test_helpers", "hexdump", "mock_", "recording_", "system_setup")
_NO_RUY = (
    "#pragma once\nnamespace ruy { namespace profiler {\n"
    "struct ScopeLabel { template <typename... A> explicit ScopeLabel(A...) {} };\n} }\n"
)


def missing(sources: Path) -> str:
    """Which of the projects are not in the folder; empty if all are."""
    absent = [name for name in PROJECTS if not (sources / name).is_dir()]
    return f"{', '.join(absent)} not in {sources}" if absent else ""


def compiled(sources: Path, board: Board, folder: Path) -> Path:
    """TFLite Micro and CMSIS-NN for a board as one library."""
    library = folder / "libpeer.a"
    if library.exists():
        return library
    stub = folder / "stub" / "ruy" / "profiler"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "instrumentation.h").write_text(_NO_RUY)
    micro, cmsis = sources / "tflite-micro", sources / "cmsis-nn"
    files = [path for part in _CORE for path in sorted((micro / part).glob("*.cc"))]
    kernels = micro / "tensorflow/lite/micro/kernels"
    for stem in dict.fromkeys(stem for _, stem in OPERATORS.values()):
        special = kernels / "cmsis_nn" / f"{stem}.cc"
        files += [special if special.exists() else kernels / f"{stem}.cc"]
        files += [path for path in [kernels / f"{stem}_common.cc"] if path.exists()]
    files += [kernels / "kernel_util.cc", kernels / "micro_tensor_utils.cc"]
    files = [path for path in files if path.exists() and not any(word in path.name for word in _LEFT_OUT)]
    cmsis_files = [path for part in _CMSIS for path in sorted((cmsis / "Source" / part).glob("*.c"))]
    files += [path for path in cmsis_files if "_f16" not in path.stem and "_f32" not in path.stem]
    with ThreadPoolExecutor(2) as workers:
        objects = list(workers.map(lambda item: _object(item, sources, board, folder), enumerate(files)))
    subprocess.run(["arm-none-eabi-ar", "rcs", library, *objects], check=True)
    return library


def options(sources: Path, board: Board, folder: Path) -> list[str]:
    """The compiler's options for a file of C++."""
    includes = [sources / "tflite-micro", sources / "cmsis-nn", sources / "cmsis-nn" / "Include", folder / "stub"]
    includes += [sources / "flatbuffers" / "include", sources / "gemmlowp", boards.HERE]
    machine = [f"-mcpu={board.cpu}", "-mthumb", f"-mfloat-abi={'hard' if board.hard else 'soft'}", "-w"]
    sections = ["-ffunction-sections", "-fdata-sections", "-fsigned-char"]
    release = ["-DNDEBUG", "-DTF_LITE_STATIC_MEMORY", "-DTF_LITE_STRIP_ERROR_STRINGS", "-DCMSIS_NN"]
    return [*machine, *sections, *release, *(f"-I{path}" for path in includes)]


_CPP = ["-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics", "-fno-unwind-tables", "-nostdlib"]


def _object(item: tuple[int, Path], sources: Path, board: Board, folder: Path) -> Path:
    number, file = item
    output = folder / (f"peer{number}.o" if file.suffix == ".cc" else f"{file.stem}.o")
    if output.exists():
        return output
    language = _CPP if file.suffix == ".cc" else ["-std=c99"]
    level = "-O2" if file.is_relative_to(sources / "cmsis-nn") or "micro/kernels" in file.as_posix() else "-Os"
    command = ["arm-none-eabi-g++" if file.suffix == ".cc" else "arm-none-eabi-gcc", *options(sources, board, folder)]
    done = subprocess.run([*command, *language, level, "-c", file, "-o", output], capture_output=True, text=True)
    if done.returncode:
        raise boards.BoardError(f"{file}: {done.stderr[-2000:]}")
    return output


def link(
    sources: Path,
    board: Board,
    built: Path,
    model: Path,
    operators: Sequence[str],
    library: Path,
    folder: Path,
    calls: int,
) -> Path:
    """A program that runs the model `calls` times; with none it reports the bytes of its arena."""
    (folder / "model.s").write_text(
        f'.section .rodata\n.global model_data\n.balign 16\nmodel_data: .incbin "{model}"\n'
    )
    added = " ".join(f"resolver.{OPERATORS[operator][0]};" for operator in operators)
    memory = {"FLASH": board.flash[0], "FLASH_SIZE": board.flash[1], "RAM": board.ram[0], "RAM_SIZE": board.ram[1]}
    places = ",".join(f"--defsym={name}={value}" for name, value in memory.items())
    start, main, program = folder / "start.o", folder / "peer_main.o", folder / f"peer{calls}.elf"
    arguments = options(sources, board, built)
    definitions = [f"-DOPERATORS={added}", f"-DARENA={ARENA}", f"-DCALLS={calls}"]
    steps = [
        ["arm-none-eabi-gcc", *arguments, "-O2", "-ffreestanding", "-c", boards.HERE / "start.c", "-o", start],
        ["arm-none-eabi-g++", *arguments, *_CPP[:-1], "-O2", *definitions, "-c", HERE / "peer.cc", "-o", main],
        ["arm-none-eabi-g++", *arguments, "-nostartfiles", main, start, folder / "model.s", library]
        + [
            "-T",
            boards.HERE / "start.ld",
            f"-Wl,{places}",
            "-Wl,--gc-sections",
            "--specs=nano.specs",
            "--specs=nosys.specs",
            "-lm",
            "-lc",
            "-lgcc",
            "-o",
            program,
        ],
    ]
    for step in steps:
        done = subprocess.run(list(map(str, step)), capture_output=True, text=True)
        if done.returncode:
            raise boards.BoardError(done.stderr[-3000:])
    return program
