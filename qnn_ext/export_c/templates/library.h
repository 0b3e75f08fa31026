/* {{ name }}: {{ source }}, compiled by qnn_ext {{ version }}.

   One call computes the outputs of the inputs. All memory that it needs is the workspace, which the caller provides:
   {{ U }}_WORKSPACE_BYTES bytes at a multiple of {{ U }}_ALIGNMENT. Calls with different workspaces may run at the same
   time. Nothing is allocated, and nothing is kept elsewhere. */
#ifndef {{ U }}_H
#define {{ U }}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define {{ U }}_VERSION {{ version | c }}   /* of qnn_ext */
#define {{ U }}_FORMAT {{ format }}   /* of this interface */
#define {{ U }}_CHECKSUM {{ checksum | c }}   /* SHA-256 of code and weights */
#define {{ U }}_TARGETS {{ targets | c }}   /* fastest first */
#define {{ U }}_ALIGNMENT {{ alignment }}   /* bytes, of the workspace{{ " and the weights" if file }} */
#define {{ U }}_WORKSPACE_BYTES {{ workspace }}
{% if file %}
#define {{ U }}_WEIGHTS_BYTES {{ weights_bytes }}   /* of the file {{ file }} */
{% endif %}
#define {{ U }}_INPUTS {{ inputs | length }}
#define {{ U }}_OUTPUTS {{ outputs | length }}

/* A quantized value q stands for SCALE * (q - ZERO_POINT). */
{% for port in inputs + outputs %}

/* {{ port.kind }} {{ port.index }}: {{ port.text }} */
#define {{ port.macro }}_NAME {{ port.name | c }}
#define {{ port.macro }}_TYPE {{ port.type }}
#define {{ port.macro }}_RANK {{ port.shape | length }}
{% if port.shape %}
#define {{ port.macro }}_SHAPE {{ "{" }}{{ port.shape | join(", ") }}{{ "}" }}
{% endif %}
#define {{ port.macro }}_ELEMENTS {{ port.elements }}
#define {{ port.macro }}_BYTES {{ port.bytes }}
{% if port.scales | length == 1 %}
#define {{ port.macro }}_SCALE {{ port.scales[0] }}
#define {{ port.macro }}_ZERO_POINT ({{ port.zero_points[0] }})
{% elif port.scales %}
#define {{ port.macro }}_SCALES {{ "{" }}{{ port.scales | join(", ") }}{{ "}" }}
#define {{ port.macro }}_ZERO_POINTS {{ "{" }}{{ port.zero_points | join(", ") }}{{ "}" }}
#define {{ port.macro }}_AXIS {{ port.axis }}   /* the dimension that they run along */
{% endif %}
{% endfor %}

/* Where the inputs are. Each may be NULL: then its values are where {{ name }}_input says, in the workspace. */
typedef struct {
{% for port in inputs %}
  const {{ port.type }} *{{ port.field }};   /* {{ port.elements }} */
{% else %}
  char none;
{% endfor %}
} {{ name }}_inputs;

/* Where the outputs go. Each may be NULL: then they stay where {{ name }}_output says, until the next call. */
typedef struct {
{% for port in outputs %}
  {{ port.type }} *{{ port.field }};   /* {{ port.elements }} */
{% endfor %}
} {{ name }}_outputs;

/* What functions return; anything positive is the number of a check that the values of an input failed. */
enum {
  {{ U }}_OK = 0,
  {{ U }}_NULL = -1,        /* a pointer that must not be NULL is */
  {{ U }}_UNALIGNED = -2,   /* the workspace{{ " or the weights" if file }} start at no multiple of {{ U }}_ALIGNMENT */
  {{ U }}_TOO_SMALL = -3,   /* the workspace{{ " or the weights" if file }} have too few bytes */
  {{ U }}_NOT_READY = -4,   /* {{ name }}_init was not called for this workspace */
  {{ U }}_WRONG_CPU = -5,   /* the CPU can run none of the targets */
  {{ U }}_WRONG_WEIGHTS = -6   /* the weights are not those of this code */
};

/* What a status means, in English. */
const char *{{ name }}_status_text(int status);

/* {{ U }}_WORKSPACE_BYTES, for who loads this as a shared library. */
size_t {{ name }}_workspace_bytes(void);

{% if file %}
/* Make a workspace of so many bytes ready for calls, once, with the content of {{ file }}, which must stay where it is. */
int {{ name }}_init(void *workspace, size_t bytes, const void *weights, size_t weights_bytes);
{% else %}
/* Make a workspace of so many bytes ready for calls, once. */
int {{ name }}_init(void *workspace, size_t bytes);
{% endif %}

/* Compute the outputs of the inputs. */
int {{ name }}_run(void *workspace, const {{ name }}_inputs *inputs, {{ name }}_outputs *outputs);
{% if shared %}

/* Threads, from the caller. parallel_for calls task(data, index) for every index from 0 to count - 1, in any order and on
   any threads, and returns when all calls have. What was written before a call, or in it, is then seen after it. */
typedef struct {
  int count;   /* how many tasks to make, of which {{ U }}_TASKS are of use */
  void (*parallel_for)(void *context, int count, void (*task)(void *data, int index), void *data);
  void *context;
} {{ name }}_threads;

#define {{ U }}_TASKS {{ tasks }}

/* The same on several threads; on one if threads is NULL. The outputs do not depend on their number. */
int {{ name }}_run_on(void *workspace, const {{ name }}_inputs *inputs, {{ name }}_outputs *outputs,
    const {{ name }}_threads *threads);
{% endif %}
{% if states %}

/* Set the {{ states | length }} values that the model keeps from call to call back to what they were after {{ name }}_init. */
int {{ name }}_reset(void *workspace);
{% endif %}
{% if checks %}

/* The value that failed the check in the last call. */
int64_t {{ name }}_failed_value(const void *workspace);
{% endif %}

/* Where in the workspace an input and an output are; NULL if the workspace is not ready or there is none. */
void *{{ name }}_input(void *workspace, int index);
const void *{{ name }}_output(const void *workspace, int index);

/* Which of {{ U }}_TARGETS runs; NULL if the workspace is not ready. */
const char *{{ name }}_target(const void *workspace);

#ifdef __cplusplus
}
#endif

#endif
