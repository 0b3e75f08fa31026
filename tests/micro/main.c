/* Runs the model of model.h on files of the host: input INDEX CALL from "input0_0", outputs to "output0_0". */
#include <stdint.h>

#include "model.h"
#include "start.h"

static _Alignas(MODEL_ALIGNMENT) uint8_t workspace[MODEL_WORKSPACE_BYTES];
static const size_t input_bytes[] = {INPUT_BYTES};
static const size_t output_bytes[] = {OUTPUT_BYTES};

static const char *name(char *text, const char *kind, int index, int call) {
  int length = 0;
  while (*kind) text[length++] = *kind++;
  text[length++] = (char)('0' + index);
  text[length++] = '_';
  text[length++] = (char)('0' + call);
  text[length] = 0;
  return text;
}

static int failed(int status) {
  say(model_status_text(status));
  say("\n");
  return 2;
}

int main(void) {
  char text[32];
  static const model_inputs inputs;
  static model_outputs outputs;
  int status = model_init(workspace, sizeof workspace);
  if (status != MODEL_OK) return failed(status);
  for (int call = 0; call < CALLS; ++call) {
    for (int i = 0; i < MODEL_INPUTS; ++i)
      if (input_bytes[i] && !read_file(name(text, "input", i, call), model_input(workspace, i), input_bytes[i])) return 1;
    status = model_run(workspace, &inputs, &outputs);
    if (status != MODEL_OK) return failed(status);
    for (int i = 0; i < MODEL_OUTPUTS; ++i)
      if (output_bytes[i] && !write_file(name(text, "output", i, call), model_output(workspace, i), output_bytes[i])) return 1;
  }
  return 0;
}
