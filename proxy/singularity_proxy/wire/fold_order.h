// In which order the reductions of a process group add: what a user chooses (SINGULARITY_COLLECTIVES).
// All ranks of a group say the same, with Kind::join_group, in `op` of its header.
#pragma once

#include <cstdint>

namespace singularity {

enum class FoldOrder : uint32_t {
  bitwise = 0,  // the ranks', whatever device each is on
  fast,         // first those of each device, then the devices' sums
};

}  // namespace singularity
