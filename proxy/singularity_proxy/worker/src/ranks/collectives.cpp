#include "collectives.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "worker/src/tensors/device.h"
#include "worker/src/tensors/stretches.h"
#include "work.h"

namespace singularity {

using at::Tensor;
using c10d::OpType;

namespace {

const std::string kPrefix = "singularity/";

GroupId drawn_id() {
  std::random_device entropy;
  GroupId id;
  for (uint8_t& byte : id) byte = static_cast<uint8_t>(entropy());
  return id;
}

// Of groups that are made from now on.
FoldOrder wanted_order() {
  const char* word = std::getenv("SINGULARITY_COLLECTIVES");
  const std::string wanted = word ? word : "";
  if (wanted.empty() || wanted == "bitwise") return FoldOrder::bitwise;
  TORCH_CHECK_VALUE(wanted == "fast", "SINGULARITY_COLLECTIVES is '", wanted, "', but it can be bitwise or fast");
  return FoldOrder::fast;
}

void check_root(int64_t root, int size, const char* what) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, what, ": invalid root rank: ", root);
}

void check_list(const std::vector<Tensor>& tensors, int size, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<size_t>(size), what, ": the list needs a tensor for each of the ", size,
                    " ranks, not ", tensors.size());
}

const std::vector<Tensor>& only_list(const std::vector<std::vector<Tensor>>& lists, int size, const char* what) {
  TORCH_CHECK_VALUE(lists.size() == 1, what, ": requires a single list of ", size, " tensors");
  check_list(lists[0], size, what);
  return lists[0];
}

bool waits_are_blocking() {
  static const bool are = c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}, false);
  return are;
}

}  // namespace

struct ProxiedGroup::Call {
  explicit Call(Collective collective) : what(collective) {}

  const Collective what;
  Fold fold;
  int64_t root = -1;
  Stretches inputs, outputs;
  std::vector<std::pair<Tensor, Tensor>> late;  // a tensor that is not contiguous, and what arrives for it
  int device = -1;                              // without tensors

  // Tensors of lists, and of send and recv, need not be contiguous.
  void take(const Tensor& tensor) {
    check_dense(tensor);
    inputs.push_back(whole(tensor.is_contiguous(tensor.suggest_memory_format()) ? tensor : tensor.detach().contiguous()));
  }
  void give(const Tensor& tensor) {
    check_dense(tensor);
    if (tensor.is_contiguous(tensor.suggest_memory_format())) {
      outputs.push_back(whole(tensor));
      return;
    }
    late.emplace_back(tensor.detach(), at::empty_like(tensor.detach(), at::MemoryFormat::Contiguous));
    outputs.push_back(whole(late.back().second));
  }
  int64_t input_count() const { return inputs[0].count; }
};

ProxiedGroup::ProxiedGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<GroupOptions> options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      order_(wanted_order()),
      incarnation_(store_->add(kPrefix + "rank-" + std::to_string(rank), 1)) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "a process group of ", size, " ranks has no rank ", rank);
  init();
  if (rank) return;
  id_ = drawn_id();
  store_->set(kPrefix + "id-" + std::to_string(incarnation_), std::vector<uint8_t>(id_->begin(), id_->end()));
}

GroupId ProxiedGroup::read_id() {
  const std::string key = kPrefix + "id-" + std::to_string(incarnation_);
  store_->wait({key}, options_->timeout);
  const std::vector<uint8_t> bytes = store_->get(key);
  GroupId id;
  TORCH_CHECK_WITH(DistBackendError, bytes.size() == id.size(), "the store of this process group holds no id of it but ",
                   bytes.size(), " other bytes");
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

// Two ranks on one virtual device would wait for each other in one queue. On another node the session is another.
void ProxiedGroup::refuse_shared_device(int device, size_t communicator) {
  const char* session = std::getenv("SINGULARITY_SESSION");
  const std::string key = c10::str(kPrefix, incarnation_, "/", communicator, "/", session ? session : "", "/cuda:",
                               virtual_device(device));
  const int64_t other = store_->add(key, rank_ + 1) - (rank_ + 1);
  TORCH_CHECK_WITH(DistBackendError, other == 0, "Duplicate GPU detected: rank ", rank_, " and ",
                   other <= size_ ? "rank " + std::to_string(other - 1) : "other ranks", " both use cuda:", device,
                   ", and each rank needs a virtual device of its own. This session has ", device_count(),
                   device_count() < size_ ? ": start fewer ranks, or ask for more devices"
                                          : ": call torch.cuda.set_device(local_rank) first");
}

// A rank that goes on with another device begins a communicator there, as with NCCL: all ranks have to
// do so in the same order.
Membership& ProxiedGroup::on(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !left_, "this process group was destroyed or aborted on rank ", rank_);
  auto& found = memberships_[device];
  if (!found) {
    const size_t communicator = memberships_.size() - 1;
    try {
      if (!id_) id_ = read_id();
      refuse_shared_device(device, communicator);
    } catch (...) {
      memberships_.erase(device);
      throw;
    }
    GroupId id = *id_;
    id.back() ^= static_cast<uint8_t>(communicator);
    const std::string& name = getGroupDesc().empty() || getGroupDesc() == "undefined" ? options_->group_name : getGroupDesc();
    found = std::make_shared<Membership>(device, id, rank_, size_, order_, options_->timeout, name);
    if (first_device_ < 0) first_device_ = device;
  }
  return *found;
}

