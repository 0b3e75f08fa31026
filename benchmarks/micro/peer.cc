// Runs a model with TFLite Micro and CMSIS-NN on files of the host, as tests/micro/main.c runs ours. OPERATORS adds those
// of the model to the resolver, so that no other kernel is linked.
#include <cstdint>

#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

extern "C" {
#include "start.h"
extern const uint8_t model_data[];
void DebugLog(const char *format, va_list) { say(format); }
void *__dso_handle;
int __aeabi_atexit(void *, void (*)(void *), void *) { return 0; }
int DebugVsnprintf(char *, size_t, const char *, va_list) { return 0; }
}

alignas(16) static uint8_t arena[ARENA];

static void number(unsigned value) {
  char text[12];
  int at = 11;
  text[at] = 0;
  do text[--at] = static_cast<char>('0' + value % 10);
  while (value /= 10);
  say(text + at);
  say("\n");
}

extern "C" int main() {
  static tflite::MicroMutableOpResolver<16> resolver;
  OPERATORS
  static tflite::MicroInterpreter interpreter(tflite::GetModel(model_data), resolver, arena, sizeof arena);
  if (interpreter.AllocateTensors() != kTfLiteOk) return 4;
  if (!CALLS) number(interpreter.arena_used_bytes());
  for (int call = 0; call < CALLS; ++call) {
    char input[] = "input0_0", output[] = "output0_0";
    TfLiteTensor *in = interpreter.input(0), *out = interpreter.output(0);
    if (!read_file(input, in->data.raw, in->bytes)) return 1;
    if (interpreter.Invoke() != kTfLiteOk) return 5;
    if (!write_file(output, out->data.raw, out->bytes)) return 1;
  }
  return 0;
}
