// What a collective returns: it was issued, and whatever uses its results comes after it.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <mutex>

#include "membership.h"

namespace singularity {

class IssuedWork final : public c10d::Work {
 public:
  // `blocks`: its `wait` waits in the worker too.
  IssuedWork(int rank, c10d::OpType type, std::shared_ptr<Membership> group, std::vector<at::Tensor> results, bool blocks)
      : Work(rank, type), group_(std::move(group)), results_(std::move(results)), blocks_(blocks) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return group_->sequence(); }

 private:
  const std::shared_ptr<Membership> group_;
  const std::vector<at::Tensor> results_;
  const bool blocks_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace singularity
