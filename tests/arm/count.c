/* A plugin of QEMU's user mode that writes which instructions a program executed and how often.

   use: qemu-aarch64 -plugin libcount.so,out=FILE program
   FILE: a line for each block of instructions in the order they first ran: address in hexadecimal, how often it ran, how
   many instructions it has, and its bytes.

   The declarations below are those of QEMU's qemu-plugin.h, which distributions do not ship. API is the version that the
   emulator speaks: 1 up to QEMU 8.2, 2 in 9.0, 3 and more after it. A call for each block instead of QEMU's inline
   counters: its form is the same in all versions. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum flags { NO_REGISTERS };
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb*));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb*, void (*)(unsigned, void*), enum flags, void*);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void*), void*);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb*);
extern struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
#if API < 3
extern const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
#else
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn*, void*, size_t);
#endif
EXPORTED int qemu_plugin_version = API;

typedef struct Block {
  struct Block* next;
  uint64_t address, runs;
  size_t instructions, size;
  uint8_t code[];
} Block;

static Block *first, **last = &first;
static const char* out;

static void executed(unsigned cpu, void* block) {
  __atomic_fetch_add(&((Block*)block)->runs, 1, __ATOMIC_RELAXED);
}

static void translated(plugin_id id, struct qemu_plugin_tb* tb) {
  size_t instructions = qemu_plugin_tb_n_insns(tb), size = 0;
  for (size_t i = 0; i < instructions; ++i) size += qemu_plugin_insn_size(qemu_plugin_tb_get_insn(tb, i));
  Block* block = calloc(1, sizeof *block + size);
  block->address = qemu_plugin_tb_vaddr(tb);
  block->instructions = instructions;
  for (size_t i = 0; i < instructions; ++i) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(tb, i);
    size_t bytes = qemu_plugin_insn_size(instruction);
#if API < 3
    memcpy(block->code + block->size, qemu_plugin_insn_data(instruction), bytes);
#else
    qemu_plugin_insn_data(instruction, block->code + block->size, bytes);
#endif
    block->size += bytes;
  }
  *last = block;
  last = &block->next;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGISTERS, block);
}

static void ended(plugin_id id, void* unused) {
  FILE* file = fopen(out, "w");
  if (!file) {
    fprintf(stderr, "count: cannot write %s\n", out);
    return;
  }
  for (Block* block = first; block; block = block->next) {
    if (!block->runs) continue;
    fprintf(file, "%llx %llu %zu ", (unsigned long long)block->address, (unsigned long long)block->runs,
            block->instructions);
    for (size_t i = 0; i < block->size; ++i) fprintf(file, "%02x", block->code[i]);
    fputc('\n', file);
  }
  fclose(file);
}

EXPORTED int qemu_plugin_install(plugin_id id, const void* info, int argc, char** argv) {
  for (int i = 0; i < argc; ++i)
    if (!strncmp(argv[i], "out=", 4)) out = strdup(argv[i] + 4);
  if (!out) {
    fprintf(stderr, "count: out=FILE is missing\n");
    return -1;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
