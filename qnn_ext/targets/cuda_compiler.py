"""CUDA source to PTX, binaries and machine code, with nvcc or NVRTC; no GPU is needed, and nothing imports TVM.

The flags EXACT are used everywhere. By default TVM compiles with --use_fast_math, and nvcc contracts a·b + c into one
operation that rounds once; both change the results of a requantization.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..errors import TargetError
from ..processes.children import run
from . import gpus as gpu

EXACT = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Every float operation follows IEEE 754: a fused multiply-add only where the source says __fmaf_rn, denormals kept,
quotients and roots correctly rounded. nvcc and NVRTC take the same flags."""

MARK = "// qnn_ext: compile with " + " ".join(EXACT) + "\n"
"""The first line of the sources that this package generates; all other sources keep TVM's flags."""

OLDEST_OF_13 = 75
"""CUDA 13 compiles for this architecture and newer ones, CUDA 12 for sm_50 and newer."""

_MISSING = (
    "needs nvcc (CUDA toolkit; on PATH or under CUDA_HOME) or NVRTC (pip install nvidia-cuda-nvrtc), and neither was "
    "found"
)


def available() -> str | None:
    """What compiles CUDA source here: the path of nvcc, or "NVRTC"; None if there is neither."""
    return _tool("nvcc") or ("NVRTC" if _nvrtcs() else None)


def source_of(module: Any) -> str:
    """The CUDA source in a compiled module of TVM, including its imports; empty if there is none."""
    own = [module.inspect_source("cuda")] if module.kind == "cuda" else []
    return "\n".join([*own, *filter(None, map(source_of, module.imports))])


def ptx(source: str, architecture: str) -> str:
    """The source as PTX of "sm_80" or another architecture. Raises TargetError."""
    return _compiled(source, architecture, "ptx").decode().rstrip("\0")


def binary(source: str, architecture: str) -> bytes:
    """What the driver loads on GPUs of this architecture or newer: machine code and PTX; only PTX with NVRTC."""
    return _compiled(source, architecture, "fatbin")


def machine_code(source: str, architecture: str) -> str:
    """The source as SASS, the GPU's own instructions. Raises TargetError if no disassembler is found."""
    tool = _tool("nvdisasm") or _tool("cuobjdump")
    if tool is None:
        raise TargetError(
            "showing a GPU's machine code needs nvdisasm or cuobjdump (CUDA toolkit, or pip install "
            "nvidia-cuda-nvdisasm); engine.source('ptx') needs neither"
        )
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        cubin = Path(folder) / "kernels.cubin"
        cubin.write_bytes(_compiled(source, architecture, "cubin"))
        options = ["-c"] if "nvdisasm" in Path(tool).name else ["-sass"]
        done = run([tool, *options, str(cubin)])
    if done.returncode != 0:
        raise TargetError(f"{Path(tool).name} cannot read the machine code of {architecture}: {_last(done.stderr)}")
    return done.stdout


@lru_cache(maxsize=8)
def _compiled(source: str, architecture: str, form: str) -> bytes:
    number = gpu.version_of(architecture)
    version = str(number) + architecture.removeprefix("sm_").lstrip("0123456789")
    nvcc, nvrtc = _tool("nvcc"), _nvrtc(number)
    if nvcc is not None and _nvcc_knows(nvcc, version):
        return _by_nvcc(nvcc, source, version, form)
    if nvrtc is not None:
        return _by_nvrtc(nvrtc, source, version, form)
    if nvcc is None and not _nvrtcs():
        raise TargetError(f"compiling CUDA source {_MISSING}")
    remedy = (
        "; pip install nvidia-cuda-nvrtc-cu12: CUDA 13 does not support GPUs before sm_75"
        if number < OLDEST_OF_13
        else ""
    )
    raise TargetError(f"the CUDA compilers here cannot compile for {architecture}{remedy}")


def _last(text: str) -> str:
    """The first line of a compiler's output that reports an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower() or "fatal" in line.lower()), lines[0] if lines else ""
    )


# ---- nvcc --------------------------------------------------------------------------------------------------------


def _tool(name: str) -> str | None:
    """A program of the CUDA toolkit: on PATH, under CUDA_HOME or CUDA_PATH, in Linux's usual place, or from pip."""
    roots = [os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(root) / "bin" for root in (*roots, "/usr/local/cuda") if root]
    folders += [folder / "bin" for folder in _packages()]
    return shutil.which(name) or next(
        (found for path in folders if (found := shutil.which(name, path=str(path)))), None
    )


