/* Runs {{ name }} once on the bytes of files: ./example{% for port in inputs %} INPUT{{ port.index }}.bin{% endfor %}{% for port in outputs %} OUTPUT{{ port.index }}.bin{% endfor %}

   Inputs and outputs are in the order of the model, elements in row-major order and this machine's byte order. */
{% if file %}
#define _POSIX_C_SOURCE 200112L
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
{% endif %}
#include <stdio.h>
#include <stdlib.h>

#include "{{ name }}.h"

static int read_file(const char *path, void *bytes, size_t size) {
  FILE *file = fopen(path, "rb");
  if (!file) return perror(path), 0;
  size_t found = fread(bytes, 1, size, file);
  int more = fgetc(file) != EOF;
  fclose(file);
  if (found == size && !more) return 1;
  fprintf(stderr, "%s: must have %zu bytes\n", path, size);
  return 0;
}

static int write_file(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  if (!file) return perror(path), 0;
  int written = fwrite(bytes, 1, size, file) == size;
  if (fclose(file) || !written) return perror(path), 0;
  return 1;
}

static _Alignas({{ U }}_ALIGNMENT) unsigned char workspace[{{ U }}_WORKSPACE_BYTES];
{% for port in inputs + outputs %}
static {{ port.type }} {{ port.kind }}{{ port.index }}[{{ [port.elements, 1] | max }}];
{% endfor %}

int main(int argc, char **argv) {
  if (argc != 1 + {{ U }}_INPUTS + {{ U }}_OUTPUTS) {
    fprintf(stderr, "usage: %s{% for port in inputs %} INPUT{{ port.index }}.bin{% endfor %}{% for port in outputs %} OUTPUT{{ port.index }}.bin{% endfor %}\n", argv[0]);
    return 2;
  }
{% for port in inputs %}
  if (!read_file(argv[{{ 1 + port.index }}], {{ port.kind }}{{ port.index }}, {{ port.macro }}_BYTES)) return 1;
{% endfor %}

{% if file %}
  const char *path = getenv("{{ U }}_WEIGHTS");
  int weights_file = open(path ? path : {{ file | c }}, O_RDONLY);
  if (weights_file < 0) return perror(path ? path : {{ file | c }}), 1;
  void *weights = mmap(NULL, {{ U }}_WEIGHTS_BYTES, PROT_READ, MAP_PRIVATE, weights_file, 0);
  off_t weights_bytes = lseek(weights_file, 0, SEEK_END);
  if (weights == MAP_FAILED || weights_bytes < 0) return perror({{ file | c }}), 1;
  int status = {{ name }}_init(workspace, sizeof workspace, weights, (size_t)weights_bytes);
{% else %}
  int status = {{ name }}_init(workspace, sizeof workspace);
{% endif %}
  {{ name }}_inputs inputs = {{ "{" }}{% for port in inputs %}{{ port.kind }}{{ port.index }}{{ ", " if not loop.last }}{% else %}0{% endfor %}{{ "}" }};
  {{ name }}_outputs outputs = {{ "{" }}{% for port in outputs %}{{ port.kind }}{{ port.index }}{{ ", " if not loop.last }}{% endfor %}{{ "}" }};
  if (status == {{ U }}_OK) status = {{ name }}_run(workspace, &inputs, &outputs);
  if (status != {{ U }}_OK) {
    fprintf(stderr, "%s\n", {{ name }}_status_text(status));
    return 1;
  }
{% for port in outputs %}
  if (!write_file(argv[{{ 1 + inputs | length + port.index }}], {{ port.kind }}{{ port.index }}, {{ port.macro }}_BYTES)) return 1;
{% endfor %}
  return 0;
}
