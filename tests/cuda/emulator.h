// The part of CUDA C++ and PTX that generated kernels use, executed on a CPU, one block at a time.
//
// Every CUDA thread is a fiber that runs until it waits at a barrier. Warps run one after the other, and within a warp
// lanes do, so that a thread gets as far ahead of the others as its barriers allow: whoever relies on an order that no
// barrier enforces reads wrong data. `order` turns the sequence round and lets asynchronous copies arrive at once
// instead of as late as allowed; results must not depend on it.
#pragma once

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))
#define uint unsigned int
#define uchar unsigned char
using half = _Float16;  // rounded to nearest, ties to even
struct alignas(4) half2 { half x, y; };
struct alignas(8) half4 { half x, y, z, w; };
#define ushort unsigned short
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF ((double)INFINITY)
#define CUDART_NAN ((double)NAN)

// ---------------------------------------------------------------------------------------------------- vector types
#define VECTORS(T, name, a2, a4)                                                                         \
  struct alignas(a2) name##2 { T x, y; };                                                                \
  struct name##3 { T x, y, z; };                                                                         \
  struct alignas(a4) name##4 { T x, y, z, w; };                                                          \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                             \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                     \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(signed char, char, 2, 4)
VECTORS(unsigned char, uchar, 2, 4)
VECTORS(short, short, 4, 8)
VECTORS(unsigned short, ushort, 4, 8)
VECTORS(int, int, 8, 16)
VECTORS(unsigned int, uint, 8, 16)
VECTORS(long long, longlong, 16, 16)
VECTORS(unsigned long long, ulonglong, 16, 16)
VECTORS(float, float, 8, 16)
VECTORS(double, double, 16, 16)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

// --------------------------------------------------------------------------------------------- threads and barriers
extern unsigned char __start_emulated_shared[] __attribute__((weak));
extern unsigned char __stop_emulated_shared[] __attribute__((weak));

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

constexpr int LANES = 32, THREADS = 1024;
constexpr size_t STACK = 256 << 10;

enum State { READY, AT_BLOCK, AT_WARP, DONE };

struct Copy { void *to; const void *from; size_t bytes, zeros; };

struct Thread {
  jmp_buf at;
  ucontext_t start;
  bool started;
  State state;
  dim3 index;
  unsigned exchanges;
  std::vector<Copy> issued;              // asynchronous copies since the last commit
  std::vector<std::vector<Copy>> groups;  // committed, not waited for
};

static Thread threads[THREADS];
static jmp_buf scheduler;
static ucontext_t scheduler_context;
static int current, count;
static int order;  // 0: forwards, asynchronous copies late; 1: backwards, copies at once
static const std::function<void()> *kernel;
alignas(16) static unsigned char slots[2][THREADS][64];

[[noreturn]] inline void fail(const char *what) {
  fprintf(stderr, "%s: block (%u, %u, %u), thread (%u, %u, %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z,
          threadIdx.x, threadIdx.y, threadIdx.z);
  exit(3);
}

inline void entry() {
  (*kernel)();
  threads[current].state = DONE;
  _longjmp(scheduler, 1);
}

__attribute__((noinline)) inline void resume(int index) {
  Thread &thread = threads[index];
  current = index;
  threadIdx = thread.index;
  if (_setjmp(scheduler)) return;
  if (thread.started) _longjmp(thread.at, 1);
  thread.started = true;
  setcontext(&thread.start);
}

__attribute__((noinline)) inline void wait(State state) {
  Thread &thread = threads[current];
  thread.state = state;
  if (!_setjmp(thread.at)) _longjmp(scheduler, 1);
}

inline int lanes_of(int warp) { return std::min(LANES, count - warp * LANES); }

// Runs the lanes of a warp until all wait for the block or are done.
inline void run_warp(int warp) {
  int lanes = lanes_of(warp);
  for (;;) {
    int arrived = 0, others = 0;
    for (int i = 0; i < lanes; ++i) {
      int index = warp * LANES + (order ? lanes - 1 - i : i);
      if (threads[index].state == READY) resume(index);
      (threads[index].state == AT_WARP ? arrived : others) += 1;
    }
    if (arrived == 0) return;
    if (others) fail("a warp diverges at a collective instruction");
    for (int i = 0; i < lanes; ++i) threads[warp * LANES + i].state = READY;
  }
}

inline void run_block() {
  static unsigned char *stacks = nullptr;
  if (!stacks)
    stacks = (unsigned char *)mmap(nullptr, STACK * THREADS, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (__start_emulated_shared) memset(__start_emulated_shared, 0xA5, __stop_emulated_shared - __start_emulated_shared);
  for (int i = 0; i < count; ++i) {
    Thread &thread = threads[i];
    thread.started = false;
    thread.state = READY;
    thread.exchanges = 0;
    thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    thread.issued.clear();
    thread.groups.clear();
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = stacks + STACK * i;
    thread.start.uc_stack.ss_size = STACK;
    thread.start.uc_link = nullptr;
    makecontext(&thread.start, entry, 0);
  }
  int warps = (count + LANES - 1) / LANES;
  for (;;) {
    for (int i = 0; i < warps; ++i) run_warp(order ? warps - 1 - i : i);
    int done = 0;
    for (int i = 0; i < count; ++i) done += threads[i].state == DONE;
    if (done == count) return;
    if (done) fail("some threads wait at __syncthreads() and others have left");
    for (int i = 0; i < count; ++i) threads[i].state = READY;
  }
}

inline void launch(dim3 grid, dim3 block, const std::function<void()> &body) {
  gridDim = grid, blockDim = block, kernel = &body;
  count = block.x * block.y * block.z;
  if (count > THREADS) fail("more than 1024 threads in a block");
  unsigned blocks = grid.x * grid.y * grid.z;
  for (unsigned i = 0; i < blocks; ++i) {
    unsigned b = order ? blocks - 1 - i : i;
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / (grid.x * grid.y)};
    run_block();
  }
}

