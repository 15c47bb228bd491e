#include "capacity.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace singularity {
namespace {

thread_local bool unlimited = false;
thread_local uint32_t device_number = 0;
thread_local Account* account = nullptr;

// In front of every block, so that freeing knows its size and account; as long as torch's alignment.
constexpr size_t kPrefixBytes = 64;
constexpr size_t kMostBytes = size_t{1} << 60;
struct Prefix {
  size_t bytes;
  Account* account;
};
static_assert(sizeof(Prefix) <= kPrefixBytes);

void raise_peak(std::atomic<uint64_t>& peak, uint64_t now) {
  uint64_t known = peak.load(std::memory_order_relaxed);
  while (now > known && !peak.compare_exchange_weak(known, now, std::memory_order_relaxed)) {
  }
}

std::string human(uint64_t bytes) {
  char text[32];
  if (bytes >= 1ull << 30)
    snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1ull << 30));
  else if (bytes >= 1ull << 20)
    snprintf(text, sizeof(text), "%.2f MiB", static_cast<double>(bytes) / (1ull << 20));
  else if (bytes >= 1ull << 10)
    snprintf(text, sizeof(text), "%.2f KiB", static_cast<double>(bytes) / (1ull << 10));
  else
    snprintf(text, sizeof(text), "%" PRIu64 " bytes", bytes);
  return text;
}

class Capacity final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    // Sums with it must not wrap: a huge number from a worker would look like a small one.
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kMostBytes, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    take(bytes);
    char* block = nullptr;
    try {
      block = static_cast<char*>(c10::alloc_cpu(bytes + kPrefixBytes));
    } catch (...) {
      give_back({bytes, account});
      // The machine is out of memory before the device is: the same error for the user.
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", human(bytes),
                       ". GPU ", device_number, " lives in host memory, and the host has none left.");
    }
    const Prefix prefix{bytes, account};
    std::memcpy(block, &prefix, sizeof(prefix));
    char* data = block + kPrefixBytes;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  Memory memory() const { return {current_.load(), peak_.load(), capacity_.load()}; }
  void set_make_room(bool (*make_room)(uint64_t)) { make_room_.store(make_room); }
  void set_capacity(uint64_t bytes) { capacity_.store(bytes); }
  void reset_peak() { peak_.store(current_.load()); }
  static Capacity& one() {
    static Capacity& instance = *new Capacity();  // tensors may outlive static destruction
    return instance;
  }

 private:
  static void release(void* data) {
    if (!data) return;
    char* block = static_cast<char*>(data) - kPrefixBytes;
    Prefix prefix;
    std::memcpy(&prefix, block, sizeof(prefix));
    one().give_back(prefix);
    c10::free_cpu(block);
  }
  void give_back(const Prefix& block) {
    current_.fetch_sub(block.bytes, std::memory_order_relaxed);
    if (block.account) block.account->current.fetch_sub(block.bytes, std::memory_order_relaxed);
  }
  void take(size_t bytes) {
    const uint64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    const uint64_t mine = account ? account->current.fetch_add(bytes, std::memory_order_relaxed) + bytes : 0;
    const uint64_t capacity = capacity_.load(std::memory_order_relaxed);
    const uint64_t limit = account ? account->limit.load(std::memory_order_relaxed) : 0;
    if (__builtin_expect(((capacity && now > capacity) || (limit && mine > limit)) && !unlimited, 0)) {
      give_back({bytes, account});
      if (capacity && now > capacity)
        if (const auto make_room = make_room_.load(); make_room && make_room(now - capacity)) return take(bytes);
      refuse(bytes, now - bytes, mine - bytes, capacity, limit);
    }
    raise_peak(peak_, now);
    if (account) raise_peak(account->peak, mine);
  }
  [[noreturn]] static void refuse(uint64_t wanted, uint64_t used, uint64_t mine, uint64_t capacity, uint64_t limit) {
    const std::string allowed =
        limit ? ". " + human(limit) + " allowed; of the allocated memory " + human(mine) + " is of this process" : "";
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", human(wanted), ". GPU ",
                     device_number, " has a total capacity of ", human(capacity), " of which ",
                     human(capacity > used ? capacity - used : 0), " is free", allowed, ". Of the allocated memory ",
                     human(used), " is allocated by PyTorch.");
    std::abort();  // TORCH_CHECK threw
  }
  std::atomic<uint64_t> current_{0}, peak_{0}, capacity_{0};
  std::atomic<bool (*)(uint64_t)> make_room_{nullptr};
};

}  // namespace

void install_capacity(uint64_t capacity) {
  Capacity::one().set_capacity(capacity);
  c10::SetAllocator(c10::kCPU, &Capacity::one(), 1);
}
void when_full(bool (*make_room)(uint64_t)) { Capacity::one().set_make_room(make_room); }
Memory capacity_memory() { return Capacity::one().memory(); }
void reset_capacity_peak() { Capacity::one().reset_peak(); }

void charge(Account& to, uint64_t bytes) {
  raise_peak(to.peak, to.current.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}
void discharge(Account& from, uint64_t bytes) { from.current.fetch_sub(bytes, std::memory_order_relaxed); }
Account* account_of(const c10::DataPtr& block) {
  if (!block.get() || block.get_deleter() != Capacity::one().raw_deleter()) return nullptr;
  Prefix prefix;
  std::memcpy(&prefix, static_cast<char*>(block.get()) - kPrefixBytes, sizeof(prefix));
  return prefix.account;
}
bool disown(const c10::DataPtr& block) {
  if (!block.get() || block.get_deleter() != Capacity::one().raw_deleter()) return false;
  char* at = static_cast<char*>(block.get()) - kPrefixBytes;
  Prefix prefix;
  std::memcpy(&prefix, at, sizeof(prefix));
  if (prefix.account) discharge(*prefix.account, prefix.bytes);
  prefix.account = nullptr;
  std::memcpy(at, &prefix, sizeof(prefix));
  return true;
}

Account& new_account() { return *new Account(); }
void charge_to(Account* to) { account = to; }
Account* charged_to() { return account; }
void limit_account(uint64_t bytes) {
  if (account) account->limit.store(bytes);
}

Unlimited::Unlimited() : before_(unlimited) { unlimited = true; }
Unlimited::~Unlimited() { unlimited = before_; }

void name_device_in_errors(uint32_t virtual_device) { device_number = virtual_device; }
uint32_t named_device() { return device_number; }

}  // namespace singularity
