"""The int8 peak of a GPU, measured: loops of mma.sync, or of DP4A before Turing, on registers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.target import Target

from qnn_ext.compiling.codegen import generate_code
from qnn_ext.targets.gpus import version_of

from ..runners import Runner

THREADS = 256
CHAINS = 8  # independent instructions per warp
WARP = 32


@dataclass(frozen=True)
class Instruction:
    """name: for tables; operations: multiplications and additions per warp; a, b, c: 32-bit registers per lane."""

    name: str
    operations: int
    a: int
    b: int
    c: int


M16N8K32 = Instruction("mma.m16n8k32", 2 * 16 * 8 * 32, 4, 2, 4)
M8N8K16 = Instruction("mma.m8n8k16", 2 * 8 * 8 * 16, 1, 1, 2)
DP4A = Instruction("dp4a", 2 * 4 * WARP, 1, 1, 1)


def instruction_of(architecture: str) -> Instruction:
    """The fastest instruction our kernels can use; sm_90's wgmma, which TVM's schedules cannot express, is faster."""
    version = version_of(architecture)
    return M16N8K32 if version >= 80 else M8N8K16 if version >= 75 else DP4A


def peak_module(instruction: Instruction, blocks: int, steps: int) -> tvm.IRModule:
    """out[block, thread] = Σ over registers of the accumulators after `steps` rounds of CHAINS instructions.

    Each block has THREADS threads. Operands are per lane: byte i of every lane is seed[i].
    """
    a_words, b_words, c_words = instruction.a, instruction.b, instruction.c

    def step(a: Any, b: Any, c: Any, chain: Any) -> Any:
        if instruction is DP4A:
            value = T.call_extern("__dp4a", a.vload([0], "int8x4"), b.vload([0], "int8x4"), c[chain], dtype="int32")
            return T.buffer_store(c, value, [chain])
        shape = instruction.name.removeprefix("mma.")
        return T.evaluate(
            T.ptx_legacy.mma(
                shape, "row", "col", "int8", "int8", "int32", a.data, 0, b.data, 0, c.data, chain * c_words, False,
                dtype="int32",
            )
        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def main(seed: T.Buffer((16,), "int8"), out: T.Buffer((blocks, THREADS), "int32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True, "tirx.is_scheduled": True})
        for block in T.thread_binding(blocks, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                with T.sblock("peak"):
                    vb, vt = T.axis.remap("SS", [block, thread])
                    a = T.sblock_alloc_buffer((4 * a_words,), "int8", scope="local")
                    b = T.sblock_alloc_buffer((4 * b_words,), "int8", scope="local")
                    c = T.sblock_alloc_buffer((CHAINS * c_words,), "int32", scope="local")
                    for i in T.unroll(4 * a_words):
                        a[i] = seed[i]
                    for i in T.unroll(4 * b_words):
                        b[i] = seed[i]
                    for i in T.unroll(CHAINS * c_words):
                        c[i] = 0
                    for _step in range(steps):
                        for chain in T.unroll(CHAINS):
                            step(a, b, c, chain)
                    for i in T.unroll(CHAINS * c_words - 1):
                        c[0] = c[0] + c[i + 1]
                    out[vb, vt] = c[0]

    return tvm.IRModule({"main": main})


def expected(instruction: Instruction, seed: np.ndarray, steps: int) -> int:
    """Each thread's result of `peak_module` when all of `seed` is one value: every product is its square."""
    assert (seed == seed[0]).all()
    products = instruction.operations // 2 // WARP  # each lane's share of the accumulators, all with the same sum
    return int(seed[0]) ** 2 * products * CHAINS * steps


def peak_runner(architecture: str) -> Runner:
    """The peak as a runner: `work` is the int8 operations per call. Needs the GPU."""
    device = tvm.cuda()
    instruction, steps = instruction_of(architecture), 4096
    blocks = 8 * int(device.multi_processor_count)
    target = Target({"kind": "cuda", "arch": architecture}, host={"kind": "llvm"})
    kernel = generate_code(peak_module(instruction, blocks, steps), target)
    seed = np.ones(16, np.int8)
    out = tvm.runtime.tensor(np.zeros((blocks, THREADS), np.int32), device)
    buffers = [tvm.runtime.tensor(seed, device), out]
    evaluate = kernel.mod.time_evaluator

    def outputs(inputs: Any) -> list[np.ndarray]:
        kernel["main"](*buffers)
        device.sync()
        if not (out.numpy() == expected(instruction, seed, steps)).all():
            raise ValueError(f"{instruction.name} computes wrong values on this GPU")
        return []

    def seconds(number: int) -> float:
        return min(map(float, evaluate("main", device, number=1, repeat=number)(*buffers).results))

    work = blocks * THREADS // WARP * CHAINS * steps * instruction.operations
    return Runner(instruction.name, outputs, seconds, work=float(work))
