"""The one place for facts about targets: a `Backend` for each family of processors. Nothing here imports TVM.

Code outside a target's own packages asks its backend and never its name. Kernels, and passes on their code, are
registered for a backend by the packages that own them: `topi_int8.strategy`, `topi_int8.lowering`, and for CPUs
`topi_int8.cpu.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FeatureSets = tuple[tuple[str, ...], ...]
"""Sets of LLVM features, of which a CPU must have at least one completely: every CPU has ((),), none has ()."""

ALWAYS: FeatureSets = ((),)
NEVER: FeatureSets = ()


@dataclass(frozen=True)
class RegisterFile:
    """Vector registers: how many, and the size of each in bytes."""

    count: int
    bytes: int

    def lanes(self, bits: int) -> int:
        """How many values of `bits` bits a register holds."""
        return 8 * self.bytes // bits


@dataclass(frozen=True)
class Caches:
    """Bytes of a core's level-1 data cache, and of its level-2 cache, which it may share with others."""

    l1_bytes: int
    l2_bytes: int


@dataclass(frozen=True)
class Product:
    """One way in which a family of processors multiplies and adds: 8-bit integers, or floats.

    features: the features that a processor needs for it
    operands: the dtypes of activations and weights that it takes; None if it widens any 8-bit ones
    registers: the vector registers that it uses
    """

    name: str
    features: FeatureSets
    operands: tuple[str, str] | None
    registers: RegisterFile


@dataclass(frozen=True)
class Sharing:
    """The amounts of work from which a kernel is parallelized.

    Threads that meet at the barrier after a kernel wait for each other and fetch what other cores have written, which
    was measured to take about 0.3 µs (x86 servers from 2019 to 2023). So kernels that take about 1 µs or more on one
    core are parallelized; how much work that is depends on the kind of work.

    plain_macs:        multiply-accumulates of plain loops, about 10 per nanosecond
    depthwise_macs:    those of vector code over channels, about 50 per nanosecond
    tap_macs:          those of dot products over taps, about 60 per nanosecond
    dot_macs:          those of dot products over channels, about 150 per nanosecond
    moved_elements:    elements that a stage reads or writes
    operations:        simple operations of code without a specific kernel: 1 to 3 µs of vector code
    position_elements: elements that are searched for the positions of extremes
    resized_elements:  results of a bilinear resize
    softmax_elements:  elements of a softmax
    meeting:           nanoseconds that a barrier takes, including the data fetched after it
    part:              nanoseconds, at least, of what a task takes over from another one: to claim it takes 20 to 100
    launch:            nanoseconds that a parallel region must save: starting one takes 1 to 5 µs, more if the threads
                       have gone to sleep
    unasked:           nanoseconds that a model must save where nobody asked for threads. On a busy machine a thread
                       waits for others that have no core: calls that take 10 to 40 µs alone were measured to take 1.5
                       to 30 times as long on two threads, more than they save on an idle one
    """

    plain_macs: float = 10_000
    depthwise_macs: float = 40_000
    tap_macs: float = 60_000
    dot_macs: float = 200_000
    moved_elements: float = 16_384
    operations: float = 1 << 18
    position_elements: float = 1 << 17
    resized_elements: float = 1 << 16
    softmax_elements: float = 1 << 14
    meeting: float = 300.0
    part: float = 20_000.0
    launch: float = 6000.0
    unasked: float = 50_000.0


