/* Calls one compiled function on arrays from a file, without TVM's runtime: for any CPU that a C compiler knows.

   usage: program REQUEST RESULT CALLS TASKS

   REQUEST: int64 words, little-endian: the number of arguments, then of each its kind, the code and the bits of its
   dtype, the number of dimensions, the dimensions, its size in bytes; the bytes of all that are not kind FRESH follow.
   RESULT: the bytes of all arguments of the kinds FRESH and CHANGED_POINTER after CALLS calls, in order.
   Parallel loops run on TASKS threads, workers of qnn_ext if the code has them. The function is linked as `entry`. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>
#include <tvm/runtime/c_backend_api.h>

enum { READ, FRESH, READ_POINTER, CHANGED_POINTER, INTEGER };
enum { ALIGNMENT = 64, MARGIN = 256, GUARD = 0x5A, MOST_TASKS = 64 };

int entry(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result);

typedef struct {
  int64_t kind, size;
  uint8_t* memory; /* MARGIN bytes of GUARD, the array, MARGIN bytes of GUARD */
  int64_t shape[16];
  DLTensor tensor;
} Argument;

static int tasks;

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

/* ---- what compiled code asks of a runtime --------------------------------------------------------------------- */

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) fputs(parts[i], stderr);
  fputc('\n', stderr);
}

void* TVMBackendAllocWorkspace(int device, int id, uint64_t size, int code, int bits) {
  return aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

int TVMBackendFreeWorkspace(int device, int id, void* memory) {
  free(memory);
  return 0;
}

typedef struct {
  FTVMParallelLambda run;
  void* data;
  TVMParallelGroupEnv group;
  int index, status;
  pthread_t thread;
} Task;

static void* run_task(void* argument) {
  Task* task = argument;
  task->status = task->run(task->index, &task->group, task->data);
  return NULL;
}

int TVMBackendParallelLaunch(FTVMParallelLambda run, void* data, int count) {
  static Task all[MOST_TASKS];
  int status = 0;
  if (count == 0) count = tasks;
  if (count > MOST_TASKS) fail("too many tasks");
  for (int i = 0; i < count; ++i) {
    all[i] = (Task){.run = run, .data = data, .group = {NULL, count}, .index = i};
    if (i && pthread_create(&all[i].thread, NULL, run_task, &all[i])) fail("no thread could be started");
  }
  run_task(&all[0]);
  for (int i = 0; i < count; ++i) {
    if (i) pthread_join(all[i].thread, NULL);
    status |= all[i].status;
  }
  return status;
}

/* objects look for these functions in variables of their own, which exist where they need them */
extern void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void*) __attribute__((weak));
extern int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void*, int) __attribute__((weak));

static void provide_runtime(void) {
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = TVMBackendAllocWorkspace;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = TVMBackendFreeWorkspace;
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = TVMBackendParallelLaunch;
}

/* ---- threads of our own: what qnn_ext.running.workers does ---------------------------------------------------- */

extern int __tvm_ffi_use_workers(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) __attribute__((weak));
extern int __tvm_ffi_program(void*, const TVMFFIAny*, int32_t, TVMFFIAny*) __attribute__((weak));

static uint8_t workers[SLOTS + SLOT * MOST_TASKS] __attribute__((aligned(SLOT)));

/* Returns whether the code runs its parallel loops on workers. */
static int start_workers(void) {
  if (!__tvm_ffi_use_workers || tasks < 2) return 0;
  int64_t place = (intptr_t)workers;
  TVMFFIAny argument = {0}, result = {0};
  argument.type_index = kTVMFFIOpaquePtr;
  argument.v_ptr = &place;
  if (__tvm_ffi_use_workers(NULL, &argument, 1, &result)) fail("workers are refused");
  for (int i = 0; i < tasks - 1; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, (void* (*)(void*))(intptr_t)place, workers + SLOTS + SLOT * i))
      fail("no thread could be started");
    ((int64_t*)(workers + OWNERS))[i] = (intptr_t)pthread_self();
  }
  *(int32_t*)workers = tasks - 1;
  return 1;
}

