/* Executes Intel AMX's instructions on CPUs that lack them: each ends in an illegal instruction, which this decodes,
   computes and skips. Covers the configuration, loads, stores and products of tiles. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };

typedef struct {
    int configured;
    uint8_t rows[TILES];
    uint16_t bytes[TILES];
    uint8_t data[TILES][ROWS][BYTES];
} tiles_t;

static __thread tiles_t state;
static struct sigaction before;
static uint64_t counts[7]; /* configurations, zeroed tiles, loads, stores, products, rows across lines, of bfloat16 */

static void count(int kind, uint64_t more) { __atomic_fetch_add(&counts[kind], more, __ATOMIC_RELAXED); }

static const int NUMBERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* The address of a memory operand, and the index register's value; sets the number of bytes after the opcode. */
static uint8_t *address(const uint8_t *modrm, int base_bit, int index_bit, greg_t *registers, int64_t *index,
                        int *length) {
    int mod = modrm[0] >> 6, rm = modrm[0] & 7;
    uint64_t at = 0;
    const uint8_t *rest = modrm + 1;
    *index = 0;
    if (rm == 4) {
        int scale = rest[0] >> 6, i = (rest[0] >> 3 & 7) | index_bit << 3, b = (rest[0] & 7) | base_bit << 3;
        if (i != 4)
            *index = (int64_t)registers[NUMBERS[i]] * (1 << scale);
        if ((rest[0] & 7) == 5 && mod == 0) {
            int32_t displacement;
            memcpy(&displacement, rest + 1, 4);
            *length = 6;
            return (uint8_t *)(int64_t)displacement;
        }
        at = registers[NUMBERS[b]];
        rest += 1;
    } else if (rm == 5 && mod == 0) { /* relative to the next instruction, whose distance the caller adds */
        int32_t displacement;
        memcpy(&displacement, rest, 4);
        *length = 5;
        return (uint8_t *)(registers[REG_RIP] + (rest + 4 - (const uint8_t *)registers[REG_RIP]) + displacement);
    } else {
        at = registers[NUMBERS[rm | base_bit << 3]];
    }
    if (mod == 1) {
        at += (int8_t)rest[0];
        rest += 1;
    } else if (mod == 2) {
        int32_t displacement;
        memcpy(&displacement, rest, 4);
        at += displacement;
        rest += 4;
    }
    *length = (int)(rest - modrm);
    return (uint8_t *)at;
}

static void product(int to, int left, int right, int left_signed, int right_signed) {
    for (int m = 0; m < state.rows[to]; m++)
        for (int k = 0; k < state.bytes[left] / 4; k++)
            for (int n = 0; n < state.bytes[to] / 4; n++) {
                int32_t sum;
                memcpy(&sum, &state.data[to][m][4 * n], 4);
                for (int i = 0; i < 4; i++) {
                    uint8_t a = state.data[left][m][4 * k + i], b = state.data[right][k][4 * n + i];
                    sum = (int32_t)((uint32_t)sum + (uint32_t)((left_signed ? (int8_t)a : a) * (right_signed ? (int8_t)b : b)));
                }
                memcpy(&state.data[to][m][4 * n], &sum, 4);
            }
}

static float wide(uint16_t half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* Sums of even and of odd products are separate until the end; unlike the CPU, this keeps subnormal numbers. */
static void bfloat16_product(int to, int left, int right) {
    for (int m = 0; m < state.rows[to]; m++)
        for (int n = 0; n < state.bytes[to] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < state.bytes[left] / 4; k++) {
                uint16_t a[2], b[2];
                memcpy(a, &state.data[left][m][4 * k], 4);
                memcpy(b, &state.data[right][k][4 * n], 4);
                even = fmaf(wide(a[0]), wide(b[0]), even);
                odd = fmaf(wide(a[1]), wide(b[1]), odd);
            }
            memcpy(&sum, &state.data[to][m][4 * n], 4);
            sum += even + odd;
            memcpy(&state.data[to][m][4 * n], &sum, 4);
        }
}

