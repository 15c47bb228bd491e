// The holder of a capsule: makes the namespaces, starts the command inside, tells how it ended.
//
//   holder run --report FD --uid N --gid N --umask N --cwd DIR --log FILE [--user] [--tmp DIR]
//              [--shm] [--keep DIR [--at DIR] [--writable]]... [--lease FD] [--idle]
//              [--sealed PARENT [--view DIR]...] -- PROGRAM ARGUMENT...
//   holder enter --pidfd FD [--user] [--sealed 1] [--uid N --gid N [--root [--own-files [--handles]]]] [--last-pid N]
//                -- PROGRAM ARGUMENT...
//
// `run` is two processes. The inner one is pid 1 of a new pid, mount and IPC namespace: it reaps for ever
// and ends when the main process (always pid kMainPid) has ended, whether it started that process or
// CRIU restored it (`--idle`). The outer one stays in the namespaces of the caller and ends exactly
// as the main process did: pid 1 could not, because it cannot be killed by a signal of its own. If
// either is killed, the whole tree is. Both run without privileges once the main process is started.
// Neither executes anything else, so none of them can be mistaken for a process of the user.
//
// `--lease` names a file in which the agent says until when the tree may run (capsule/lease_word.py).
// When that time is over pid 1 stops everything, and lets it go on when the agent has moved the time:
// an agent that is dead or hangs cannot do it, and another node may start the session by then.
//
// `--sealed` is for a tree that must leave no trace (a checkpoint that is being proved): it has no network of
// the machine, everything is read-only but what is `--writable`, below each `--view` what is written goes to
// memory and away, and all of it ends with the process PARENT. seal.h has these.
//
// `enter` runs a program (CRIU) in the namespaces of a holder, and can say from which pid on the
// namespace goes on counting. With `--root` the program has the user's uid and yet all rights: to read
// a process's limits (prlimit) takes the same uid or CAP_SYS_RESOURCE, which containers lack. With
// `--own-files` those rights do not reach files: a restore opens, makes and removes files by path, and
// what the user puts in such a place meanwhile must lead no further than the user may go. `--handles`
// leaves the right to read, which takes a file by its handle (capsule/files/reach.py says who looks then).
//
// Built by capsule/holder.py. Exit status 125: the holder itself failed.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lease.h"
#include "seal.h"