std::vector<std::shared_ptr<Membership>> ProxiedGroup::memberships() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Membership>> all;
  for (const auto& [device, group] : memberships_) all.push_back(group);
  return all;
}

ProxiedGroup::WorkPtr ProxiedGroup::run(OpType type, Call& call, Tensors results) {
  const Stretches& some = call.inputs.empty() ? call.outputs : call.inputs;
  const int device = some.empty() ? call.device : some[0].tensor.get_device();
  Membership& group = on(device);
  group.issue(call.what, call.fold, call.root, call.inputs, call.outputs);
  for (auto& [tensor, arrived] : call.late) tensor.copy_(arrived);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (coalescing_) {
    coalesced_.insert(coalesced_.end(), results.begin(), results.end());
    coalesced_device_ = device;
  }
  return c10::make_intrusive<IssuedWork>(rank_, type, memberships_.at(device), std::move(results),
                                         call.what == Collective::barrier || waits_are_blocking());
}

// The work of several collectives that were issued one after the other.
ProxiedGroup::WorkPtr ProxiedGroup::together(OpType type, Tensors results) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& group = memberships_.at(results[0].get_device());
  return c10::make_intrusive<IssuedWork>(rank_, type, group, std::move(results), waits_are_blocking());
}

ProxiedGroup::WorkPtr ProxiedGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_dense_contiguous(only(tensors));
  Call call(Collective::all_reduce);
  Tensors inputs = tensors;
  call.fold = fold_of(options.reduceOp, "all_reduce", inputs);
  call.inputs = {whole(inputs[0])};
  call.outputs = {whole(tensors[0])};
  as_numbers(call.inputs);
  as_numbers(call.outputs);
  return run(OpType::ALLREDUCE, call, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  TORCH_CHECK(false, "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.");
}

ProxiedGroup::WorkPtr ProxiedGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "Tensor list must be nonempty");
  for (const Tensor& t : tensors) {
    check_dense_contiguous(t);
    TORCH_CHECK_TYPE(t.scalar_type() == tensors[0].scalar_type(), "Tensors must have identical type");
  }
  for (Tensor& t : tensors) {
    Tensors one{t};
    allreduce(one, options);
  }
  return together(OpType::ALLREDUCE_COALESCED, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_dense_contiguous(only(tensors));
  check_root(options.rootRank, size_, "broadcast");
  Call call(Collective::broadcast);
  call.root = options.rootRank;
  if (call.root == rank_) call.inputs = {whole(tensors[0])};
  call.outputs = {whole(tensors[0])};
  return run(OpType::BROADCAST, call, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_dense_contiguous(only(tensors));
  check_root(options.rootRank, size_, "reduce");
  Call call(Collective::reduce);
  call.root = options.rootRank;
  Tensors inputs = tensors;
  call.fold = fold_of(options.reduceOp, "reduce", inputs);
  call.inputs = {whole(inputs[0])};
  if (call.root == rank_) call.outputs = {whole(tensors[0])};
  as_numbers(call.inputs);
  as_numbers(call.outputs);
  return run(OpType::REDUCE, call, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  const Tensor& input = only(inputs);
  check_dense_contiguous(input);
  const Tensors& list = only_list(outputs, size_, "all_gather");
  Call call(Collective::all_gather);
  call.inputs = {whole(input)};
  for (const Tensor& output : list) {
    check_same_dtype(input, output);
    call.give(output);
  }
  TORCH_CHECK_VALUE(call.outputs[static_cast<size_t>(rank_)].count == call.input_count(),
                    "all_gather: the output of this rank must have as many elements as its input");
  return run(OpType::ALLGATHER, call, list);
}

ProxiedGroup::WorkPtr ProxiedGroup::_allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions&) {
  check_dense_contiguous(input);
  check_dense_contiguous(output);
  check_same_dtype(input, output);
  TORCH_CHECK_VALUE(input.numel() * size_ == output.numel(), "output tensor size must be equal to world_size times input tensor size");
  Call call(Collective::all_gather);
  call.inputs = {whole(input)};
  call.outputs = equal_parts(output, size_);
  return run(OpType::_ALLGATHER_BASE, call, {output});
}

ProxiedGroup::WorkPtr ProxiedGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "requires input/output tensor lists to have the same length");
  for (size_t i = 0; i < inputs.size(); i++) _allgather_base(outputs[i], inputs[i], options);
  return together(OpType::COALESCED, outputs);
}

