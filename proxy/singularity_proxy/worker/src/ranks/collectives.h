// torch.distributed on proxied tensors: what user code reaches as the backend "nccl".
//
// A c10d backend whose collectives are records of the rank's queue (wire/records.h). The order of the
// queue is the order of a stream: a collective is issued and forgotten, and whoever touches its result
// waits in the proxy. Only a barrier waits in the worker.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "membership.h"

namespace singularity {

// ProcessGroupNCCL.Options: NCCL's own wishes are kept for whoever reads them back, and mean nothing here.
struct GroupOptions : c10d::Backend::Options {
  struct Config {  // ncclConfig_t
    int blocking = 1, cga_cluster_size = 4, min_ctas = 1, max_ctas = 32, split_share = 0;
    std::string net_name;
  };
  static constexpr std::chrono::minutes kTimeout{10};  // as NCCL's
  explicit GroupOptions(bool high_priority = false)
      : Options("nccl", kTimeout), is_high_priority_stream(high_priority) {}
  bool is_high_priority_stream;
  Config config;
  c10::intrusive_ptr<c10d::Backend> split_from;
  int64_t split_color = -2;
};

class ProxiedGroup final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Milliseconds = std::chrono::milliseconds;

  // Called by torch.distributed in every rank, in the same order. Rank 0 draws the group's id and
  // leaves it in the store; the others read it with their first collective.
  ProxiedGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<GroupOptions> options);

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<GroupOptions> options() const { return options_; }
  bool is_joined() const { return !memberships().empty(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // Several collectives as one one of work. Records need no bracket: only their results are put together.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  void eagerConnectSingleDevice(at::Device device) override;
  void setSequenceNumberForGroup() override {}  // the ranks count alike
  uint64_t getSequenceNumberForGroup() override;
  // These are in some versions of torch only, hence not marked as overriding.
  virtual void setTimeout(Milliseconds timeout);
  virtual c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() { return options_; }
  virtual c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::vector<int>& ranks,
                                                  const c10::intrusive_ptr<c10d::Backend::Options>& options);
  virtual c10d::ErrorType getError() { return c10d::ErrorType::SUCCESS; }
  virtual void waitForPendingWorks();
  virtual void shutdown();  // waits for what is under way, then leaves
  virtual void abort();     // leaves

 private:
  struct Call;  // what one collective sends (collectives.cpp)

  Membership& on(int device);
  int device_for_barrier(const c10d::BarrierOptions& options);
  GroupId read_id();
  void refuse_shared_device(int device, size_t communicator);
  WorkPtr run(c10d::OpType type, Call& call, Tensors results);
  WorkPtr together(c10d::OpType type, Tensors results);
  std::vector<std::shared_ptr<Membership>> memberships() const;
  void leave(bool wait);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const FoldOrder order_;
  const int64_t incarnation_;  // of this group, for stores that a group of the same name used before
  mutable std::mutex mutex_;   // of what follows; nobody waits for a device under it
  std::map<int, std::shared_ptr<Membership>> memberships_;
  std::optional<GroupId> id_;
  int first_device_ = -1;
  bool left_ = false, coalescing_ = false;
  Tensors coalesced_;
  int coalesced_device_ = -1;
};

}  // namespace singularity
