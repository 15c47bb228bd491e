#include "executor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "device/src/memory/memory.h"
#include "device/src/memory/swap.h"

namespace singularity {

using at::Tensor;
using c10::IValue;

Executor::Executor(State& state)
    : state_(state),
      device_key_(state.device.is_cpu() ? c10::DispatchKey::CPU
                                        : c10::computeDispatchKey(std::nullopt, at::kStrided, state.device)),
      lineage_(state) {}

void Executor::settle() const {
  if (state_.device.is_cpu()) return;
  const auto* guard = c10::impl::getDeviceGuardImpl(state_.device.type());
  guard->synchronizeStream(guard->getStream(state_.device));
}

std::string Executor::name_of(const RecordHeader& record) const {
  switch (static_cast<Kind>(record.kind)) {
    case Kind::op:
      if (record.op < state_.ops.size() && !state_.ops[record.op].name.empty()) return state_.ops[record.op].name;
      return "operator " + std::to_string(record.op);
    case Kind::define_op: return "definition of an operator";
    case Kind::free_storages: return "freeing memory";
    case Kind::allocate: return "allocating memory";
    case Kind::resize: return "resizing a storage";
    case Kind::write: return "copy to the device";
    case Kind::read: return "copy from the device";
    case Kind::seed:
    case Kind::set_rng: return "setting the random number generator";
    case Kind::get_rng: return "reading the random number generator";
    case Kind::sync: return "synchronize";
    case Kind::event_record:
    case Kind::event_time: return "event";
    case Kind::settings: return "changing settings";
    case Kind::compile: return "torch.compile";
    case Kind::join_group: return "joining a process group";
    case Kind::leave_group: return "leaving a process group";
    case Kind::collective: return "collective";
  }
  return "record of kind " + std::to_string(record.kind);
}

void Executor::mark_failed(const RecordHeader& record, const std::string& origin) {
  const auto kind = static_cast<Kind>(record.kind);
  if ((kind == Kind::op && !(record.flags & kNoOutputs)) || kind == Kind::allocate)
    state_.mark_failed(record.base, origin);
}

void Executor::execute(const RecordHeader& record, const char* body, Buffer& reply) {
  const Turn turn(turns_, state_.settings);
  Reader in(body, body + record.length - sizeof(record));
  switch (static_cast<Kind>(record.kind)) {
    case Kind::op: run(record, body, reply); return;
    case Kind::define_op: {
      const auto name_bytes = in.get<uint32_t>(), overload_bytes = in.get<uint32_t>();
      const auto schema = in.get<uint64_t>();
      std::string name(in.bytes(name_bytes), name_bytes);
      state_.define(record.op, std::move(name), std::string(in.bytes(overload_bytes), overload_bytes), schema);
      return;
    }
    case Kind::free_storages:
      TORCH_CHECK(record.base <= in.left() / 8, "a record frees more storages than it names");
      for (uint64_t i = 0; i < record.base; i++) {
        const auto id = in.get<uint64_t>();
        if (id & kGeneratorId) {
          state_.generators.erase(id & ~kGeneratorId);
          continue;
        }
        state_.recent.forget(id);
        state_.storages.erase(id);
      }
      return;
    case Kind::allocate:
      state_.check_room(1);
      state_.recent.forget(record.base);
      state_.storages[record.base] = state_.make_storage(in.get<uint64_t>());
      if (kept_lineage_) lineage_.made(state_.storages[record.base]);
      return;
    case Kind::resize:
      state_.recent.forget(record.base);
      resize(record.base, in.get<uint64_t>());
      return;
    case Kind::write: {
      const auto offset = in.get<uint64_t>(), bytes = in.get<uint64_t>();
      const char* from = in.bytes(bytes);
      state_.write(record.base, offset, bytes, from);
      if (kept_lineage_) lineage_.copied(state_.entry(record.base), offset, bytes, from);
      return;
    }
    case Kind::seed: {
      at::Generator& generator = state_.generator(record.base);
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_current_seed(in.get<uint64_t>());
      return;
    }
    case Kind::set_rng: {
      const auto bytes = in.get<uint64_t>();
      state_.set_generator(record.base, in.bytes(bytes), bytes);
      reply.put<uint64_t>(state_.generator(record.base).current_seed());
      return;
    }
    case Kind::get_rng: {
      at::Generator& generator = state_.generator(record.base);
      std::lock_guard<std::mutex> lock(generator.mutex());
      const Tensor saved = generator.get_state();
      reply.put<uint64_t>(generator.current_seed());
      reply.put_bytes(saved.const_data_ptr(), saved.nbytes());
      return;
    }
    case Kind::sync:
      settle();
      if (record.base & kEmptyCache) empty_cache(state_.device);
      reply.put<uint64_t>(state_.seq);
      reply.put<uint64_t>(state_.storages.size());
      return;
    case Kind::event_record: state_.record_event(record.base, stamp_of(record)); return;
    case Kind::event_time: reply.put<double>(state_.event_milliseconds(record.base, in.get<uint64_t>())); return;
    case Kind::settings: {
      Settings settings;
      std::memcpy(settings.bytes.data(), in.bytes(sizeof(settings)), sizeof(settings));
      state_.settings = remember(settings);
      state_.memory_limit = in.get<uint64_t>();
      limit_account(state_.memory_limit);
      return;
    }
    case Kind::compile: {
      OperatorEntry& op = state_.op(record.op);
      TORCH_CHECK(op.graph, op.name, " is no captured graph");
      const std::string answer = op.graph->compile();
      reply.put_bytes(answer.data(), answer.size());
      return;
    }
    case Kind::join_group:  // these three: see Collectives
    case Kind::leave_group:
    case Kind::collective:
    case Kind::read: break;
  }
  TORCH_CHECK(false, "the device proxy knows no record of kind ", record.kind);
}

void Executor::resize(uint64_t id, uint64_t bytes) {
  const uint64_t before = state_.storage(id).nbytes();
  state_.resize(id, bytes);
  if (kept_lineage_) lineage_.resized(state_.entry(id), before);
}

// Keeps what torch warns of while a call runs: its caller's process is told, at the caller's line.
class Executor::Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (kept_.size() == kMost) return;
    std::string text = warning.msg();
    const c10::SourceLocation& place = warning.source_location();
    if (!warning.verbatim() && place.file)  // as PyWarningHandler says it
      text = c10::str(text, " (Triggered internally at ", place.file, ":", place.line, ".)");
    text.resize(std::min(text.size(), kLongest));
    kept_.emplace_back(std::holds_alternative<c10::DeprecationWarning>(warning.type()), std::move(text));
  }
  void put(Buffer& reply) const {
    for (const auto& [deprecation, text] : kept_) {
      reply.put<uint8_t>(deprecation);
      reply.put<uint32_t>(static_cast<uint32_t>(text.size()));
      reply.put_bytes(text.data(), text.size());
    }
  }

 private:
  static constexpr size_t kMost = 16, kLongest = 2000;
  std::vector<std::pair<bool, std::string>> kept_;
};