ProxiedGroup::WorkPtr ProxiedGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  const Tensor& output = only(outputs);
  check_dense_contiguous(output);
  Tensors list = only_list(inputs, size_, "reduce_scatter");
  for (const Tensor& input : list) check_same_dtype(input, output);
  Call call(Collective::reduce_scatter);
  call.fold = fold_of(options.reduceOp, "reduce_scatter", list);
  for (const Tensor& input : list) call.take(input);
  call.outputs = {whole(output)};
  TORCH_CHECK_VALUE(call.inputs[static_cast<size_t>(rank_)].count == call.outputs[0].count,
                    "reduce_scatter: the input for this rank must have as many elements as its output");
  as_numbers(call.inputs);
  as_numbers(call.outputs);
  return run(OpType::REDUCE_SCATTER, call, outputs);
}

ProxiedGroup::WorkPtr ProxiedGroup::_reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) {
  check_dense_contiguous(output);
  check_dense_contiguous(input);
  TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(), "input tensor must be the same type as the output tensor.");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "input tensor must be the same size as output size times world size");
  Call call(Collective::reduce_scatter);
  Tensors one{input};
  call.fold = fold_of(options.reduceOp, "reduce_scatter", one);
  call.inputs = equal_parts(one[0], size_);
  call.outputs = {whole(output)};
  as_numbers(call.inputs);
  as_numbers(call.outputs);
  return run(OpType::_REDUCE_SCATTER_BASE, call, {output});
}

ProxiedGroup::WorkPtr ProxiedGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(), "requires input/output tensor lists to have the same length");
  for (size_t i = 0; i < inputs.size(); i++) _reduce_scatter_base(outputs[i], inputs[i], options);
  return together(OpType::COALESCED, outputs);
}

ProxiedGroup::WorkPtr ProxiedGroup::alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  check_dense_contiguous(output);
  check_dense_contiguous(input);
  check_same_dtype(input, output);
  Call call(Collective::all_to_all);
  call.inputs = split_parts(input, input_splits, size_);
  call.outputs = split_parts(output, output_splits, size_);
  return run(OpType::ALLTOALL_BASE, call, {output});
}

ProxiedGroup::WorkPtr ProxiedGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  check_list(inputs, size_, "all_to_all");
  check_list(outputs, size_, "all_to_all");
  Call call(Collective::all_to_all);
  for (size_t i = 0; i < inputs.size(); i++) {
    check_same_dtype(inputs[0], inputs[i]);
    check_same_dtype(inputs[0], outputs[i]);
    call.take(inputs[i]);
    call.give(outputs[i]);
  }
  return run(OpType::ALLTOALL, call, outputs);
}

ProxiedGroup::WorkPtr ProxiedGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const Tensor& input = only(inputs);
  check_dense_contiguous(input);
  check_root(options.rootRank, size_, "gather");
  Call call(Collective::gather);
  call.root = options.rootRank;
  call.inputs = {whole(input)};
  if (call.root != rank_) {
    TORCH_CHECK_VALUE(outputs.empty(), "gather: requires empty output on non-root");
    return run(OpType::GATHER, call, {});
  }
  const Tensors& list = only_list(outputs, size_, "gather");
  for (const Tensor& output : list) {
    check_same_dtype(input, output);
    TORCH_CHECK_VALUE(output.sizes() == input.sizes(), "gather: all outputs must have the size of the input");
    call.give(output);
  }
  return run(OpType::GATHER, call, list);
}

