// Sends torch's process-wide settings to the proxies (native/settings.h says which).
//
// The functions of torch._C that change one are wrapped (worker/cuda_api/settings.py): each call counts up a
// number. An operator compares the number with the one it saw last, and looks closer only when they
// differ.
#pragma once

#include "channel.h"

namespace singularity {

extern std::atomic<uint64_t> settings_number;

void settings_changed();
void send_settings(Channel& channel);  // under its lock
// Before an operator is encoded, under the channel's lock.
inline void follow_settings(Channel& channel) {
  if (__builtin_expect(channel.settings_seen != settings_number.load(std::memory_order_relaxed), 0)) send_settings(channel);
}
// What this process may use of the device; 0: all of it.
void limit_memory(int index, uint64_t bytes);

}  // namespace singularity
