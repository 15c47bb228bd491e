#include "memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace singularity {
namespace {

c10::DeviceAllocator* statistics_of(c10::Device device) {
  // Not every torch version gives its allocator this interface; there the figures stay 0.
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

Memory memory_of(c10::Device device) {
  if (device.is_cpu()) return capacity_memory();
  c10::DeviceAllocator* allocator = statistics_of(device);
  if (!allocator || !allocator->initialized()) return {};
  const auto bytes = allocator->getDeviceStats(device.index()).allocated_bytes[0];
  return {static_cast<uint64_t>(bytes.current), static_cast<uint64_t>(bytes.peak), 0};
}

RingMemory ring_memory(c10::Device device, const Account& account) {
  if (device.is_cpu()) return {account.current.load(), account.peak.load(), account.current.load()};
  c10::DeviceAllocator* allocator = statistics_of(device);
  if (!allocator || !allocator->initialized()) return {};
  const auto stats = allocator->getDeviceStats(device.index());
  return {static_cast<uint64_t>(stats.allocated_bytes[0].current), static_cast<uint64_t>(stats.allocated_bytes[0].peak),
          static_cast<uint64_t>(stats.reserved_bytes[0].current)};
}

void empty_cache(c10::Device device) {
  c10::DeviceAllocator* allocator = device.is_cpu() ? nullptr : statistics_of(device);
  if (allocator && allocator->initialized()) allocator->emptyCache();
}

void reset_peak(c10::Device device) {
  if (device.is_cpu()) return reset_capacity_peak();
  c10::DeviceAllocator* allocator = statistics_of(device);
  if (allocator && allocator->initialized()) allocator->resetPeakStats(device.index());
}

}  // namespace singularity
