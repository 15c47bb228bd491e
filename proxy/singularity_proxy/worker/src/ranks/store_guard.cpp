#include "store_guard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

namespace singularity::store_guard {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at the connections: while ranks are coming, and later.
constexpr std::chrono::milliseconds kFast{20};
constexpr std::chrono::milliseconds kSlow{250};

// Ranks are coming for so long after the start of a store, and after each that came.
constexpr auto kBusy = std::chrono::seconds(60);

// What a connection said before it was let in is sent again within that time.
constexpr std::chrono::milliseconds kHeard{500};

// Looks at a connection whose other end is not found, before it counts as another machine's.
constexpr int kTries = 10;

// A state of /proc/net/tcp in which the uid of a socket is no more known, and shown as 0.
constexpr unsigned kTimeWait = 6;

// An address as /proc/net/tcp writes it: 32-bit words in host order, then the port; IPv4 also where IPv6 carries it.
std::string written(const sockaddr_storage& address) {
  char text[48];
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    std::snprintf(text, sizeof text, "%08X:%04X", in.sin_addr.s_addr, ntohs(in.sin_port));
    return text;
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
  uint32_t words[4];
  std::memcpy(words, in.sin6_addr.s6_addr, sizeof words);
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
    std::snprintf(text, sizeof text, "%08X:%04X", words[3], ntohs(in.sin6_port));
  } else {
    std::snprintf(text, sizeof text, "%08X%08X%08X%08X:%04X", words[0], words[1], words[2], words[3],
                  ntohs(in.sin6_port));
  }
  return text;
}

// A written address without what says that IPv6 carries it.
std::string plain(const std::string& address) {
  static const std::string mapped = [] {
    char text[25];
    std::snprintf(text, sizeof text, "%016X%08X", 0, htonl(0xFFFF));
    return std::string(text);
  }();
  return address.compare(0, mapped.size(), mapped) == 0 ? address.substr(mapped.size()) : address;
}

// The uid of the process at the other end of a connection of this machine (proc_net_tcp(5)); nothing where there is
// none, or its end is closed already.
std::optional<uid_t> uid_of_peer(const sockaddr_storage& local, const sockaddr_storage& peer) {
  const std::string mine = written(local), its = written(peer);
  for (const char* name : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(name);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, from, to, state, queues, timer, retransmits;
      uid_t uid = 0;
      if (!(words >> number >> from >> to >> state >> queues >> timer >> retransmits >> uid)) continue;
      if (plain(from) != its || plain(to) != mine) continue;
      if (std::stoul(state, nullptr, 16) == kTimeWait) return std::nullopt;
      return uid;
    }
  }
  return std::nullopt;
}

int port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string host_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes = address.ss_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  inet_ntop(address.ss_family, bytes, text, sizeof text);
  return text;
}

// Inode -> descriptor of all sockets of this process.
std::map<ino_t, int> sockets() {
  std::map<ino_t, int> found;
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* entry = readdir(folder)) {
    struct stat info;
    const int descriptor = std::atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fstat(descriptor, &info)) continue;
    if (S_ISSOCK(info.st_mode)) found.emplace(info.st_ino, descriptor);
  }
  closedir(folder);
  return found;
}

class Guard {
 public:
  // Also this one; a thread is started where none runs.
  void watch(int port) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ports_.insert(port);
    fast_until_ = Clock::now() + kBusy;
    if (runs_) return;
    sigset_t all, before;
    sigfillset(&all);  // signals are for Python's main thread
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    runs_ = true;
  }

  bool is_settled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!runs_) return true;
    look();
    return waiting_ == 0 && Clock::now() - let_in_ >= kHeard;
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "store guard");
    while (const auto pause = look_alone()) std::this_thread::sleep_for(*pause);
  }

  std::optional<std::chrono::milliseconds> look_alone() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto pause = look();
    if (!pause) runs_ = false;
    return pause;
  }

  // One look at all sockets of the process; how long until the next one, nothing when no store is left.
  std::optional<std::chrono::milliseconds> look() {
    waiting_ = 0;
    const auto found = sockets();
    for (auto one = decided_.begin(); one != decided_.end();)
      one = found.count(*one) ? std::next(one) : decided_.erase(one);
    std::set<int> open;
    for (const auto& [inode, descriptor] : found) {
      if (decided_.count(inode)) continue;
      // A descriptor of its own: the store may close its one, and the number be reused.
      const int socket = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
      struct stat info;
      if (socket < 0) continue;
      if (!fstat(socket, &info) && info.st_ino == inode && decide(inode, socket, open)) {
        tries_.erase(inode);
        decided_.insert(inode);
      }
      close(socket);
    }
    ports_ = open;
    if (ports_.empty()) return std::nullopt;
    return Clock::now() < fast_until_ ? kFast : kSlow;
  }

  // Whether nothing more is to be decided about it. `open`: gets the port of a store that is there.
  bool decide(ino_t inode, int socket, std::set<int>& open) {
    sockaddr_storage local{}, peer{};
    socklen_t length = sizeof local;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &length)) return false;
    if (local.ss_family != AF_INET && local.ss_family != AF_INET6) return true;
    const int port = port_of(local);
    const bool ours = ports_.count(port);
    length = sizeof peer;
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length)) {  // not connected yet, or never
      if (ours) open.insert(port);
      return false;
    }
    if (!ours) return true;
    fast_until_ = Clock::now() + kBusy;
    const auto uid = uid_of_peer(local, peer);
    if (uid == geteuid()) {
      const int unused = 0;
      setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);  // ENOENT: it had none
      let_in_ = Clock::now();
      return true;
    }
    if (!uid && tries_[inode]++ < kTries) {
      ++waiting_;
      return false;
    }
    shutdown(socket, SHUT_RDWR);
    const std::string who = uid ? "uid " + std::to_string(*uid) : "another machine";
    dprintf(STDERR_FILENO,
            "singularity: a connection of %s (%s) to the store at port %d was refused: it is for ranks of this user on "
            "this machine\n",
            who.c_str(), host_of(peer).c_str(), port);
    return true;
  }

  std::mutex mutex_;
  std::set<int> ports_;  // of the stores; not their inodes, which are others after a move to another node
  std::set<ino_t> decided_;
  std::map<ino_t, int> tries_;
  int waiting_ = 0;  // connections whose other end was not found yet, at the last look
  Clock::time_point let_in_;  // the last connection
  Clock::time_point fast_until_;
  bool runs_ = false;
};

// Never deleted: its thread may outlive main. A child begins with another one, whatever its parent held.
Guard* guard = new Guard;

}  // namespace

void watch(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length))
    throw std::system_error(errno, std::generic_category(), "the listening socket of a store");
  guard->watch(port_of(address));
}

bool is_settled() { return guard->is_settled(); }

void forget() { guard = new Guard; }

}  // namespace singularity::store_guard