@dataclass(frozen=True, eq=False)
class Backend:
    """A family of processors.

    name:            for messages
    products:        its ways to multiply 8-bit integers, fastest first; the last one is always available
    registers:       its vector registers by the features that they need, widest first
    caches:          those of its CPUs whose own are not known, see `features.caches_of`
    third_level:     whether a level-3 cache stands behind a core's level 2
    sharing:         the amounts of work from which kernels are parallelized
    contracts:       the features with which LLVM contracts a float product and a sum into an operation that rounds once
    float_products:  its ways to multiply and add float32 with one rounding, fastest first
    float16_products: its ways to add products of float16 to float32, with one rounding, fastest first
    bfloat16_products: its ways to add products of bfloat16 to float32, fastest first
    lookups:         the features with which tables of bytes are looked up by whole registers
    segments:        the same for tables of 16 float32
    byte_lanes:      lengths of explicit vectors where 32-bit values become bytes, best first
    chains:          independent accumulators in a reduction that shares no loads between rows
    generates:       what LLVM must be told besides a CPU's features, by those with which it must: the target's
                     attribute, a list, and what is added to it
    counts:          whether register tiles are chosen by the number of instructions, which is what matters on a core
                     that issues few per cycle; otherwise by the cycles of a wide core with a large out-of-order window
    weaves:          whether epilogues are interleaved with the next tile's dot products
    prefetches:      whether code prefetches weights; not needed where hardware does
    stays_float:     whether a saturated value that becomes a float again stays in float throughout, if it contracts
    pairs:           whether two 8-bit products are added in 16 bits, which two weights of −128 would overflow
    doubles:         whether an instruction multiplies 32-bit integers as TFLite rounds: the high half, doubled
    widest_integer:  the widest integer dtype that its code may use
    soft_float64:    whether float64 is computed by library functions
    concurrent:      whether it has threads, and an operating system that runs them
    tight:           whether memory is worth more than time: tensors overlap where they can, also with inputs
    stack_bytes:     the most bytes of a buffer on the stack, from where LLVM promotes accumulators to registers. TVM's
                     own limit of 1 KiB is less than those of 28 AVX-512 registers take
    grid:            whether each element gets its own thread and kernels are launched: a GPU, not a CPU
    device:          what runs its code, see `qnn_ext.running.devices`
    architecture:    its `architectures.architecture_name`; empty for a GPU and for any other CPU
    triple:          LLVM's triple to compile for it elsewhere: Linux, for which there are wheels and cross compilers;
                     empty if there are none
    gnu:             the name that GNU's cross compilers, clang and zig have for the target; empty if none supports it
    baseline:        the name of the target that any of its CPUs can run; empty if there is none
    fullest:         LLVM's name of a CPU that has many features, from which messages suggest similar ones
    needs:           the features that LLVM's code for it cannot do without
    instruction_sets: those that LLVM uses in ordinary code: LLVM's name -> the flag by which Linux reports it
    hardware_bits:   flag -> the bit by which Linux reports it to a process, from 64 on in AT_HWCAP2; empty if flags are
                     read from /proc/cpuinfo
    futex:           LLVM's type of C's long, and the number of Linux's system call on which a thread sleeps
    pauses:          how many of those that `pause` means take about 50 µs, or rounds of a loop without one
    pause, clock:    for waiting threads: the call (and its declaration in LLVM's IR) that lets the core rest; LLVM's
                     cycle counter
    """

    name: str
    products: tuple[Product, ...]
    registers: tuple[tuple[FeatureSets, RegisterFile], ...]
    caches: Caches
    third_level: bool = False
    sharing: Sharing = Sharing()
    contracts: FeatureSets = NEVER
    float_products: tuple[Product, ...] = ()
    float16_products: tuple[Product, ...] = ()
    bfloat16_products: tuple[Product, ...] = ()
    lookups: FeatureSets = NEVER
    segments: FeatureSets = NEVER
    byte_lanes: tuple[int, ...] = (64, 32)
    chains: int = 4
    generates: tuple[tuple[FeatureSets, str, str], ...] = ()
    counts: bool = False
    weaves: bool = False
    prefetches: bool = False
    stays_float: bool = False
    pairs: bool = False
    doubles: bool = False
    widest_integer: str = "int128"
    soft_float64: bool = False
    concurrent: bool = True
    tight: bool = False
    stack_bytes: int = 4096
    grid: bool = False
    device: str = "cpu"
    architecture: str = ""
    triple: str = ""
    gnu: str = ""
    baseline: str = ""
    fullest: str = ""
    needs: tuple[str, ...] = ()
    instruction_sets: Mapping[str, str] = field(default_factory=dict)
    hardware_bits: Mapping[str, int] = field(default_factory=dict)
    futex: tuple[str, int] | None = None
    pause: tuple[str, str] = ("", "")
    pauses: int = 50_000
    clock: str = "readsteadycounter"

    def product(self, name: str) -> Product:
        """The product of this name."""
        return next(product for product in self.every_product if product.name == name)

    @property
    def every_product(self) -> tuple[Product, ...]:
        """Its ways to multiply integers and floats."""
        return self.products + self.float_products + self.float16_products + self.bfloat16_products


THREADS = "num-cores"
"""The attribute of TVM's targets for the number of threads that kernels are parallelized over."""


def threads_of(attributes: Mapping[str, Any]) -> int:
    """The number of threads that kernels are parallelized over, from a target's attributes; 1 if they have none."""
    return max(1, int(attributes.get(THREADS, 1)))
