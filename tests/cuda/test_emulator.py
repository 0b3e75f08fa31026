"""The emulated GPU: it computes what PTX says and refuses what a GPU would not survive."""

from __future__ import annotations

import numpy as np
import pytest

from .device import wanted
from .emulator import Array, EmulationError, Launch, execute

pytestmark = pytest.mark.skipif(wanted(), reason="kernels run on a GPU, and not on the emulator tested here")

REVERSE = """
extern "C" __global__ void __launch_bounds__(64) reverse(int* __restrict__ x, int* __restrict__ y) {{
  __shared__ alignas(64) int tile[64];
  tile[threadIdx.x] = x[threadIdx.x + blockIdx.x * 64];
  {barrier}
  y[threadIdx.x + blockIdx.x * 64] = tile[63 - threadIdx.x];
}}
"""


def launch(source: str, x: np.ndarray, dtype: str = "int32", threads: int = 64, blocks: int = 1) -> np.ndarray:
    """Run the kernel `name(x, y)` of a source; y has as many bytes as x."""
    name = source.split("(int*")[0].split()[-1].split("(")[0]
    arrays = [Array("x", x.nbytes, True), Array("y", x.nbytes, True)]
    run = Launch(name, ("x", "y"), (blocks, 1, 1), (threads, 1, 1))
    (result,) = execute(source, arrays, [run], [x, np.zeros_like(x)], ["y"])
    return np.frombuffer(result, dtype)


def kernel(body: str) -> str:
    return f'extern "C" __global__ void k(int* __restrict__ x, int* __restrict__ y) {{\n{body}\n}}'


def test_barriers_and_blocks(rng):
    x = rng.integers(-100, 100, 128, dtype=np.int32)
    got = launch(REVERSE.format(barrier="__syncthreads();"), x, blocks=2)
    np.testing.assert_array_equal(got, x.reshape(2, 64)[:, ::-1].ravel())


def test_a_missing_barrier_is_found(rng):
    with pytest.raises(EmulationError, match="a barrier is missing"):
        launch(REVERSE.format(barrier=""), rng.integers(-100, 100, 64, dtype=np.int32))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x < 3) __syncthreads();", "others have left"),
        ("if (threadIdx.x < 3) y[0] = __shfl_xor_sync(7, x[0], 1, 32);", "diverges"),
        ("*(int4*)(y + 1) = make_int4(0, 0, 0, 0);", "misaligned"),
        ("y[threadIdx.x] = 1;", "beyond the end of y"),
        ("y[0] = x[threadIdx.x + 500];", "an access outside all arrays"),
        ("__shared__ int s[32]; s[threadIdx.x] = 1;", "out of bounds"),
    ],
    ids=["barrier", "warp", "alignment", "write", "read", "shared"],
)
def test_faults_are_found(body, message):
    with pytest.raises(EmulationError, match=message):
        launch(kernel(body), np.zeros(60, np.int32))


def test_an_unknown_instruction_is_refused():
    with pytest.raises(NotImplementedError, match="wgmma"):
        launch(kernel('asm volatile("wgmma.fence.sync.aligned;");'), np.zeros(64, np.int32))


COPY = """
  __shared__ alignas(16) int tile[128];
  unsigned int to = __cvta_generic_to_shared(tile + threadIdx.x * 4);
  __asm__ __volatile__(
    "cp.async.cg.shared.global [%0], [%1], %2;\\n"
    :: "r"(to), "l"((void*)(x + threadIdx.x * 4)), "n"(16)
  );
  __asm__ __volatile__("cp.async.commit_group;");
  {wait}
  __syncthreads();
  *(int4*)(y + threadIdx.x * 4) = *(int4*)(tile + 124 - threadIdx.x * 4);
"""


def test_asynchronous_copies(rng):
    x = rng.integers(-100, 100, 128, dtype=np.int32)
    source = kernel(COPY.format(wait='__asm__ __volatile__("cp.async.wait_group 0;");'))
    np.testing.assert_array_equal(launch(source, x, threads=32), x.reshape(32, 4)[::-1].ravel())
    with pytest.raises(EmulationError, match="a barrier is missing"):
        launch(kernel(COPY.format(wait='__asm__ __volatile__("cp.async.wait_group 1;");')), x, threads=32)


def test_shuffles(rng):
    x = rng.integers(-100, 100, 64, dtype=np.int32)
    body = """
      int value = x[threadIdx.x];
      for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffff, value, by, 32);
      y[threadIdx.x] = __shfl_sync(0xffffffff, value, 0, 32);
    """
    np.testing.assert_array_equal(launch(kernel(body), x), np.repeat(x.reshape(2, 32).sum(1), 32))


# Fragments by hand, as Figures "m16n8k32" of the PTX ISA draw them: lane, then register, then byte.
LANE = np.arange(32)[:, None, None]
REGISTER, BYTE = np.arange(4)[None, :, None], np.arange(4)[None, None, :]
A_ROW, A_COLUMN = LANE // 4 + REGISTER % 2 * 8 + 0 * BYTE, LANE % 4 * 4 + BYTE + REGISTER // 2 * 16
B_ROW, B_COLUMN = LANE % 4 * 4 + BYTE + REGISTER[:, :2] * 16, LANE // 4 + 0 * BYTE + 0 * REGISTER[:, :2]
C_ROW, C_COLUMN = LANE[..., 0] // 4 + np.arange(4) // 2 * 8, LANE[..., 0] % 4 * 2 + np.arange(4) % 2


def test_mma(rng):
    a, b = rng.integers(-128, 128, (16, 32), dtype=np.int8), rng.integers(-128, 128, (32, 8), dtype=np.int8)
    words = np.concatenate([a[A_ROW, A_COLUMN].view(np.int32)[..., 0], b[B_ROW, B_COLUMN].view(np.int32)[..., 0]], 1)
    body = """
      int d[4] = {1, 2, 3, 4}; int* f = x + threadIdx.x * 6;
      __asm__ __volatile__(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\\n"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(f[4]), "r"(f[5]), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]));
      *(int4*)(y + threadIdx.x * 4) = make_int4(d[0], d[1], d[2], d[3]);
    """
    got = launch(kernel(body), np.ascontiguousarray(words), threads=32)[:128].reshape(32, 4)
    expected = (a.astype(np.int32) @ b.astype(np.int32))[C_ROW, C_COLUMN] + np.arange(1, 5)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(rng, trans):
    x = rng.integers(-100, 100, (4, 8, 8), dtype=np.int16)
    body = f"""
      __shared__ alignas(16) int tile[128]; unsigned r[4];
      *(int4*)(tile + threadIdx.x * 4) = *(int4*)(x + threadIdx.x * 4);
      __syncthreads();
      unsigned int addr = __cvta_generic_to_shared(tile + threadIdx.x * 4);
      __asm__ __volatile__(
        "ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16"
        "{{%0, %1, %2, %3}}, [%4];\\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
      *(int4*)(y + threadIdx.x * 4) = make_int4(r[0], r[1], r[2], r[3]);
    """
    got = launch(kernel(body), x.view(np.int32).ravel(), "int16", threads=32).reshape(32, 4, 2)
    matrices = x.transpose(0, 2, 1) if trans else x
    expected = matrices.reshape(4, 32, 2).transpose(1, 0, 2)  # lane, matrix, its two elements
    np.testing.assert_array_equal(got, expected)
