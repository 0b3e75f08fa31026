/* Files of the host, text on its console, and the end. */
#include <stddef.h>

int main(void);
void stop(int code);
void say(const char *text);
int read_file(const char *name, void *data, size_t size);
int write_file(const char *name, const void *data, size_t size);