namespace {

constexpr int kFailed = 125;
// Low numbers stay free for CRIU and other helpers that enter: a restore needs every pid of the image.
constexpr pid_t kMainPid = 5001;
constexpr int kMaxKept = 64;

struct Options {
  int report = -1, pidfd = -1, lease = -1;
  long uid = -1, gid = -1, umask = 022, last_pid = 0;
  const char *cwd = "/", *log = nullptr, *tmp = nullptr;
  const char *keep[kMaxKept], *at[kMaxKept], *view[kMaxKept];
  bool writable[kMaxKept] = {};
  int kept = 0, views = 0;
  long sealed = 0;  // whose end is its end
  bool user = false, shm = false, idle = false, root = false, own_files = false, handles = false;
  char** argv = nullptr;
  char* first = nullptr;  // where the words of our own command line begin
};

int report_fd = -1;

// Tells the caller in which step the start failed, and ends. The caller reads until the end of file.
[[noreturn]] void fail(const char* step, int error = errno) {
  if (report_fd >= 0)
    dprintf(report_fd, "error %s %d\n", step, error);
  else
    dprintf(2, "holder: %s: %s\n", step, strerror(error));
  _exit(kFailed);
}

long number(const char* text) {
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  if (!*text || *end) fail("options", EINVAL);
  return value;
}

Options parse(char** words) {
  Options o;
  for (; *words; words++) {
    const char* name = *words;
    if (!strcmp(name, "--")) {
      o.argv = words + 1;
      return o;
    }
    if (!strcmp(name, "--user")) o.user = true;
    else if (!strcmp(name, "--shm")) o.shm = true;
    else if (!strcmp(name, "--idle")) o.idle = true;
    else if (!strcmp(name, "--root")) o.root = true;
    else if (!strcmp(name, "--own-files")) o.own_files = true;
    else if (!strcmp(name, "--handles")) o.handles = true;
    else if (!strcmp(name, "--writable") && o.kept) o.writable[o.kept - 1] = true;
    else {
      const char* value = *++words;
      if (!value) fail("options", EINVAL);
      if (!strcmp(name, "--report")) o.report = static_cast<int>(number(value));
      else if (!strcmp(name, "--pidfd")) o.pidfd = static_cast<int>(number(value));
      else if (!strcmp(name, "--lease")) o.lease = static_cast<int>(number(value));
      else if (!strcmp(name, "--uid")) o.uid = number(value);
      else if (!strcmp(name, "--gid")) o.gid = number(value);
      else if (!strcmp(name, "--umask")) o.umask = number(value);
      else if (!strcmp(name, "--last-pid")) o.last_pid = number(value);
      else if (!strcmp(name, "--sealed")) o.sealed = number(value);
      else if (!strcmp(name, "--view") && o.views < kMaxKept) o.view[o.views++] = value;
      else if (!strcmp(name, "--cwd")) o.cwd = value;
      else if (!strcmp(name, "--log")) o.log = value;
      else if (!strcmp(name, "--tmp")) o.tmp = value;
      else if (!strcmp(name, "--keep") && o.kept < kMaxKept) o.keep[o.kept] = o.at[o.kept] = value, o.kept++;
      else if (!strcmp(name, "--at") && o.kept) o.at[o.kept - 1] = value;
      else fail("options", EINVAL);
    }
  }
  fail("options", EINVAL);
}

// System V objects belong to no process, so an IPC namespace of its own is what says whose they are.
int namespaces(const Options& o) {
  return CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | (o.user ? CLONE_NEWUSER : 0) | (o.sealed ? CLONE_NEWNET : 0);
}

bool write_file(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = static_cast<ssize_t>(strlen(text));
  const bool done = write(fd, text, static_cast<size_t>(n)) == n;
  const int error = errno;
  close(fd);
  errno = error;
  return done;
}

bool set_last_pid(long pid) {
  char text[32];
  snprintf(text, sizeof text, "%ld", pid);
  return write_file("/proc/sys/kernel/ns_last_pid", text);
}

// What a list of processes shows for this one; the user's command stands in the main process's line.
void retitle(const Options& o, const char* title) {
  char* last = o.argv[0] ? o.argv[0] : o.first;
  for (char** word = o.argv; *word; word++) last = *word;
  const size_t space = static_cast<size_t>(last + strlen(last) - o.first);
  memset(o.first, 0, space);
  strncpy(o.first, title, space);
}

// ---- privileges

void set_capabilities(uint32_t low, uint32_t high, bool inheritable) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  data[0].permitted = data[0].effective = low;
  data[1].permitted = data[1].effective = high;
  if (inheritable) {
    data[0].inheritable = low;
    data[1].inheritable = high;
  }
  if (syscall(SYS_capset, &header, data)) fail("capset");
}

// Becomes the session's user. In a user namespace the uid is ours already and all rights in it go.
void drop_privileges(const Options& o) {
  if (o.user) {
    for (int cap = 0; cap < 64; cap++) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    set_capabilities(0, 0, false);
  }
  if (o.uid < 0) return;
  if (setgroups(0, nullptr)) fail("setgroups");
  const gid_t gid = static_cast<gid_t>(o.gid);
  const uid_t uid = static_cast<uid_t>(o.uid);
  if (setresgid(gid, gid, gid)) fail("setgid");
  if (setresuid(uid, uid, uid)) fail("setuid");
  // A session of a uid that only this node gave out must not become anybody else by a setuid file.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
}

