#include "timing.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <ctime>

#include "worker/src/tensors/device.h"

namespace singularity {
namespace {

constexpr int kBatch = 1000;

uint64_t thread_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

std::vector<double> time_round_trips(int64_t n) {
  std::vector<double> ns;
  ns.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i++) {
    const uint64_t start = monotonic_ns();
    synchronize(current_device());
    ns.push_back(static_cast<double>(monotonic_ns() - start));
  }
  return ns;
}

std::vector<double> time_issue(int64_t batches) {
  const c10::InferenceMode inference;  // autograd would be measured as well
  const at::Tensor a = at::ones({16}, at::TensorOptions(c10::kCUDA)), b = at::ones_like(a);
  at::Tensor sum = at::add(a, b);  // the first one waits for its description
  std::vector<double> ns;
  for (int64_t i = 0; i < batches; i++) {
    synchronize(current_device());
    const uint64_t start = thread_ns();
    for (int j = 0; j < kBatch; j++) sum = at::add(a, b);
    ns.push_back(static_cast<double>(thread_ns() - start) / kBatch);
  }
  return ns;
}

}  // namespace singularity