void Executor::run(const RecordHeader& record, const char* body, Buffer& reply) {
  const size_t body_bytes = record.length - sizeof(record);
  TORCH_CHECK(padded(record.key_bytes) <= body_bytes, "the key of a record is longer than the record");
  OperatorEntry& op = state_.op(record.op);
  Reader key(body, body + record.key_bytes), values(body + padded(record.key_bytes), body + body_bytes);
  // Also after an exception nothing of this call may stay alive.
  struct Clear {
    Executor* self;
    ~Clear() {
      self->stack_.clear();
      self->kept_.clear();
      self->made_.clear();
      self->inputs_.clear();
    }
  } clear{this};
  plain_ = true;
  last_made_ = 0;
  if (kept_lineage_) {
    if (!lineage_.take_look(record)) look(record, body);
    for (const Touch& touch : lineage_.touches()) state_.use(*touch.entry);  // before anything is owned
    lineage_.own_what_is_written();
  }
  const size_t count = key.get<uint16_t>();
  for (size_t i = 0; i < count; i++) stack_.push_back(argument(key, values));
  const bool answers = record.flags & kReply;
  Warnings warnings;
  std::optional<c10::WarningUtils::WarningHandlerGuard> heard;
  if (answers) heard.emplace(&warnings);
  if (kept_lineage_) {
    try {
      call(op, count, body, record.key_bytes);
    } catch (...) {
      lineage_.failed();
      throw;
    }
    lineage_.wrote(op.keep_arguments ? kept_ : stack_);
  } else {
    call(op, count, body, record.key_bytes);
  }
  operations_++;
  results(record, op, reply);
  if (answers) warnings.put(reply);
}

void Executor::look(const RecordHeader& record, const char* body) {
  OperatorEntry& op = state_.op(record.op);
  if (op.graph && !op.rules.unique) {  // not looked at before
    op.graph->prepare();
    op.rules = rules_of_graph(op.graph->writes());
  }
  lineage_.look(record, body, op.rules);
}

void Executor::call(OperatorEntry& op, size_t count, const char* key, size_t key_bytes) {
  if (op.graph) {
    op.graph->prepare();
    std::optional<UseDefaultGenerator> use;  // before the GIL, as everywhere
    if (op.graph->draws()) use.emplace(state_);
    return op.graph->run(stack_, std::string(key, key_bytes));
  }
  TORCH_CHECK(count == op.arguments, op.name, " came with ", count, " arguments instead of ",
              op.arguments, ": worker and device proxy run different versions of PyTorch");
  if (op.has_enums) op.check_enums(stack_);
  // A boxed call whose results are several of its arguments returns references that dangle in some
  // versions of torch (2.11). Keeping the arguments alive makes them harmless, and the results are
  // taken from the arguments.
  if (op.keep_arguments) kept_ = stack_;
  std::optional<UseDefaultGenerator> use;
  if (op.uses_default_rng) use.emplace(state_);
  // What the dispatcher would find out from the arguments is known here: plain tensors of one device.
  if (plain_ && !inputs_.empty())
    op.handle->redispatchBoxed(device_key_, &stack_);
  else
    op.handle->callBoxed(stack_);
}

