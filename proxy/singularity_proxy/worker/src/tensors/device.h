// What PyTorch asks of a device besides operators: guard, streams, events, generators, hooks.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>

#include "worker/src/ring/channel.h"

namespace singularity {

void install_device();  // guard, allocator and hooks of the CUDA device type
const at::Generator& default_generator(int index);
at::Generator copy_generator(const at::Generator& from, int index);  // the same state, on another device
void synchronize(int index);
int64_t stream_of(int index);                  // of this thread; 0 is the default stream
void set_stream(int index, int64_t stream);
int64_t new_stream();

// The current device, until the end of a scope; a negative index changes nothing.
struct OnDevice {
  explicit OnDevice(int index) : old(exchange_device(index)) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { exchange_device(old); }
  int old;
};

// Events: markers in the one in-order queue of a virtual device.
struct Event {
  uint64_t id = 0;
  uint64_t seq = 0;
  Channel* channel = nullptr;
};
void record_event(Event& event, int index);
bool event_done(const Event& event);
void wait_for_event(const Event& event);
double elapsed_ms(const Event& first, const Event& second);

}  // namespace singularity
