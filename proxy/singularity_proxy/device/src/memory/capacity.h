// The memory of a device of type `cpu`: every byte that torch allocates in the proxy is counted, and
// an allocation beyond the capacity fails as it would on CUDA, with CUDA's words.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>

namespace singularity {

struct Memory {
  uint64_t current = 0, peak = 0, capacity = 0;  // bytes, of the whole process
};

// Replaces torch's CPU allocator for the rest of the process; once, before a ring is served.
// `capacity` 0 means no limit.
void install_capacity(uint64_t capacity);
// Asked in the allocating thread when the capacity is reached: frees so many bytes, or says false.
void when_full(bool (*make_room)(uint64_t bytes));
Memory capacity_memory();
void reset_capacity_peak();

// What one ring holds of it. A block stays on the account of the thread that allocated it, whoever
// frees it.
struct Account {
  std::atomic<uint64_t> current{0}, peak{0};  // bytes
  std::atomic<uint64_t> limit{0};             // 0: none but the device's capacity
};
Account& new_account();              // lives as long as the process: blocks may outlive their ring
void charge_to(Account* account);    // what this thread allocates from now on
Account* charged_to();
void charge(Account& account, uint64_t bytes);     // for memory that is on no account, or on another
void discharge(Account& account, uint64_t bytes);
// The one that a block is on; nullptr: none, or it is not of a device of type cpu.
Account* account_of(const c10::DataPtr& block);
// Takes a block off the account that it is on. False: it is not of a device of type cpu.
bool disown(const c10::DataPtr& block);
void limit_account(uint64_t bytes);  // of this thread; 0: no limit

// While one lives in a thread, its allocations are counted but not refused: what is rebuilt from a
// snapshot and a journal has fitted once.
class Unlimited {
 public:
  Unlimited();
  Unlimited(const Unlimited&) = delete;
  Unlimited& operator=(const Unlimited&) = delete;
  ~Unlimited();

 private:
  bool before_;
};

// The number a user knows the device by; error texts of this thread name it.
void name_device_in_errors(uint32_t virtual_device);
uint32_t named_device();

}  // namespace singularity