ProxiedGroup::WorkPtr ProxiedGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const Tensor& output = only(outputs);
  check_dense_contiguous(output);
  check_root(options.rootRank, size_, "scatter");
  Call call(Collective::scatter);
  call.root = options.rootRank;
  call.outputs = {whole(output)};
  if (call.root != rank_) {
    TORCH_CHECK_VALUE(inputs.empty(), "scatter: requires empty input on non-root");
  } else {
    for (const Tensor& input : only_list(inputs, size_, "scatter")) {
      check_same_dtype(input, output);
      TORCH_CHECK_VALUE(input.sizes() == output.sizes(), "scatter: all inputs must have the size of the output");
      call.take(input);
    }
  }
  return run(OpType::SCATTER, call, outputs);
}

ProxiedGroup::WorkPtr ProxiedGroup::send(Tensors& tensors, int to, int) {
  check_root(to, size_, "send");
  Call call(Collective::send);
  call.root = to;
  call.take(only(tensors));
  return run(OpType::SEND, call, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::recv(Tensors& tensors, int from, int) {
  check_root(from, size_, "recv");
  Call call(Collective::recv);
  call.root = from;
  call.give(only(tensors));
  return run(OpType::RECV, call, tensors);
}

ProxiedGroup::WorkPtr ProxiedGroup::recvAnysource(Tensors&, int) {
  TORCH_CHECK(false, "ProcessGroupNCCL does not support recvAnysource");
}

int ProxiedGroup::device_for_barrier(const c10d::BarrierOptions& options) {
  if (!options.device_ids.empty()) {
    TORCH_CHECK_VALUE(options.device_ids.size() == 1, "barrier: one process of a group works on one device, not on ",
                      options.device_ids.size());
    return static_cast<int>(options.device_ids[0]);
  }
  if (options.device && options.device->is_cuda() && options.device->has_index()) return options.device->index();
  if (getBoundDeviceId()) return getBoundDeviceId()->index();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_device_ >= 0) return first_device_;
  }
  if (current_device()) return current_device();
  const auto& ranks = options_->global_ranks_in_group;
  const uint64_t rank = ranks.empty() ? static_cast<uint64_t>(rank_) : ranks[static_cast<size_t>(rank_)];
  return static_cast<int>(rank % static_cast<uint64_t>(std::max(device_count(), 1)));
}

ProxiedGroup::WorkPtr ProxiedGroup::barrier(const c10d::BarrierOptions& options) {
  Call call(Collective::barrier);
  call.device = device_for_barrier(options);
  return run(OpType::BARRIER, call, {});
}

void ProxiedGroup::startCoalescing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  coalescing_ = true;
  coalesced_.clear();
  coalesced_device_ = -1;
}

ProxiedGroup::WorkPtr ProxiedGroup::endCoalescing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  coalescing_ = false;
  if (coalesced_device_ < 0) return nullptr;
  return c10::make_intrusive<IssuedWork>(rank_, OpType::COALESCED, memberships_.at(coalesced_device_), std::move(coalesced_),
                                         waits_are_blocking());
}

void ProxiedGroup::eagerConnectSingleDevice(at::Device device) { on(device.index()).join(); }

uint64_t ProxiedGroup::getSequenceNumberForGroup() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return first_device_ < 0 ? 0 : memberships_.at(first_device_)->sequence();
}

void ProxiedGroup::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  for (const auto& group : memberships()) group->set_timeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> ProxiedGroup::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = c10::dynamic_intrusive_pointer_cast<GroupOptions>(options);
  TORCH_CHECK(own, "opts not a ProcessGroupNCCL::Options.");
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) return nullptr;
  auto group = c10::make_intrusive<ProxiedGroup>(store, static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size()), own);
  group->setBoundDeviceId(getBoundDeviceId());
  return group;
}

void ProxiedGroup::waitForPendingWorks() {
  for (const auto& group : memberships()) synchronize(group->device());
}

void ProxiedGroup::leave(bool wait) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (left_) return;
  }
  std::exception_ptr error;
  try {
    if (wait) waitForPendingWorks();
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
    for (const auto& [device, group] : memberships_) group->leave();
  }
  if (error) std::rethrow_exception(error);
}

void ProxiedGroup::shutdown() { leave(true); }
void ProxiedGroup::abort() { leave(false); }

}  // namespace singularity
