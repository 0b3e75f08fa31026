/* Calls any exported model through its own header, on files, with bytes around the workspace that must not change.

   usage: harness INPUTS OUTPUTS CALLS THREADS
   INPUTS: the bytes of all inputs of each call, one call after another; OUTPUTS gets those of all outputs.
   PREFIX and UPPER: the library's name; THREADS above 1 needs a library with -DTHREADED. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define CALL(function) JOIN(PREFIX, function)
#define VALUE(name) JOIN(UPPER, name)
#include HEADER

enum { MARGIN = 256, GUARD = 0x5A };

static unsigned char memory[VALUE(_WORKSPACE_BYTES) + 2 * MARGIN] __attribute__((aligned(VALUE(_ALIGNMENT))));
static unsigned char *const workspace = memory + MARGIN;

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

#ifdef THREADED
typedef struct {
  void (*task)(void *, int);
  void *data;
  int index;
} Job;

static void *run_job(void *given) {
  Job *job = given;
  job->task(job->data, job->index);
  return NULL;
}

static void parallel_for(void *context, int count, void (*task)(void *, int), void *data) {
  pthread_t threads[64];
  Job jobs[64];
  ++*(int *)context;
  for (int i = count - 1; i >= 0; --i) {
    jobs[i] = (Job){task, data, i};
    if (pthread_create(&threads[i], NULL, run_job, &jobs[i])) fail("no thread could be started");
  }
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
}
#endif

static const size_t input_bytes[] = {INPUT_BYTES}, output_bytes[] = {OUTPUT_BYTES};

int main(int argc, char **argv) {
  if (argc != 5) fail("usage: harness INPUTS OUTPUTS CALLS THREADS");
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (!in || !out) fail("a file cannot be opened");
  memset(memory, GUARD, sizeof memory);
#ifdef WEIGHTS
  static unsigned char weights[VALUE(_WEIGHTS_BYTES)] __attribute__((aligned(VALUE(_ALIGNMENT))));
  FILE *file = fopen(WEIGHTS, "rb");
  if (!file || fread(weights, 1, sizeof weights, file) != sizeof weights) fail("the weights cannot be read");
  fclose(file);
  int status = CALL(_init)(workspace, VALUE(_WORKSPACE_BYTES), weights, sizeof weights);
#else
  int status = CALL(_init)(workspace, VALUE(_WORKSPACE_BYTES));
#endif
  if (status) fail(CALL(_status_text)(status));
  int launches = 0;
  for (int call = atoi(argv[3]); call > 0; --call) {
    JOIN(PREFIX, _inputs) inputs;
    JOIN(PREFIX, _outputs) outputs;
    memset(&inputs, 0, sizeof inputs);
    memset(&outputs, 0, sizeof outputs);
    for (int i = 0; i < VALUE(_INPUTS); ++i)
      if (fread(CALL(_input)(workspace, i), 1, input_bytes[i], in) != input_bytes[i]) fail("the inputs end early");
#ifdef THREADED
    JOIN(PREFIX, _threads) threads = {atoi(argv[4]), parallel_for, &launches};
    status = CALL(_run_on)(workspace, &inputs, &outputs, &threads);
#else
    status = CALL(_run)(workspace, &inputs, &outputs);
#endif
    if (status) fail(CALL(_status_text)(status));
    for (int i = 0; i < VALUE(_OUTPUTS); ++i) fwrite(CALL(_output)(workspace, i), 1, output_bytes[i], out);
  }
  for (int i = 0; i < MARGIN; ++i)
    if (memory[i] != GUARD || workspace[VALUE(_WORKSPACE_BYTES) + i] != GUARD) fail("wrote outside of the workspace");
  printf("%s %d\n", CALL(_target)(workspace), launches);
  return fclose(out) ? 1 : 0;
}