void Executor::results(const RecordHeader& record, const OperatorEntry& op, Buffer& reply_buffer) {
  const bool wanted = record.flags & kReply;
  Buffer* reply = wanted ? &reply_buffer : nullptr;
  const size_t start = reply_buffer.size();
  const size_t count = op.returns_nothing ? op.result_alias.size() : stack_.size();
  if (reply) {
    reply->put<uint32_t>(0);  // new storages, known at the end
    reply->put<uint32_t>(record.flags & kNoOutputs ? 0 : static_cast<uint32_t>(count));
  }
  if (record.flags & kNoOutputs) return;
  const bool all_new = record.flags & kAllNew;
  for (size_t i = 0; i < count; i++) {
    const bool kept = op.keep_arguments && i < op.result_alias.size() && op.result_alias[i] >= 0;
    const IValue& value = kept ? kept_[static_cast<size_t>(op.result_alias[i])] : stack_[i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().layout() != at::kStrided) {
      sparse_result(value.toTensor(), reply);
    } else if (value.isTensor()) {
      if (reply) reply->put('t');
      tensor_result(value.toTensor(), all_new, reply);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      if (reply) {
        reply->put('l');
        reply->put<uint32_t>(static_cast<uint32_t>(list.size()));
      }
      for (size_t j = 0; j < list.size(); j++) tensor_result(list.get(j), all_new, reply);
    } else if (reply) {
      if (value.isInt()) {
        reply->put('i');
        reply->put<int64_t>(value.toInt());
      } else if (value.isDouble()) {
        reply->put('d');
        reply->put<double>(value.toDouble());
      } else if (value.isBool()) {
        reply->put('b');
        reply->put<int64_t>(value.toBool());
      } else if (value.isComplexDouble()) {
        reply->put('c');
        reply->put<double>(value.toComplexDouble().real());
        reply->put<double>(value.toComplexDouble().imag());
      } else if (value.isNone()) {
        reply->put('n');
      } else {
        TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, " returns a ", value.tagKind(),
                                    ", which the device proxy cannot send");
      }
    }
  }
  state_.check_room(made_.size());
  for (size_t i = 0; i < made_.size(); i++) {
    state_.recent.forget(record.base + i);
    StorageEntry& entry = state_.storages[record.base + i];
    entry = std::move(made_[i]);
    if (!kept_lineage_) continue;
    entry.identity = lineage_.result(i);
    entry.writer = record.op;
  }
  last_made_ = made_.size();
  if (reply) {
    const auto made = static_cast<uint32_t>(made_.size());
    std::memcpy(reply->at(start), &made, sizeof(made));
  }
}

void Executor::tensor_result(const Tensor& tensor, bool all_new, Buffer* reply) {
  if (!tensor.defined()) {
    if (reply) reply->put(MetaKind::undefined);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_nested(), "the result is a ",
                              tensor.is_nested() ? "nested tensor" : "list of sparse tensors",
                              ", which the device proxy cannot send");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(),
                              "quantized tensors are not supported on the proxied device; quantize on the host");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor._is_zerotensor(), "the result has no memory, which the device proxy cannot send");
  TORCH_CHECK(tensor.dim() <= kMaxDim, "a proxied device has tensors of at most ", kMaxDim, " dimensions, and this one has ",
              tensor.dim());
  const c10::Storage& storage = tensor.storage();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  MetaKind kind = MetaKind::new_storage;
  uint32_t index = 0;
  if (!all_new)
    for (size_t i = 0; i < inputs_.size() && kind == MetaKind::new_storage; i++)
      if (inputs_[i] == impl) {
        kind = MetaKind::input_storage;
        index = static_cast<uint32_t>(i);
      }
  if (kind == MetaKind::new_storage) {
    while (index < made_.size() && made_[index].unsafeGetStorageImpl() != impl) index++;
    if (index == made_.size()) made_.push_back(storage);
  }
  if (!reply) return;
  const uint8_t flags = (tensor.is_conj() ? kConjugate : 0) | (tensor.is_neg() ? kNegative : 0) |
                        (tensor.device() != state_.device ? kHostResult : 0);
  reply->put(kind);
  reply->put<uint8_t>(static_cast<uint8_t>(tensor.scalar_type()));
  reply->put<uint8_t>(static_cast<uint8_t>(tensor.dim()));
  reply->put<uint8_t>(flags);
  reply->put<uint32_t>(index);
  reply->put<int64_t>(tensor.storage_offset());
  reply->put<uint64_t>(impl->nbytes());
  reply->put_bytes(tensor.sizes().data(), static_cast<size_t>(tensor.dim()) * 8);
  reply->put_bytes(tensor.strides().data(), static_cast<size_t>(tensor.dim()) * 8);
}

}  // namespace singularity