/* A program has parallel loops, a kernel may have none. */
static void check_workers(void) {
  if (!__tvm_ffi_program) return;
  for (int i = 0; i < tasks - 1; ++i) {
    uint8_t* slot = workers + SLOTS + SLOT * i;
    if (*(int32_t*)(slot + STATE) || *(int32_t*)(slot + JOB) != i + 1) fail("a worker did not do its task");
  }
}

/* ---- arguments ------------------------------------------------------------------------------------------------ */

static int64_t word(FILE* file) {
  int64_t value;
  if (fread(&value, sizeof value, 1, file) != 1) fail("the request ends early");
  return value;
}

static void read_form(FILE* file, Argument* argument) {
  argument->kind = word(file);
  argument->tensor.dtype.code = word(file);
  argument->tensor.dtype.bits = word(file);
  argument->tensor.dtype.lanes = 1;
  argument->tensor.ndim = word(file);
  if (argument->tensor.ndim > 16) fail("too many dimensions");
  for (int i = 0; i < argument->tensor.ndim; ++i) argument->shape[i] = word(file);
  argument->size = word(file);
  argument->tensor.shape = argument->shape;
  argument->tensor.device.device_type = kDLCPU;
}

static void read_bytes(FILE* file, Argument* argument) {
  int64_t all = (argument->size + 2 * MARGIN + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  argument->memory = aligned_alloc(ALIGNMENT, all);
  memset(argument->memory, GUARD, all);
  argument->tensor.data = argument->memory + MARGIN;
  if (argument->kind != FRESH && fread(argument->tensor.data, 1, argument->size, file) != (size_t)argument->size)
    fail("the request ends early");
}

static TVMFFIAny passed(Argument* argument) {
  TVMFFIAny value = {0};
  if (argument->kind == INTEGER) {
    value.type_index = kTVMFFIInt;
    memcpy(&value.v_int64, argument->tensor.data, sizeof value.v_int64);
  } else if (argument->kind == READ_POINTER || argument->kind == CHANGED_POINTER) {
    value.type_index = kTVMFFIOpaquePtr;
    value.v_ptr = argument->tensor.data;
  } else {
    value.type_index = kTVMFFIDLTensorPtr;
    value.v_ptr = &argument->tensor;
  }
  return value;
}

static void check_margins(const Argument* argument, int index) {
  for (int64_t i = 0; i < MARGIN; ++i)
    if (argument->memory[i] != GUARD || argument->memory[MARGIN + argument->size + i] != GUARD) {
      fprintf(stderr, "wrote beyond argument %d\n", index);
      exit(1);
    }
}

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: program REQUEST RESULT CALLS TASKS");
  FILE* file = fopen(argv[1], "rb");
  if (!file) fail("the request cannot be read");
  int count = word(file);
  Argument* arguments = calloc(count, sizeof *arguments);
  TVMFFIAny* values = calloc(count, sizeof *values);
  for (int i = 0; i < count; ++i) read_form(file, &arguments[i]);
  for (int i = 0; i < count; ++i) read_bytes(file, &arguments[i]);
  fclose(file);

  tasks = atoi(argv[4]);
  provide_runtime();
  int working = start_workers();
  for (int call = atoi(argv[3]); call > 0; --call) {
    TVMFFIAny result = {0};
    for (int i = 0; i < count; ++i) values[i] = passed(&arguments[i]);
    if (entry(NULL, values, count, &result)) fail("the function failed");
  }

  if (working) check_workers();

  file = fopen(argv[2], "wb");
  if (!file) fail("the result cannot be written");
  for (int i = 0; i < count; ++i) {
    Argument* argument = &arguments[i];
    check_margins(argument, i);
    if (argument->kind == FRESH || argument->kind == CHANGED_POINTER)
      fwrite(argument->tensor.data, 1, argument->size, file);
  }
  return fclose(file) ? 1 : 0;
}