// What every lane of the warp contributes, in a fresh array. Two sets of slots: no lane is two exchanges ahead.
template <class T>
struct Lanes { T of[LANES]; };

template <class T>
inline Lanes<T> exchange(const T &mine) {
  static_assert(sizeof(T) <= 64, "slots are too small");
  auto &set = slots[threads[current].exchanges++ % 2];
  memcpy(set[current], &mine, sizeof(T));
  wait(AT_WARP);
  Lanes<T> all;
  int first = current / LANES * LANES;
  for (int lane = 0; lane < lanes_of(current / LANES); ++lane) memcpy(&all.of[lane], set[first + lane], sizeof(T));
  return all;
}

inline int lane() { return current % LANES; }

// An array in device memory, its end close to a page that must not be touched. `device_check` finds what was written
// into the bytes between.
constexpr unsigned char GUARD = 0x5A;
constexpr size_t PAGE = 4096, ALIGNMENT = 256;

struct Array { unsigned char *data, *end, *limit; };

inline Array device_array(size_t bytes) {
  size_t padded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, whole = (padded + PAGE - 1) / PAGE * PAGE;
  auto *memory = (unsigned char *)mmap(nullptr, whole + 2 * PAGE, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("out of memory");
  mprotect(memory, PAGE, PROT_NONE);
  mprotect(memory + PAGE + whole, PAGE, PROT_NONE);
  memset(memory + PAGE, GUARD, whole);
  unsigned char *limit = memory + PAGE + whole, *data = limit - padded;
  return {data, data + bytes, limit};
}

inline void device_check(const Array &array, const char *name) {
  for (unsigned char *at = array.end; at < array.limit; ++at)
    if (*at != GUARD) {
      fprintf(stderr, "written beyond the end of %s\n", name);
      exit(3);
    }
}

inline void read_all(unsigned char *data, size_t bytes) {
  if (fread(data, 1, bytes, stdin) != bytes) exit(4);
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
inline void __syncwarp(unsigned = ~0u) { emulator::wait(emulator::AT_WARP); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline unsigned __activemask() {
  int lanes = emulator::lanes_of(emulator::current / emulator::LANES);
  return lanes == 32 ? ~0u : (1u << lanes) - 1;
}
template <class T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  int lane = emulator::lane();
  return emulator::exchange(value).of[lane / width * width + source % width];
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
  unsigned lane = emulator::lane(), from = lane % width + by < (unsigned)width ? lane + by : lane;
  return emulator::exchange(value).of[from];
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
  unsigned lane = emulator::lane(), from = lane % width >= by ? lane - by : lane;
  return emulator::exchange(value).of[from];
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  int lane = emulator::lane(), from = lane ^ mask;
  return emulator::exchange(value).of[from / width == lane / width ? from : lane];
}

// -------------------------------------------------------------------------------------------------------- arithmetic
#define MIN_MAX(T)                                          \
  inline T max(T a, T b) { return a > b ? a : b; }          \
  inline T min(T a, T b) { return a < b ? a : b; }
MIN_MAX(int)
MIN_MAX(unsigned int)
MIN_MAX(long)
MIN_MAX(unsigned long)
MIN_MAX(long long)
MIN_MAX(unsigned long long)
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline half __float2half_rn(float x) { return (half)x; }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
// NaN becomes zero, what is too large the nearest integer, as cvt does
template <class I, class F>
I to_integer(F value) {
  constexpr I low = (I)1 << (sizeof(I) * 8 - 1), high = (I)~low;
  return value != value ? 0 : value <= (F)low ? low : value >= -(F)low ? high : (I)value;
}
inline int __float2int_rn(float a) { return to_integer<int>(nearbyintf(a)); }
inline int __float2int_rz(float a) { return to_integer<int>(truncf(a)); }
inline int __float_as_int(float a) { int bits; memcpy(&bits, &a, 4); return bits; }
inline float __int_as_float(int bits) { float a; memcpy(&a, &bits, 4); return a; }
inline unsigned __float_as_uint(float a) { return (unsigned)__float_as_int(a); }
inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
template <class T>
T __ldg(const T *at) { return *at; }

template <class A, class B>
inline int dot4(unsigned a, unsigned b, int c) {
  for (int i = 0; i < 4; ++i) c += (int)(A)(a >> 8 * i) * (int)(B)(b >> 8 * i);
  return c;
}
inline int __dp4a(int a, int b, int c) { return dot4<signed char, signed char>(a, b, c); }
inline int __dp4a(int a, unsigned b, int c) { return dot4<signed char, unsigned char>(a, b, c); }
inline int __dp4a(unsigned a, int b, int c) { return dot4<unsigned char, signed char>(a, b, c); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return (unsigned)dot4<unsigned char, unsigned char>(a, b, (int)c);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned nibble = selector >> 4 * i & 15, byte = (unsigned)(both >> 8 * (nibble & 7)) & 255;
    result |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}
