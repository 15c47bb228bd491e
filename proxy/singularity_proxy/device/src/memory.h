// How much memory the proxy's device holds: the counting allocator of a cpu device, torch's own
// statistics of any other.
#pragma once

#include <c10/core/Device.h>

#include "capacity.h"

namespace singularity {

Memory memory_of(c10::Device device);
void reset_peak(c10::Device device);

}  // namespace singularity
