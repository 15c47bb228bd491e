#include "guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include "device/src/recovery/files.h"

namespace singularity {

struct GuardedRange {
  std::atomic<uintptr_t> first, last;  // last 0: free
  std::atomic<bool> taken, hit;
};

namespace {

constexpr size_t kGuardedRanges = 4096;  // four for each ring
GuardedRange slots[kGuardedRanges];
std::atomic<size_t> used{0};     // slots behind this one were never taken
uintptr_t page_bytes = 4096;
struct sigaction before;

void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const size_t n = used.load();
  for (size_t i = 0; i < n; i++) {
    GuardedRange& slot = slots[i];
    if (at < slot.first.load() || at >= slot.last.load()) continue;
    slot.hit.store(true);
    void* page = reinterpret_cast<void*>(at & ~(page_bytes - 1));
    if (::mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
      errno = error;
      return;
    }
  }
  ::sigaction(SIGBUS, &before, nullptr);  // not ours: the instruction runs again and meets the old action
  errno = error;
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGBUS, &action, &before);
  });
}

}  // namespace

Guard::Guard(const void* at, size_t bytes) {
  install();
  for (size_t i = 0; i < kGuardedRanges; i++) {
    bool free = false;
    if (!slots[i].taken.compare_exchange_strong(free, true)) continue;
    slot_ = &slots[i];
    slot_->hit.store(false);
    slot_->first.store(reinterpret_cast<uintptr_t>(at));
    slot_->last.store(reinterpret_cast<uintptr_t>(at) + bytes);
    size_t known = used.load();
    while (known < i + 1 && !used.compare_exchange_weak(known, i + 1)) {
    }
    return;
  }
  throw Refused("this device proxy serves as many rings as it can; end worker processes that are not needed");
}

Guard& Guard::operator=(Guard&& other) noexcept {
  if (this != &other) {
    release();
    slot_ = other.slot_;
    other.slot_ = nullptr;
  }
  return *this;
}

void Guard::release() {
  if (!slot_) return;
  slot_->last.store(0);
  slot_->first.store(0);
  slot_->taken.store(false);
  slot_ = nullptr;
}

bool Guard::hit() const { return slot_ && slot_->hit.load(std::memory_order_relaxed); }

SignalsBlocked::SignalsBlocked() {
  sigset_t set;
  sigfillset(&set);
  for (const int number : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&set, number);
  pthread_sigmask(SIG_SETMASK, &set, &before_);
}
SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace singularity
