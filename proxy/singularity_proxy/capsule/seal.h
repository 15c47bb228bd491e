// What makes a capsule leave no trace: see `--sealed` in holder.cpp, which is the only user of this.
#pragma once

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/openat2.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace seal {

// Room for what is written below all views together. CRIU copies a file whole that it opens for writing, and
// a file that does not fit makes the proof impossible, not the checkpoint bad.
constexpr char kViewOptions[] = "size=256m,mode=0700";
// Where the memory of the views is mounted while they are made; nothing of a session lies below it.
constexpr char kWorkshop[] = "/sys";

// Opens the folder `path` and follows no link on the way: its user may have put one there meanwhile.
inline int open_plain(const char* path) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS;
  return static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
}

// Whether anything may be written below `path`, in this mount namespace alone.
inline bool set_writable(const char* path, bool writable) {
  struct {
    uint64_t set, clear, propagation, user_namespace;
  } change{};
  constexpr uint64_t kReadOnly = 1;  // MOUNT_ATTR_RDONLY
  (writable ? change.clear : change.set) = kReadOnly;
  return !syscall(SYS_mount_setattr, AT_FDCWD, path, 0x8000u /* AT_RECURSIVE */, &change, sizeof change);
}

inline bool make_view(const char* path, int lower, int number, bool user) {
  char upper[64], work[64], options[256], to[40];
  struct stat info;
  snprintf(upper, sizeof upper, "%s/%d", kWorkshop, number);
  snprintf(work, sizeof work, "%s/%d.work", kWorkshop, number);
  if (fstat(lower, &info) || mkdir(upper, 0700) || mkdir(work, 0700)) return false;
  if (chown(upper, info.st_uid, info.st_gid) || chmod(upper, info.st_mode & 07777)) return false;
  snprintf(options, sizeof options, "lowerdir=/proc/self/fd/%d,upperdir=%s,workdir=%s%s", lower, upper, work,
           user ? ",userxattr" : "");
  const int target = open_plain(path);
  if (target < 0) return false;
  snprintf(to, sizeof to, "/proc/self/fd/%d", target);
  const bool made = !mount("view", to, "overlay", MS_NOSUID | MS_NODEV, options);
  close(target);
  return made;
}

// Each folder of `paths` shows what is in `lower`, and keeps what is written there to itself.
inline bool make_views(const char* const* paths, const int* lower, int count, bool user) {
  if (mount("views", kWorkshop, "tmpfs", MS_NOSUID | MS_NODEV, kViewOptions)) return false;
  for (int i = 0; i < count; i++) {
    if (!make_view(paths[i], lower[i], i, user)) return false;
    close(lower[i]);
  }
  return !umount2(kWorkshop, MNT_DETACH);
}

inline void write_one(const char* path) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (write(fd, "1", 1) != 1) fprintf(stderr, "seal: %s\n", path);
  close(fd);
}

// Every address of this family is the loopback device's.
inline void add_local_route(unsigned char family) {
  struct {
    nlmsghdr head;
    rtmsg route;
    rtattr attribute;
    uint32_t device;
  } ask{};
  ask.head.nlmsg_len = sizeof ask;
  ask.head.nlmsg_type = RTM_NEWROUTE;
  ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE;
  ask.route.rtm_family = family;
  ask.route.rtm_table = RT_TABLE_LOCAL;
  ask.route.rtm_protocol = RTPROT_BOOT;
  ask.route.rtm_scope = RT_SCOPE_HOST;
  ask.route.rtm_type = RTN_LOCAL;
  ask.attribute.rta_len = RTA_LENGTH(sizeof ask.device);
  ask.attribute.rta_type = RTA_OIF;
  ask.device = 1;  // loopback has this number in every network
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return;
  if (send(fd, &ask, sizeof ask, 0) < 0) fprintf(stderr, "seal: no route\n");
  close(fd);
}

// A network that ends in itself: sockets can be bound to any address and connected to any, and nobody is
// there. Where one of these is not permitted CRIU says which socket it misses.
inline void make_loopback() {
  write_one("/proc/sys/net/ipv4/ip_nonlocal_bind");
  write_one("/proc/sys/net/ipv6/ip_nonlocal_bind");
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  ifreq loopback{};
  strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  ioctl(fd, SIOCSIFFLAGS, &loopback);
  close(fd);
  add_local_route(AF_INET);
  add_local_route(AF_INET6);
}

}  // namespace seal
