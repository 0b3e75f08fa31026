// PTX instructions of inline assembly: their operands are lists of 32-bit registers, results come first.
//
// Where a lane finds which element of a matrix is what the PTX ISA says in "Matrix Fragments for mma.m16n8k32" and its
// neighbours, and in "ldmatrix".
#pragma once

#include "emulator.h"

// An address in shared memory is its distance from the start of the section that holds all of it.
inline unsigned __cvta_generic_to_shared(const void *at) {
  return (unsigned)((const unsigned char *)at - __start_emulated_shared);
}

namespace ptx {

using emulator::exchange;
using emulator::fail;
using emulator::lane;

inline unsigned char *shared(unsigned address, unsigned bytes) {
  if (address % bytes) fail("a misaligned address in shared memory");
  if (address + bytes > (size_t)(__stop_emulated_shared - __start_emulated_shared)) fail("beyond shared memory");
  return __start_emulated_shared + address;
}

// ldmatrix.m8n8.xN.b16: lane 8·j + r brings the address of row r (8 elements of 16 bits) of matrix j. Lane l receives in
// register j the elements 2·(l % 4) and the next of row l / 4; transposed: of column l / 4.
template <int N, bool TRANSPOSED>
void ldmatrix(unsigned *registers, unsigned address) {
  auto rows = exchange(address);
  for (int j = 0; j < N; ++j) {
    unsigned short pair[2];
    for (int i = 0; i < 2; ++i) {
      int row = TRANSPOSED ? lane() % 4 * 2 + i : lane() / 4, column = TRANSPOSED ? lane() / 4 : lane() % 4 * 2 + i;
      memcpy(&pair[i], shared(rows.of[8 * j + row], 16) + 2 * column, 2);
    }
    memcpy(&registers[j], pair, 4);
  }
}

// mma.m{16,8}n8k{16,32} of 8-bit operands. With g = lane / 4 and t = lane % 4, element i of a lane's A is in row
// g + 8·(register is odd), of A and B in the run of k at 4·t, 16 further in the second half of the registers; C in
// row g + 8·(i / 2), column 2·t + i % 2. M = 8 has no odd registers.
template <int M, int K, class A, class B>
void mma(int *d, const unsigned *a, const unsigned *b, const int *c) {
  constexpr int HALVES = M / 8, RUNS = K / 16;
  struct Operands { unsigned a[HALVES * RUNS], b[RUNS]; } mine;
  memcpy(mine.a, a, sizeof mine.a);
  memcpy(mine.b, b, sizeof mine.b);
  auto all = exchange(mine);
  int group = lane() / 4, quad = lane() % 4;
  for (int half = 0; half < HALVES; ++half)
    for (int j = 0; j < 2; ++j) {
      int sum = c[2 * half + j];
      for (int run = 0; run < RUNS; ++run)
        for (int t = 0; t < 4; ++t)
          sum = dot4<A, B>(all.of[group * 4 + t].a[HALVES * run + half], all.of[(2 * quad + j) * 4 + t].b[run], sum);
      d[2 * half + j] = sum;
    }
}

// mma.m16n8k16 of floats of 16 bits: where a lane's bytes are is as above. The sum is rounded once, from float64; a GPU
// rounds in a way of its own.
inline float from_half(unsigned short bits) { half value; memcpy(&value, &bits, 2); return (float)value; }
inline float from_bfloat(unsigned short bits) { unsigned word = (unsigned)bits << 16; float value; memcpy(&value, &word, 4); return value; }

template <float (*VALUE)(unsigned short)>
void mma_floats(float *d, const unsigned *a, const unsigned *b, const float *c) {
  struct Operands { unsigned a[4], b[2]; } mine;
  memcpy(mine.a, a, sizeof mine.a);
  memcpy(mine.b, b, sizeof mine.b);
  auto all = exchange(mine);
  int group = lane() / 4, quad = lane() % 4;
  for (int below = 0; below < 2; ++below)
    for (int j = 0; j < 2; ++j) {
      double sum = c[2 * below + j];
      for (int run = 0; run < 2; ++run)
        for (int t = 0; t < 4; ++t)
          for (int shift = 0; shift < 32; shift += 16) {
            unsigned left = all.of[group * 4 + t].a[2 * run + below], right = all.of[(2 * quad + j) * 4 + t].b[run];
            sum += (double)VALUE((unsigned short)(left >> shift)) * VALUE((unsigned short)(right >> shift));
          }
      d[2 * below + j] = (float)sum;
    }
}

// fma.rn of two floats of 16 bits.
template <float (*VALUE)(unsigned short), unsigned short (*BITS)(double)>
unsigned fma_pair(unsigned a, unsigned b, unsigned c) {
  unsigned result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    auto value = [&](unsigned word) { return (double)VALUE((unsigned short)(word >> shift)); };
    result |= (unsigned)BITS(value(a) * value(b) + value(c)) << shift;
  }
  return result;
}