/* Returns the instruction's length, or 0 if it is not one of these. */
static int execute(const uint8_t *code, greg_t *registers) {
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0)
        return 0;
    int prefix = code[2] & 3, second = ~code[2] >> 3 & 15; /* 0: none, 1: 66, 2: F3, 3: F2 */
    int base_bit = !(code[1] & 0x20), index_bit = !(code[1] & 0x40);
    const uint8_t *modrm = code + 4;
    int reg = modrm[0] >> 3 & 7, rm = modrm[0] & 7, in_register = modrm[0] >> 6 == 3, length = 1;
    int64_t stride;
    switch (code[3]) {
    case 0x49:
        if (prefix == 0 && modrm[0] == 0xc0) { /* tilerelease */
            memset(&state, 0, sizeof state);
        } else if (prefix == 0 && !in_register && reg == 0) { /* ldtilecfg */
            const uint8_t *from = address(modrm, base_bit, index_bit, registers, &stride, &length);
            from += stride;
            memset(&state, 0, sizeof state);
            if (from[0] != 1)
                abort();
            state.configured = 1;
            for (int tile = 0; tile < TILES; tile++) {
                memcpy(&state.bytes[tile], from + 16 + 2 * tile, 2);
                state.rows[tile] = from[48 + tile];
                if (state.bytes[tile] > BYTES || state.rows[tile] > ROWS || !state.bytes[tile] != !state.rows[tile])
                    abort();
            }
            count(0, 1);
        } else if (prefix == 3 && in_register && rm == 0) { /* tilezero */
            if (!state.rows[reg])
                abort();
            memset(state.data[reg], 0, sizeof state.data[reg]);
            count(1, 1);
        } else {
            return 0;
        }
        return 4 + length;
    case 0x4b: {
        if (in_register || rm != 4 || prefix == 0)
            return 0;
        uint8_t *at = address(modrm, base_bit, index_bit, registers, &stride, &length);
        if (!state.rows[reg])
            abort();
        if (prefix != 2)
            memset(state.data[reg], 0, sizeof state.data[reg]);
        for (int row = 0; row < state.rows[reg]; row++) {
            uint8_t *first = at + row * stride, *last = first + state.bytes[reg] - 1;
            count(5, (uint64_t)first / BYTES != (uint64_t)last / BYTES);
            if (prefix == 2)
                memcpy(at + row * stride, state.data[reg][row], state.bytes[reg]);
            else
                memcpy(state.data[reg][row], at + row * stride, state.bytes[reg]);
        }
        count(prefix == 2 ? 3 : 2, 1);
        return 4 + length;
    }
    case 0x5c:
    case 0x5e:
        if (!in_register || (code[3] == 0x5c && prefix != 2))
            return 0;
        if (state.rows[reg] != state.rows[rm] || state.bytes[reg] != state.bytes[second & 7] ||
            state.bytes[rm] != 4 * state.rows[second & 7] || reg == rm || reg == second || rm == second)
            abort();
        if (code[3] == 0x5c) {
            bfloat16_product(reg, rm, second & 7);
            count(6, 1);
            return 5;
        }
        product(reg, rm, second & 7, prefix >= 2, prefix == 1 || prefix == 3);
        count(4, 1);
        return 5;
    }
    return 0;
}

static void illegal(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int length = execute((const uint8_t *)registers[REG_RIP], registers);
    if (length) {
        registers[REG_RIP] += length;
        return;
    }
    sigaction(SIGILL, &before, NULL); /* again, as it was without us */
}

/* Call it again wherever others may have taken the signal since. */
void amx_emulate(void) {
    struct sigaction action, current;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = illegal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, NULL, &current);
    if (current.sa_sigaction != illegal) {
        before = current;
        sigaction(SIGILL, &action, NULL);
    }
}

uint64_t amx_count(int kind) { return counts[kind]; }