// Takes the uid, if one is given, and keeps the capabilities across the exec that follows; all but the
// right to other uids, because CRIU would make itself root with it and then could not go back.
void keep_rights(const Options& o) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data)) fail("capget");
  if (o.uid >= 0 && !o.user) {
    const gid_t gid = static_cast<gid_t>(o.gid);
    const uid_t uid = static_cast<uid_t>(o.uid);
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || setgroups(0, nullptr)) fail("setgroups");
    if (setresgid(gid, gid, gid) || setresuid(uid, uid, uid)) fail("setuid");
  }
  uint32_t without = 1u << CAP_SETUID | 1u << CAP_SETGID;
  if (o.own_files)
    without |= 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER | 1u << CAP_CHOWN | 1u << CAP_FSETID;
  if (o.own_files && !o.handles) without |= 1u << CAP_DAC_READ_SEARCH;
  set_capabilities(data[0].permitted & ~without, data[1].permitted, true);
  for (int cap = 0; cap < 64; cap++) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0);
}

// ---- mounts (pid 1, before it drops its privileges)

// Length of `base` if `path` lies below it, else 0.
size_t below(const char* path, const char* base) {
  const size_t n = strlen(base);
  return !strncmp(path, base, n) && path[n] == '/' ? n : 0;
}

// Opens `path`, a folder below the new mount `base`, making what is missing. Never follows a link: the
// user may have put one there, and CRIU runs as root in this namespace later.
int open_below(const char* base, const char* path) {
  int at = open(base, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (at < 0) fail("keep");
  char copy[4096];
  if (snprintf(copy, sizeof copy, "%s", path + strlen(base)) >= static_cast<int>(sizeof copy))
    fail("keep", ENAMETOOLONG);
  char* rest = nullptr;
  for (char* name = strtok_r(copy, "/", &rest); name; name = strtok_r(nullptr, "/", &rest)) {
    if (mkdirat(at, name, 0755) && errno != EEXIST) fail("keep");
    const int next = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) fail("keep");
    close(at);
    at = next;
  }
  return at;
}

void bind_mount(int source, const char* target, unsigned long flags) {
  char from[40];
  snprintf(from, sizeof from, "/proc/self/fd/%d", source);
  if (mount(from, target, nullptr, MS_BIND | flags, nullptr)) fail("bind");
}

