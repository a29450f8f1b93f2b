/* Ranks under mpirun ask for their host's name and get the one that the job knows it by, as they always have on
 * SageMaker. Loaded into them by LD_PRELOAD; needs no Python, opens no file, and leaves every other name alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

int gethostname(char* name, size_t size) {
  struct utsname machine;
  const char* host = getenv("SM_CURRENT_HOST");
  if (!host || !*host) {
    if (uname(&machine) != 0) return -1;
    host = machine.nodename;
  }
  /* As glibc does: what fits is written, and an error says that more did not. */
  const size_t length = strlen(host) + 1;
  memcpy(name, host, length < size ? length : size);
  if (length > size) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return 0;
}
