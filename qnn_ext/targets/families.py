"""The backends: x86, 64-bit and 32-bit ARM, its microcontrollers, 64-bit RISC-V, NVIDIA's GPUs, and any other CPU that
LLVM compiles for."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import instruction_sets
from .architectures import architecture_name, host_architecture
from .backend import ALWAYS, Backend, Caches, Product, RegisterFile

KIB = 1024

_FLOATS = ("float32", "float32")
_HALVES = ("float16", "float16")
_BFLOATS = ("bfloat16", "bfloat16")

# ---- x86 -----------------------------------------------------------------------------------------------------------

XMM, YMM, ZMM = RegisterFile(16, 16), RegisterFile(16, 32), RegisterFile(32, 64)
TILES = RegisterFile(8, 1024)
"""AMX's, of 16 rows of 64 bytes."""

_UNSIGNED = ("uint8", "int8")  # vpdpbusd; vpmaddubsw is deliberately left out: it saturates

X86 = Backend(
    name="x86",
    architecture="x86_64",
    triple="x86_64-unknown-linux-gnu",
    gnu="x86_64-linux-gnu",
    baseline="x86-64",
    fullest="sapphirerapids",
    needs=("64bit",),
    instruction_sets=instruction_sets.X86_64,
    products=(
        Product("tdpbusd", (("amx-tile", "amx-int8", "avx512bw"),), _UNSIGNED, TILES),
        Product("vpdpbusd_512", (("avx512vnni", "avx512bw"),), _UNSIGNED, ZMM),
        # one instruction, two encodings
        Product("vpdpbusd_256", (("avxvnni",), ("avx512vnni", "avx512vl")), _UNSIGNED, YMM),
        Product("vpmaddwd_512", (("avx512bw",),), None, ZMM),
        Product("vpmaddwd_256", (("avx2",),), None, YMM),
        Product("pmaddwd_128", (("sse2",),), None, XMM),
        Product("loops", ALWAYS, None, XMM),
    ),
    float_products=(
        Product("fma_512", (("avx512f",),), _FLOATS, ZMM),
        Product("fma_256", (("avx2", "fma"),), _FLOATS, YMM),
    ),
    # LLVM's last scheduler takes all registers of matrices to be alike. Where one is loaded again, it may load another
    # one instead that is not in use, whose configured size is another, or none: such an instruction ends the process.
    generates=(((("amx-tile",),), "cl-opt", "-disable-post-ra:bool=true"),),
    # Only AMD's CPUs have clzero: their vdpbf16ps is as fast as a multiply-add of half as many products, Intel's has a
    # quarter of that speed or, before Sapphire Rapids, half of it.
    bfloat16_products=(
        Product("tdpbf16ps", (("amx-tile", "amx-bf16", "avx512bw"),), _BFLOATS, TILES),
        Product("vdpbf16ps_512", (("avx512bf16", "avx512bw", "clzero"),), _BFLOATS, ZMM),
    ),
    registers=(((("avx512f",),), ZMM), ((("avx",),), YMM), (ALWAYS, XMM)),
    caches=Caches(32 * KIB, 1024 * KIB),  # those of Cascade Lake
    third_level=True,
    contracts=(("fma",),),
    lookups=(("avx512vbmi",),),
    segments=(("avx2",),),
    weaves=True,
    prefetches=True,
    stays_float=True,
    futex=("i64", 202),
    pause=("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    pauses=2000,  # of 10 to 90 ns
    clock="readcyclecounter",
)

I686 = replace(
    X86,
    name="i686",
    architecture="i686",
    triple="",
    gnu="",
    baseline="",
    fullest="haswell",
    needs=(),
    instruction_sets={},
    products=tuple(product for product in X86.products if product.registers is not TILES),
    float_products=(),
    generates=(),
    futex=("i32", 240),
    bfloat16_products=(),
    pause=("", ""),
    pauses=Backend.pauses,
    clock="readsteadycounter",
)
"""32-bit x86: such a CPU may lack SSE2, and with it the pause instruction; it has no AMX."""

# ---- ARM -----------------------------------------------------------------------------------------------------------

Q64, Q32 = RegisterFile(32, 16), RegisterFile(16, 16)

_SIGNED = ("int8", "int8")


def _arm_products(registers: RegisterFile) -> tuple[Product, ...]:
    """smmla, sdot and smlal, each about twice as fast as the next. All take signed operands: NEON without sdot widens
    to int16, also from int8, so that its kernels handle a single dtype."""
    return (
        Product("smmla", (("i8mm",),), _SIGNED, registers),
        Product("sdot", (("dotprod",),), _SIGNED, registers),
        Product("smlal", (("neon",),), _SIGNED, registers),
        Product("loops", ALWAYS, _SIGNED, registers),
    )


AARCH64 = Backend(
    name="aarch64",
    architecture="aarch64",
    triple="aarch64-unknown-linux-gnu",
    gnu="aarch64-linux-gnu",
    baseline="aarch64",
    fullest="neoverse-v2",
    needs=("neon", "fp-armv8"),
    instruction_sets=instruction_sets.AARCH64,
    hardware_bits=instruction_sets.AARCH64_BITS,
    products=_arm_products(Q64),
    float_products=(Product("fmla", (("neon",),), _FLOATS, Q64),),
    float16_products=(Product("fmlal", (("fp16fml",),), _HALVES, Q64),),
    bfloat16_products=(Product("bfdot", (("bf16",),), _BFLOATS, Q64),),
    registers=((ALWAYS, Q64),),
    # From Cortex-A53, which issues two instructions per cycle in order, to Cortex-A76 and Neoverse. Epilogues are not
    # interleaved: A53 benefits from dot products that wait for no other instruction, and the larger cores reorder 128
    # and more instructions. Hardware prefetches the weights, which are contiguous.
    caches=Caches(32 * KIB, 512 * KIB),  # those of the BCM2837 in a Raspberry Pi 3, the smallest
    contracts=ALWAYS,
    lookups=ALWAYS,
    # The longest of these vectors already takes four registers. Four or two registers of 32-bit values become one of
    # bytes, with instructions that LLVM does not find in loops.
    byte_lanes=(16, 8),
    chains=1,
    counts=True,
    pairs=True,
    doubles=True,
    futex=("i64", 98),
    pause=("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
)

ARM32 = replace(
    AARCH64,
    name="armv7",
    architecture="arm",
    triple="armv7l-unknown-linux-gnueabihf",
    gnu="arm-linux-gnueabihf",
    baseline="armv7",
    fullest="cortex-a78",
    needs=(),
    instruction_sets=instruction_sets.ARM,
    hardware_bits=instruction_sets.ARM_BITS,
    products=_arm_products(Q32),
    float_products=(),
    float16_products=(),
    bfloat16_products=(),
    registers=((ALWAYS, Q32),),
    contracts=(("vfp4",),),
    lookups=(),
    futex=("i32", 240),
    pause=("", ""),
)

R32, Q8 = RegisterFile(13, 4), RegisterFile(8, 16)
"""A microcontroller's general registers, besides stack pointer and program counter, less the one that branches take;
those of Helium."""

CORTEX_M = Backend(
    name="cortex-m",
    architecture="cortex-m",
    triple="thumbv7em-unknown-none-eabi",
    gnu="arm-none-eabi",
    baseline="cortex-m0plus",
    fullest="cortex-m55",
    needs=("mclass",),
    instruction_sets=instruction_sets.CORTEX_M,
    products=(
        Product("vmladav", (("mve",),), _SIGNED, Q8),
        Product("smlad", (("dsp",),), _SIGNED, R32),
        Product("mla", (("thumb2",),), _SIGNED, R32),
        Product("muls", ALWAYS, _SIGNED, R32),
    ),
    registers=(((("mve",),), Q8), (ALWAYS, R32)),
    # Most have no cache: weights come from flash, some wait states away, and feature maps from memory beside the core.
    caches=Caches(16 * KIB, 256 * KIB),
    contracts=(("vfp4d16sp",),),
    byte_lanes=(4,),
    chains=1,
    # LLVM 22 puts constants between the instructions of a long function, with a branch around them, which may be in the
    # middle of a block that Helium predicates. That is undefined, and ends LLVM itself if the block is in a loop.
    # Constants of code that is only executed are elsewhere.
    generates=(((("mve",),), "mattr", "+execute-only"),),
    counts=True,
    doubles=True,
    soft_float64=True,
    concurrent=False,
    tight=True,
    stack_bytes=256,
)
"""ARM's profile for microcontrollers: Thumb code without an operating system."""

# ---- RISC-V --------------------------------------------------------------------------------------------------------

RISCV64 = Backend(
    name="riscv64",
    architecture="riscv64",
    triple="riscv64-unknown-linux-gnu",
    gnu="riscv64-linux-gnu",
    baseline="riscv64",
    fullest="sifive-x280",
    needs=("64bit", "m", "a", "f", "d", "c"),  # RV64GC, what distributions are built for
    instruction_sets=instruction_sets.RISCV64,
    products=(Product("loops", ALWAYS, None, RegisterFile(32, 16)),),
    registers=((ALWAYS, RegisterFile(32, 16)),),
    caches=Caches(32 * KIB, 512 * KIB),
    contracts=ALWAYS,
    futex=("i64", 98),
)
"""64-bit RISC-V, whose integer kernels are plain loops."""

# ---- others --------------------------------------------------------------------------------------------------------

SHARED_BYTES = 48 * KIB
"""Shared memory that a block has on every GPU; more requires each kernel to opt in."""

CUDA = Backend(
    name="cuda",
    products=(Product("dp4a", ALWAYS, _SIGNED, RegisterFile(255, 4)),),  # and tensor cores
    float_products=(Product("ffma", ALWAYS, _FLOATS, RegisterFile(255, 4)),),
    registers=((ALWAYS, RegisterFile(255, 4)),),  # per thread: CUDA C++ Programming Guide, compute capabilities
    caches=Caches(SHARED_BYTES, 4096 * KIB),
    widest_integer="int64",
    grid=True,
    device="gpu",
)

ANY_CPU = Backend(
    name="cpu",
    products=(Product("loops", ALWAYS, None, XMM),),
    registers=((ALWAYS, XMM),),
    caches=Caches(32 * KIB, 512 * KIB),
    contracts=(),
)
"""A CPU of any other family: its kernels are plain loops."""

CPUS = (X86, I686, AARCH64, ARM32, CORTEX_M, RISCV64)
"""The families of CPUs that have kernels of their own."""

_BY_ARCHITECTURE = {backend.architecture: backend for backend in CPUS}
_BY_KIND = {"cuda": CUDA}
BACKENDS = (*CPUS, *_BY_KIND.values(), ANY_CPU)
CPU_BACKENDS = tuple(backend for backend in BACKENDS if not backend.grid)
_BY_NAME = {backend.name: backend for backend in BACKENDS}

KINDS = ("llvm", *_BY_KIND)
"""The kinds of TVM targets that have kernels."""


def named(name: str) -> Backend:
    """The backend with this name."""
    return _BY_NAME[name]


def backends_with(product: Product) -> tuple[Backend, ...]:
    """The backends that have this way to multiply."""
    return tuple(backend for backend in BACKENDS if product in backend.every_product)


copyreg.pickle(Backend, lambda backend: (named, (backend.name,)))  # a single object each, also in other processes


def backend_for(kind: str, attributes: Mapping[str, Any]) -> Backend:
    """The backend of a TVM target, from its kind and its attributes, which may be those in a `.qnn` file."""
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    triple = str(attributes.get("mtriple", ""))
    architecture = architecture_name(triple.split("-")[0]) if triple else host_architecture()
    return backend_of_architecture(architecture)


def backend_of_architecture(architecture: str) -> Backend:
    """The backend of CPUs with this `architectures.architecture_name`."""
    return _BY_ARCHITECTURE.get(architecture, ANY_CPU)


def backend_described(target: Mapping[str, Any]) -> Backend:
    """The backend of a target given as a dict that includes its kind."""
    return backend_for(str(target.get("kind", "llvm")), target)
