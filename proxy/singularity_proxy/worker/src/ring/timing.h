// What the benchmark measures from inside: costs that Python around them would hide.
#pragma once

#include <cstdint>
#include <vector>

namespace singularity {

// Nanoseconds of each of `n` synchronous round trips to the current device.
std::vector<double> time_round_trips(int64_t n);
// Mean nanoseconds of this thread's processor time for sending one cached addition of 16 elements,
// one mean per batch of 1000. The proxy's work is not in it, wherever it runs.
std::vector<double> time_issue(int64_t batches);

}  // namespace singularity
