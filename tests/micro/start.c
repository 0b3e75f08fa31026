/* What a Cortex-M core needs to run a C program under an emulator: vectors, memory, and files of the host through
   semihosting. Faults end the emulator with code 3. */
#include <stddef.h>
#include <stdint.h>

#include "start.h"

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];

void reset(void);
static void fault(void);

__attribute__((section(".vectors"), used)) static const uintptr_t vectors[48] = {
    (uintptr_t)stack_top, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault,
    (uintptr_t)fault,     (uintptr_t)fault, (uintptr_t)fault,
};

static int request(int operation, const void *block) {
  register int r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = block;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory", "lr", "cc");
  return r0;
}

enum { OPEN = 0x01, CLOSE = 0x02, WRITE0 = 0x04, WRITE = 0x05, READ = 0x06, EXIT_EXTENDED = 0x20 };
enum { APPLICATION_EXIT = 0x20026 };
enum { READ_BYTES = 1, WRITE_BYTES = 5 }; /* fopen's "rb" and "wb" */

void stop(int code) {
  const uint32_t block[2] = {APPLICATION_EXIT, (uint32_t)code};
  request(EXIT_EXTENDED, block);
  for (;;) {
  }
}

void say(const char *text) { request(WRITE0, text); }

static void fault(void) {
  say("fault\n");
  stop(3);
}

static int opened(const char *name, uint32_t mode) {
  size_t length = 0;
  while (name[length]) ++length;
  const uint32_t block[3] = {(uint32_t)(uintptr_t)name, mode, (uint32_t)length};
  return request(OPEN, block);
}

/* Whether all of `size` bytes were moved; both operations return how many were not. */
static int moved(int operation, int file, const void *data, size_t size) {
  if (file < 0) return 0;
  const uint32_t block[3] = {(uint32_t)file, (uint32_t)(uintptr_t)data, (uint32_t)size};
  const uint32_t handle[1] = {(uint32_t)file};
  int left = request(operation, block);
  request(CLOSE, handle);
  return left == 0;
}

int read_file(const char *name, void *data, size_t size) { return moved(READ, opened(name, READ_BYTES), data, size); }

int write_file(const char *name, const void *data, size_t size) {
  return moved(WRITE, opened(name, WRITE_BYTES), data, size);
}

void reset(void) {
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: coprocessors 10 and 11, floats and Helium */
  __asm__ volatile("dsb\n\tisb");
#endif
  for (uint32_t *from = data_load, *to = data_start; to < data_end;) *to++ = *from++;
  for (uint32_t *to = bss_start; to < bss_end;) *to++ = 0;
  stop(main());
}