void make_mounts(const Options& o) {
  int tmp = -1;
  int kept[kMaxKept];
  if (o.tmp && (tmp = open(o.tmp, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) fail("tmp");
  for (int i = 0; i < o.kept; i++)
    if ((kept[i] = open(o.keep[i], O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) fail("keep");
  // Nothing that is mounted here reaches the machine; what it mounts later (home folders) comes in.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr)) fail("mounts");
  int below_view[kMaxKept];
  for (int i = 0; i < o.views; i++)
    if ((below_view[i] = seal::open_plain(o.view[i])) < 0) fail("view");
  if (o.sealed && !seal::set_writable("/", false)) fail("read-only");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr)) fail("proc");
  if (tmp >= 0) bind_mount(tmp, "/tmp", 0);
  if (tmp >= 0 && o.sealed && !seal::set_writable("/tmp", true)) fail("tmp");
  if (o.shm && mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")) fail("shm");
  for (int i = 0; i < o.kept; i++) {
    const char* base = tmp >= 0 && below(o.at[i], "/tmp")      ? "/tmp"
                       : o.shm && below(o.at[i], "/dev/shm") ? "/dev/shm"
                                                              : nullptr;
    if (base) {
      const int target = open_below(base, o.at[i]);
      char to[40];
      snprintf(to, sizeof to, "/proc/self/fd/%d", target);
      bind_mount(kept[i], to, MS_REC);
      close(target);
    }
    if (!base || !o.sealed) continue;
    if (o.writable[i] && !seal::set_writable(o.at[i], true)) fail("writable");
  }
  if (o.views && !seal::make_views(o.view, below_view, o.views, o.user)) fail("view");
  // What keeps its place outside of those two: a folder that another one is shown in, or below a view.
  for (int i = 0; i < o.kept && o.sealed; i++) {
    if ((tmp >= 0 && below(o.at[i], "/tmp")) || (o.shm && below(o.at[i], "/dev/shm"))) continue;
    // In a view: a session that is away has no folder.
    if (mkdir(o.at[i], 0700) && errno != EEXIST && errno != EROFS) fail("keep");
    const int target = seal::open_plain(o.at[i]);
    if (target < 0) fail("keep");
    char to[40];
    snprintf(to, sizeof to, "/proc/self/fd/%d", target);
    bind_mount(kept[i], to, MS_REC);
    close(target);
    if (o.writable[i] && !seal::set_writable(o.at[i], true)) fail("writable");
  }
  for (int i = 0; i < o.kept; i++) close(kept[i]);
  if (tmp >= 0) close(tmp);
  // Terminals of its own, so that a restored one finds its number free. Not everywhere permitted, and
  // only programs that ask for a terminal need it.
  if (!mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"))
    mount("/dev/pts/ptmx", "/dev/ptmx", nullptr, MS_BIND, nullptr);
  else if (o.sealed)
    fail("terminals");  // else it would have the machine's
}

// ---- the main process

void default_signals() {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int number = 1; number < _NSIG; number++) sigaction(number, &plain, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become_command(const Options& o) {
  // CRIU wants the leader of the session inside the namespace; see capsule/namespace.py.
  if (setsid() < 0) fail("setsid");
  if (getpid() != kMainPid) fail("pid", EEXIST);
  // What loses its parent (daemons, `nohup`, `&`) becomes a child of the main process and not of pid 1:
  // CRIU dumps everything below one process, and pid 1 of a namespace cannot be that.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) fail("subreaper");
  default_signals();
  umask(static_cast<mode_t>(o.umask));
  if (chdir(o.cwd)) fail("chdir");
  // Opened in here: CRIU cannot find files of another mount namespace.
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int out = open(o.log, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (in < 0 || out < 0) fail("log");
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) fail("log");
  const int last = fcntl(report_fd, F_DUPFD_CLOEXEC, 3);
  if (last < 0) fail("report");
  report_fd = last;
  syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  execvp(o.argv[0], o.argv);
  fail("exec");
}

// ---- pid 1

void die_with_parent(int alive) {
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  char byte;  // the parent may have been gone before: then its end of the socket is closed
  if (recv(alive, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) _exit(kFailed);
}

[[noreturn]] void be_init(const Options& o, int outer) {
  char go;
  if (read(outer, &go, 1) != 1) _exit(kFailed);
  prctl(PR_SET_NAME, o.sealed ? "proof-init" : "capsule-init", 0, 0, 0);
  setsid();  // a signal to the outer process's group comes once, passed on by that process
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  make_mounts(o);
  if (o.sealed) seal::make_loopback();
  if (!o.idle && !set_last_pid(kMainPid - 1)) fail("ns_last_pid");
  if (chdir("/")) fail("chdir");
  drop_privileges(o);
  die_with_parent(outer);
  const int timer = o.lease < 0 ? -1 : lease::make_timer();
  if (o.lease >= 0 && timer < 0) fail("timer");
  if (!o.idle) {
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) become_command(o);
  }
  retitle(o, "singularity capsule: pid 1");
  close(report_fd);
  for (int fd = 0; fd < 3; fd++) close(fd);
  if (open("/dev/null", O_RDWR) == 0 && dup(0) == 1) dup(0);
  for (;;) {
    if (o.lease >= 0) lease::wake_at(timer, lease::obey(o.lease));
    int status;
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
      if (ended == kMainPid) {
        send(outer, &status, sizeof status, MSG_NOSIGNAL);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : kFailed);
      }
    siginfo_t info;
    const int number = sigwaitinfo(&all, &info);
    if (number == SIGRTMAX && o.lease >= 0) continue;  // the timer, or an agent that asks
    // From outside (no sender in here) a signal is meant for the main process.
    if (number > 0 && number != SIGCHLD && info.si_code == SI_USER && info.si_pid == 0) kill(-kMainPid, number);
  }
}

// ---- outside

void map_user(pid_t child) {
  char path[64], text[64];
  snprintf(path, sizeof path, "/proc/%d/setgroups", child);
  if (!write_file(path, "deny") && errno != ENOENT) fail("setgroups");
  snprintf(path, sizeof path, "/proc/%d/uid_map", child);
  snprintf(text, sizeof text, "%u %u 1\n", geteuid(), geteuid());
  if (!write_file(path, text)) fail("uid_map");
  snprintf(path, sizeof path, "/proc/%d/gid_map", child);
  snprintf(text, sizeof text, "%u %u 1\n", getegid(), getegid());
  if (!write_file(path, text)) fail("gid_map");
}

[[noreturn]] void end_like(int status) {
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  default_signals();
  kill(getpid(), WTERMSIG(status));
  _exit(128 + WTERMSIG(status));
}

[[noreturn]] void run(Options o) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
  const unsigned long flags = static_cast<unsigned long>(namespaces(o)) | SIGCHLD;
  const pid_t inner = static_cast<pid_t>(syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr));
  if (inner < 0) fail("clone");
  if (inner == 0) {
    close(ends[0]);
    be_init(o, ends[1]);
  }
  close(ends[1]);
  prctl(PR_SET_NAME, o.sealed ? "proof-outer" : "capsule-outer", 0, 0, 0);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  if (o.user) map_user(inner);
  dprintf(report_fd, "init %d\n", inner);
  if (write(ends[0], "g", 1) != 1) fail("start");
  o.user = false;  // this process is not in it
  drop_privileges(o);
  if (o.sealed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != o.sealed) _exit(kFailed);  // it had ended before
  }
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // the session's user may look at it as at any process of theirs
  retitle(o, "singularity capsule: holder");
  close(report_fd);
  report_fd = -1;
  if (o.lease >= 0) close(o.lease);
  for (;;) {
    int status;
    if (waitpid(inner, &status, WNOHANG) == inner) {
      int told;
      end_like(recv(ends[0], &told, sizeof told, MSG_DONTWAIT) == sizeof told ? told : status);
    }
    const int number = sigwaitinfo(&all, nullptr);
    if (number > 0 && number != SIGCHLD) kill(inner, number);
  }
}

[[noreturn]] void enter(const Options& o) {
  if (setns(o.pidfd, namespaces(o))) fail("setns");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair");
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    close(ends[0]);
    default_signals();
    if (o.root) keep_rights(o);
    else drop_privileges(o);
    die_with_parent(ends[1]);
    execvp(o.argv[0], o.argv);
    fail("exec");
  }
  int status;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail("wait");
  if (o.last_pid && WIFEXITED(status) && !WEXITSTATUS(status)) {
    // The number belongs to the namespace of the writer, and this process is outside.
    const pid_t writer = fork();
    if (writer < 0) fail("fork");
    if (writer == 0) _exit(set_last_pid(o.last_pid) ? 0 : kFailed);
    while (waitpid(writer, &status, 0) < 0)
      if (errno != EINTR) fail("wait");
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) fail("options", EINVAL);
  Options o = parse(words + 2);
  o.first = words[0];
  report_fd = o.report;
  if (report_fd >= 0) fcntl(report_fd, F_SETFD, FD_CLOEXEC);
  if (o.lease >= 0) fcntl(o.lease, F_SETFD, FD_CLOEXEC);
  if (!strcmp(words[1], "run") && o.report >= 0 && (o.idle || (o.argv[0] && o.log))) run(o);
  if (!strcmp(words[1], "enter") && o.pidfd >= 0 && o.argv[0]) enter(o);
  fail("options", EINVAL);
}