def _packages() -> Iterator[Path]:
    """The folders of NVIDIA's pip packages."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(root).iterdir(), reverse=True)


@cache
def _nvcc_knows(nvcc: str, version: str) -> bool:
    done = run([nvcc, "--list-gpu-code"])
    return done.returncode != 0 or f"sm_{version}" in done.stdout.split()


def _by_nvcc(nvcc: str, source: str, version: str, form: str) -> bytes:
    real, virtual = f"code=sm_{version}", f"code=compute_{version}"
    kinds = {"ptx": [virtual], "cubin": [real], "fatbin": [real, virtual]}[form]
    codes = [f"--generate-code=arch=compute_{version},{kind}" for kind in kinds]
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        code, result = Path(folder) / "kernels.cu", Path(folder) / f"kernels.{form}"
        code.write_text(source)
        command = [nvcc, f"--{form}", "-O3", "--disable-warnings", *codes, *EXACT, str(code), "-o", str(result)]
        done = run(command)
        if done.returncode != 0:
            raise TargetError(f"nvcc cannot compile for sm_{version}: {_last(done.stderr + done.stdout)}")
        return result.read_bytes()


# ---- NVRTC -------------------------------------------------------------------------------------------------------

_SIGNED = ("signed char", "short", "int", "long", "long long")
_UNSIGNED = ("unsigned char", "unsigned short", "unsigned int", "unsigned long", "unsigned long long", "bool")
_TRAITS = {
    "is_integral": (*_SIGNED, *_UNSIGNED, "char"),
    "is_signed": (*_SIGNED, "char", "float", "double"),
    "is_unsigned": _UNSIGNED,
    "is_floating_point": ("float", "double"),
}


def _in_std(lines: Sequence[str]) -> str:
    return "namespace cuda { namespace std {\n" + "\n".join(lines) + "\n} }\n"


def _headers() -> dict[str, str]:
    """The headers that sources include with NVRTC. The real ones are a separate package; these cover what is used."""
    widths = {8: "char", 16: "short", 32: "int", 64: "long long"}
    integers = [f"typedef signed {name} int{bits}_t;" for bits, name in widths.items()]
    integers += [f"typedef unsigned {name} uint{bits}_t;" for bits, name in widths.items()]
    traits = [
        "template <bool B> struct bool_constant { static constexpr bool value = B; };",
        "template <class A, class B> struct is_same : bool_constant<false> {};",
        "template <class A> struct is_same<A, A> : bool_constant<true> {};",
        "template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;",
        "template <bool B, class A = void> struct enable_if {};",
        "template <class A> struct enable_if<true, A> { typedef A type; };",
        "template <bool B, class X, class Y> struct conditional { typedef X type; };",
        "template <class X, class Y> struct conditional<false, X, Y> { typedef Y type; };",
    ]
    for trait, types in _TRAITS.items():
        traits.append(f"template <class A> struct {trait} : bool_constant<false> {{}};")
        traits += [f"template <> struct {trait}<{name}> : bool_constant<true> {{}};" for name in types]
    infinities = {"INF_F": "int_as_float(0x7f800000)", "NAN_F": "int_as_float(0x7fffffff)"}
    infinities |= {"INF": "longlong_as_double(0x7ff0000000000000LL)", "NAN": "longlong_as_double(-1LL)"}
    return {
        "cuda/std/cstdint": _in_std(integers),
        "cuda/std/type_traits": _in_std(traits),
        "math_constants.h": "".join(f"#define CUDART_{name} __{value}\n" for name, value in infinities.items()),
        "sm_61_intrinsics.h": "",  # for __dp4a, which is built into NVRTC
    }


@cache
def _nvrtcs() -> list[Any]:
    """NVRTC's libraries, newest first: those the loader finds, and those from pip."""
    names = [f"libnvrtc.so.{major}" for major in (13, 12)]
    if sys.platform == "win32":
        names = [f"nvrtc64_{major}0_0.dll" for major in (130, 120)]
    found = []
    for name in names:
        for candidate in (name, *(str(path) for folder in _packages() for path in folder.glob(f"*/{name}"))):
            try:
                found.append(ctypes.CDLL(candidate))
                break
            except OSError:
                continue
    return found


@cache
def _nvrtc(architecture: int) -> Any:
    """The newest NVRTC that compiles for an architecture, such as 80 (each drops old ones), or None."""
    for nvrtc in _nvrtcs():
        count = ctypes.c_int()
        nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        nvrtc.nvrtcGetSupportedArchs(known)
        if architecture in known:
            return nvrtc
    return None


def _by_nvrtc(nvrtc: Any, source: str, version: str, form: str) -> bytes:
    """Compile with NVRTC. It writes no fat binaries; the result is then PTX, which the driver compiles at load."""
    program = ctypes.c_void_p()
    headers = _headers()
    names, texts = (_strings(values) for values in (list(headers), list(headers.values())))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", len(headers), texts, names)
    prefix = "sm" if form == "cubin" else "compute"
    options = _strings([f"--gpu-architecture={prefix}_{version}", "--disable-warnings", *EXACT])
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), options) != 0:
            log = _read(nvrtc, program, "ProgramLog").decode(errors="replace")
            raise TargetError(f"NVRTC cannot compile for sm_{version}: {_last(log)}")
        return _read(nvrtc, program, "CUBIN" if form == "cubin" else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


def _read(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


# ---- when a model is loaded --------------------------------------------------------------------------------------

_binaries: dict[str, bytes] = {}  # by the digest of their source


def digest(source: str) -> str:
    """The digest that identifies a source."""
    return hashlib.sha256(source.encode()).hexdigest()


def keep(source_digest: str, compiled: bytes) -> None:
    """Use `compiled` for the source with this digest, instead of compiling it when it is loaded."""
    _binaries[source_digest] = compiled


def on_load(source: str, architecture: str | None, other: Callable[[str], Any] | None) -> Any:
    """The binary of a module's source for this machine's GPU, or for `architecture` if that is newer.

    Sources that this package did not generate are compiled by `other`.
    """
    compiled = _binaries.get(digest(source))
    if compiled is not None:
        return compiled
    if not source.startswith(MARK) and other is not None:
        return other(source)
    here = gpu.architecture_of("cuda")
    newer = architecture is not None and gpu.version_of(architecture) > gpu.version_of(here)
    return binary(source, architecture if newer and architecture is not None else here)


def kernel_names(source: str) -> list[str]:
    """The kernels that a source defines."""
    return list(dict.fromkeys(re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source)))
