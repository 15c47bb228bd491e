#include "work.h"

#include <ATen/core/ivalue.h>

#include "worker/src/tensors/device.h"

namespace singularity {

using c10::ivalue::Future;

bool IssuedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    TORCH_CHECK_WITH(DistBackendError, group_->wait(std::chrono::steady_clock::now() + timeout),
                     c10d::opTypeToString(retrieveOpType()), " of rank ", rank_, " did not end within ", timeout.count(), " ms");
  } else if (blocks_) {
    singularity::synchronize(group_->device());
  }
  return true;
}

// With its device, or DistributedDataParallel's reducer would not take it.
c10::intrusive_ptr<Future> IssuedWork::getFuture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!future_) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(group_->device()));
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
    future_->markCompleted(c10::IValue(c10::List<at::Tensor>(results_)));
  }
  return future_;
}

c10::intrusive_ptr<Future> IssuedWork::getFutureResult() {
  auto future = c10::make_intrusive<Future>(c10::IntType::get());
  future->markCompleted(c10::IValue(static_cast<int64_t>(c10d::WorkResult::SUCCESS)));
  return future;
}

float IssuedWork::getDuration() const {
  TORCH_CHECK(false, "collectives of a proxied device are not timed: record torch.cuda.Event objects around them");
}

}  // namespace singularity
