// How much memory the proxy's device holds: the counting allocator of a cpu device, torch's own
// statistics of any other.
#pragma once

#include <c10/core/Device.h>

#include "capacity.h"

namespace singularity {

Memory memory_of(c10::Device device);
// Of one ring. Other devices than a cpu do not count by ring: there it is the whole proxy's.
struct RingMemory {
  uint64_t current = 0, peak = 0, reserved = 0;
};
RingMemory ring_memory(c10::Device device, const Account& account);
void empty_cache(c10::Device device);
void reset_peak(c10::Device device);

}  // namespace singularity
