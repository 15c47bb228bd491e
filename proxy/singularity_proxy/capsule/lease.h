// What pid 1 of a capsule does about the lease of its node: it stops the tree when that is over, and
// lets go on what it stopped when the agent has moved the end. Included by holder.cpp alone.
//
// The agent writes the end into a file (capsule/lease_word.py). Nobody else has to do anything for the
// tree to stop: the agent may be dead, stopped or without a connection. An agent that wants to be sure
// that nothing which was stopped here goes on later asks, and is answered in the same file.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace lease {

constexpr int kMostProcesses = 32768;
constexpr int64_t kLookNs = 1000000000;  // how often pid 1 looks whether the agent has changed its mind
constexpr int64_t kHurryNs = 20000000;   // while something could not be stopped yet

struct Process {
  pid_t pid, parent;
  int depth;  // below pid 1; 0: not below it, as CRIU is, which was sent in
  int threads;
  char state;
  unsigned long long start;  // ticks; with the pid it says which process that is
};

struct Stopped {
  pid_t pid;
  unsigned long long start;
};

inline Process processes[kMostProcesses];
inline Stopped stopped[kMostProcesses];  // by us, parents first
inline int stopped_count = 0;

inline int64_t boot_ns() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

// Reads a small file of /proc; false when the process is gone.
inline bool read_small(const char* path, char* text, size_t size) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = read(fd, text, size - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  return true;
}

inline bool look_at(Process& process) {
  char path[40], text[512];
  snprintf(path, sizeof path, "/proc/%d/stat", process.pid);
  if (!read_small(path, text, sizeof text)) return false;
  const char* rest = strrchr(text, ')');  // the name before it may hold anything
  const char* form = " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu";
  return rest && sscanf(rest + 1, form, &process.state, &process.parent, &process.threads, &process.start) == 4;
}

// Whoever is traced by a process that was sent in executes none of its own code (CRIU is at work).
inline bool is_held_by_stranger(pid_t pid, int count) {
  char path[40], text[2048];
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  if (!read_small(path, text, sizeof text)) return false;
  const char* line = strstr(text, "TracerPid:");
  const int tracer = line ? atoi(line + strlen("TracerPid:")) : 0;
  if (!tracer) return false;
  for (int i = 0; i < count; i++)
    if (processes[i].pid == tracer) return processes[i].depth == 0;
  return true;
}

inline bool is_stopped_by_us(const Process& process) {
  for (int i = 0; i < stopped_count; i++)
    if (stopped[i].pid == process.pid && stopped[i].start == process.start) return true;
  return false;
}

// The first thread of a process may have ended before the others; then only the first look counts.
inline bool is_running(const Process& process) {
  if (process.depth == 0) return false;
  if (process.state == 'Z') return process.threads > 1 && !is_stopped_by_us(process);
  return !strchr("TtX", process.state);
}

// Fills `processes` with everything in the namespace; returns how many, and the greatest depth.
inline int look_around(int& deepest) {
  int count = 0;
  deepest = 0;
  DIR* proc = opendir("/proc");
  if (!proc) return 0;
  while (const dirent* entry = readdir(proc)) {
    Process process{atoi(entry->d_name), 0, 0, 0, 0, 0};
    if (process.pid > 1 && count < kMostProcesses && look_at(process)) processes[count++] = process;
  }
  closedir(proc);
  for (int depth = 1, found = 1; found; depth++) {
    found = 0;
    for (int i = 0; i < count; i++) {
      if (processes[i].depth) continue;
      bool below = depth == 1 && processes[i].parent == 1;
      for (int j = 0; depth > 1 && !below && j < count; j++)
        below = processes[j].depth == depth - 1 && processes[j].pid == processes[i].parent;
      if (below) processes[i].depth = depth, deepest = depth, found = 1;
    }
  }
  return count;
}

inline void remember(const Process& process) {
  if (!is_stopped_by_us(process) && stopped_count < kMostProcesses)
    stopped[stopped_count++] = {process.pid, process.start};
}

// Waits until what was stopped stands still, 50 ms at most: one that waits in the system does so later.
inline void settle(int depth, int count) {
  for (int look = 0; look < 50; look++) {
    bool running = false;
    for (int i = 0; i < count; i++)
      if (processes[i].depth == depth && look_at(processes[i]) && is_running(processes[i])) running = true;
    if (!running) return;
    const timespec pause{0, 1000000};
    nanosleep(&pause, nullptr);
  }
}

// Stops everything below pid 1 that runs; what its user had stopped stays as it is. Parents come before
// their children, so no shell sees that its job was stopped. False: something does not stand still yet.
inline bool stop_all() {
  int deepest = 0;
  const int count = look_around(deepest);
  bool quiet = true;
  for (int depth = 1; depth <= deepest; depth++) {
    bool sent = false;
    for (int i = 0; i < count; i++) {
      if (processes[i].depth != depth || !is_running(processes[i])) continue;
      if (is_held_by_stranger(processes[i].pid, count)) continue;
      if (kill(processes[i].pid, SIGSTOP)) continue;
      remember(processes[i]);
      sent = true;
    }
    if (sent) quiet = false, settle(depth, count);
  }
  return quiet;
}

inline void let_go() {
  while (stopped_count) {  // children before their parents
    const Stopped& one = stopped[--stopped_count];
    Process process{one.pid, 0, 0, 0, 0, 0};
    if (look_at(process) && process.start == one.start) kill(one.pid, SIGCONT);
  }
}

// The words of the file, by their place in it.
constexpr off_t kEnd = 0;     // until when (CLOCK_BOOTTIME, ns) the tree may run; 0: without an end
constexpr off_t kAsked = 8;   // number of the agent's newest question
constexpr off_t kObeyed = 16;  // that of the newest one after which we have looked at the end, and obeyed

// Reads a word, which the agent may be just writing, into `last`; that stays when it cannot be read.
inline int64_t read_word(int fd, off_t place, int64_t& last) {
  int64_t first, again;
  for (int look = 0; look < 8; look++) {
    if (pread(fd, &first, sizeof first, place) != sizeof first) return last;
    if (pread(fd, &again, sizeof again, place) != sizeof again) return last;
    if (first == again) return last = first;
  }
  return last;
}

// Obeys the lease; returns when (CLOCK_BOOTTIME, ns) to look again.
inline int64_t obey(int fd) {
  static int64_t last_end = 0, last_asked = 0, answered = 0;
  const int64_t asked = read_word(fd, kAsked, last_asked);  // first: the end was written before it
  const int64_t end = read_word(fd, kEnd, last_end), now = boot_ns();
  const bool over = end && now >= end;
  bool quiet = true;
  if (over) quiet = stop_all();
  else let_go();
  if (asked != answered && pwrite(fd, &asked, sizeof asked, kObeyed) == sizeof asked) answered = asked;
  if (over) return now + (quiet ? kLookNs : kHurryNs);
  return end && end < now + kLookNs ? end : now + kLookNs;
}

// A timer that raises SIGRTMAX; -1 when there is none.
inline int make_timer() {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGRTMAX;
  int timer = -1;  // of this clock, because it goes on while the machine sleeps
  return syscall(SYS_timer_create, CLOCK_BOOTTIME, &event, &timer) ? -1 : timer;
}

inline void wake_at(int timer, int64_t when) {
  const itimerspec at{{0, 0}, {static_cast<time_t>(when / 1000000000), static_cast<long>(when % 1000000000)}};
  syscall(SYS_timer_settime, timer, TIMER_ABSTIME, &at, nullptr);
}

}  // namespace lease
