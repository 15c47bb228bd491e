// A test double of the driver's process checkpoint: the six functions, the states they walk through,
// and failures on demand. Built and loaded by path by the tests; nothing of the real driver is in it.
//
// $DRIVER_DOUBLE is a folder. `state.PID` holds a process's state, `log` every call, and `plan` what
// goes wrong, one line each, used up in their order: "<function> <what>" with
//   busy    NOT_READY, nothing changes        error   an error, nothing changes
//   failed  an error, the state is FAILED     hang    the call never returns
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };
enum { SUCCESS = 0, INVALID_VALUE = 1, ILLEGAL_STATE = 401, NOT_READY = 600, UNKNOWN = 999 };

static void path_of(char *to, size_t n, const char *name, int pid) {
  const char *folder = getenv("DRIVER_DOUBLE");
  if (pid)
    snprintf(to, n, "%s/%s.%d", folder, name, pid);
  else
    snprintf(to, n, "%s/%s", folder, name);
}
static int get_state(int pid) {
  char path[512];
  int state = RUNNING;
  path_of(path, sizeof path, "state", pid);
  FILE *file = fopen(path, "r");
  if (file) {
    if (fscanf(file, "%d", &state) != 1) state = FAILED;
    fclose(file);
  }
  return state;
}
static void set_state(int pid, int state) {
  char path[512];
  path_of(path, sizeof path, "state", pid);
  FILE *file = fopen(path, "w");
  fprintf(file, "%d", state);
  fclose(file);
}
static void note(const char *call, int pid, int code) {
  char path[512];
  path_of(path, sizeof path, "log", 0);
  FILE *file = fopen(path, "a");
  fprintf(file, "%s %d %d\n", call, pid, code);
  fclose(file);
}
// The first line of the plan, if it is about `call`; it is used up.
static void planned(const char *call, char *what) {
  char path[512], rest[4096] = "", line[128], name[64];
  what[0] = 0;
  path_of(path, sizeof path, "plan", 0);
  FILE *file = fopen(path, "r");
  if (!file) return;
  int first = 1;
  while (fgets(line, sizeof line, file)) {
    char one[64];
    if (first && sscanf(line, "%63s %63s", name, one) == 2 && !strcmp(name, call))
      strcpy(what, one);
    else
      strcat(rest, line);
    first = 0;
  }
  fclose(file);
  if (!what[0]) return;
  file = fopen(path, "w");
  fputs(rest, file);
  fclose(file);
}
static int zero(const void *at, size_t from) {
  for (size_t i = from; i < 64; i++)
    if (((const char *)at)[i]) return 0;
  return 1;
}
static int step(const char *call, int pid, int from, int to) {
  char what[64];
  if (kill(pid, 0)) return note(call, pid, INVALID_VALUE), INVALID_VALUE;
  planned(call, what);
  if (!strcmp(what, "hang"))
    for (;;) pause();
  if (!strcmp(what, "busy")) return note(call, pid, NOT_READY), NOT_READY;
  if (!strcmp(what, "error")) return note(call, pid, UNKNOWN), UNKNOWN;
  if (!strcmp(what, "failed")) {
    set_state(pid, FAILED);
    return note(call, pid, UNKNOWN), UNKNOWN;
  }
  if (get_state(pid) != from) return note(call, pid, ILLEGAL_STATE), ILLEGAL_STATE;
  set_state(pid, to);
  return note(call, pid, SUCCESS), SUCCESS;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = 12080, SUCCESS; }
int cuGetErrorName(int code, const char **name) {
  *name = code == NOT_READY ? "CUDA_ERROR_NOT_READY" : code == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE" : "CUDA_ERROR_UNKNOWN";
  return SUCCESS;
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) { return *thread = pid, SUCCESS; }
int cuCheckpointProcessGetState(int pid, int *state) { return *state = get_state(pid), SUCCESS; }
int cuCheckpointProcessLock(int pid, const unsigned *arguments) {
  if (!zero(arguments, 4) || arguments[0] == 0) return INVALID_VALUE;
  return step("lock", pid, RUNNING, LOCKED);
}
int cuCheckpointProcessCheckpoint(int pid, const void *arguments) {
  return zero(arguments, 0) ? step("checkpoint", pid, LOCKED, CHECKPOINTED) : INVALID_VALUE;
}
int cuCheckpointProcessRestore(int pid, const void *arguments) {
  return zero(arguments, 0) ? step("restore", pid, CHECKPOINTED, LOCKED) : INVALID_VALUE;
}
int cuCheckpointProcessUnlock(int pid, const void *arguments) {
  return zero(arguments, 0) ? step("unlock", pid, LOCKED, RUNNING) : INVALID_VALUE;
}