// Only for values that need no rounding: what unpacks integers never does.
inline unsigned short exact_half(double value) {
  half narrow = (half)value;
  unsigned short bits;
  memcpy(&bits, &narrow, 2);
  if ((double)narrow != value) fail("a rounded product of float16");
  return bits;
}
inline unsigned short exact_bfloat(double value) {
  float wide = (float)value;
  unsigned bits;
  memcpy(&bits, &wide, 4);
  if ((double)wide != value || bits & 0xFFFF) fail("a rounded product of bfloat16");
  return (unsigned short)(bits >> 16);
}

// cp.async: arrives as late as the waits of its thread allow, or at once.
inline void perform(const emulator::Copy &copy) {
  memcpy(copy.to, copy.from, copy.bytes);
  memset((unsigned char *)copy.to + copy.bytes, 0, copy.zeros);
}

inline void cp_async(unsigned to, const void *from, unsigned bytes, unsigned source_bytes) {
  if ((uintptr_t)from % bytes) fail("a misaligned address of an asynchronous copy");
  emulator::Copy copy{shared(to, bytes), from, source_bytes, bytes - source_bytes};
  if (emulator::order)
    perform(copy);
  else
    emulator::threads[emulator::current].issued.push_back(copy);
}

inline void commit_group() {
  auto &thread = emulator::threads[emulator::current];
  thread.groups.push_back(std::move(thread.issued));
  thread.issued.clear();
}

inline void wait_group(size_t newest) {
  auto &groups = emulator::threads[emulator::current].groups;
  while (groups.size() > newest) {
    for (auto &copy : groups.front()) perform(copy);
    groups.erase(groups.begin());
  }
}

inline void wait_all() {
  commit_group();
  wait_group(0);
}

inline void store_shared(unsigned to, std::initializer_list<unsigned> words) {
  memcpy(shared(to, 4 * (unsigned)words.size()), words.begin(), 4 * words.size());
}

}  // namespace ptx

// ------------------------------------------------------------------------------------------------------------- WMMA
// Fragments are opaque in CUDA: here every lane holds the whole tile.
namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int rows = std::is_same<Use, matrix_b>::value ? K : M;
  static constexpr int columns = std::is_same<Use, matrix_a>::value ? K : N;
  static constexpr bool transposed = std::is_same<Layout, col_major>::value;
  T tile[rows][columns];
};

template <class F, class T>
void fill_fragment(F &to, T value) {
  for (auto &row : to.tile)
    for (auto &element : row) element = value;
}

template <class F>
void copy_tile(F &fragment, void *memory, unsigned stride, bool transposed, bool store) {
  using T = std::remove_reference_t<decltype(fragment.tile[0][0])>;
  if ((uintptr_t)memory % 32 || stride * sizeof(T) % 16) emulator::fail("a misaligned tile of a WMMA fragment");
  emulator::wait(emulator::AT_WARP);
  for (int i = 0; i < F::rows; ++i)
    for (int j = 0; j < F::columns; ++j) {
      T &element = ((T *)memory)[transposed ? j * stride + i : i * stride + j];
      (store ? element : fragment.tile[i][j]) = store ? fragment.tile[i][j] : element;
    }
  emulator::wait(emulator::AT_WARP);
}

template <class F, class T>
void load_matrix_sync(F &to, const T *from, unsigned stride) {
  copy_tile(to, (void *)from, stride, F::transposed, false);
}

template <class F, class T>
void load_matrix_sync(F &to, const T *from, unsigned stride, layout_t layout) {
  copy_tile(to, (void *)from, stride, layout == mem_col_major, false);
}

template <class F, class T>
void store_matrix_sync(T *to, const F &from, unsigned stride, layout_t layout) {
  copy_tile(const_cast<F &>(from), to, stride, layout == mem_col_major, true);
}

template <class D, class A, class B, class C>
void mma_sync(D &d, const A &a, const B &b, const C &c) {
  D result;
  for (int i = 0; i < A::rows; ++i)
    for (int j = 0; j < B::columns; ++j) {
      auto sum = c.tile[i][j];
      for (int k = 0; k < A::columns; ++k) sum += (decltype(sum))a.tile[i][k] * (decltype(sum))b.tile[k][j];
      result.tile[i][j] = sum;
    }
  d = result;
}

}  // namespace wmma
}  // namespace nvcuda
