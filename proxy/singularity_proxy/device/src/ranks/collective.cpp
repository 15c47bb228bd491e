// From a collective's record to its call.
#include <ATen/core/List.h>

#include "device/src/exec/executor.h"
#include "device/src/recovery/walk.h"

namespace singularity {
namespace {

struct WrittenStorages {
  std::vector<uint64_t> ids;
  void tensor(size_t argument, const NamedTensor& t) {
    if (argument == kOutputs) ids.push_back(t.id);
  }
  void words(const char*, size_t) {}
  void generator(uint64_t) {}
  void sparse() {}
};

int64_t integer(c10::IValue value) {
  TORCH_CHECK(value.isInt(), "an argument of a collective is no number");
  return value.toInt();
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value, c10::Device device) {
  TORCH_CHECK(value.isTensorList(), "an argument of a collective is no list of tensors");
  std::vector<at::Tensor> list = value.toTensorVector();
  for (const at::Tensor& t : list)
    TORCH_CHECK(t.defined() && t.layout() == at::kStrided && t.device() == device && t.dim() == 1 && t.is_contiguous() &&
                    !t.is_conj() && !t.is_neg() && t.scalar_type() == list[0].scalar_type(),
                "a tensor of a collective is not a row of numbers on the device");
  return list;
}

}  // namespace

CollectiveCall Executor::collective(const RecordHeader& record, const char* body, bool tensors) {
  const size_t body_bytes = record.length - sizeof(record);
  TORCH_CHECK(padded(record.key_bytes) <= body_bytes, "the key of a record is longer than the record");
  Reader key(body, body + record.key_bytes), values(body + padded(record.key_bytes), body + body_bytes);
  TORCH_CHECK(key.get<uint16_t>() == kCollectiveArguments, "a collective has ", int{kCollectiveArguments}, " arguments");
  CollectiveCall call;
  call.seq = static_cast<uint64_t>(integer(argument(key, values)));
  call.what = static_cast<Collective>(integer(argument(key, values)));
  call.reduction = static_cast<Reduction>(integer(argument(key, values)));
  call.factor = argument(key, values).toDouble();
  call.root = integer(argument(key, values));
  if (!tensors) return call;
  struct Clear {
    std::vector<c10::StorageImpl*>& inputs;
    ~Clear() { inputs.clear(); }
  } clear{inputs_};
  // Outputs are written later: their storages are nobody else's from here on. (One that is an input too
  // must be so before it is decoded.)
  WrittenStorages written;
  Walk<WrittenStorages>(body, record.key_bytes, body_bytes, written).run();
  for (const uint64_t id : written.ids) state_.writable(id);
  call.output_ids = std::move(written.ids);
  call.inputs = tensors_of(argument(key, values), state_.device);
  call.outputs = tensors_of(argument(key, values), state_.device);
  TORCH_CHECK(call.output_ids.size() == call.outputs.size(), "an output of a collective has no storage");
  TORCH_CHECK(call.inputs.empty() || call.outputs.empty() || call.inputs[0].scalar_type() == call.outputs[0].scalar_type(),
              "a collective from ", call.inputs[0].scalar_type(), " to ", call.outputs[0].scalar_type());
  return call;
}

// From here on whoever uses an output asks the state for its storage first.
void Executor::make_pending(const CollectiveCall& call, uint64_t ticket) {
  for (const uint64_t id : call.output_ids) {
    state_.recent.forget(id);
    if (const auto found = state_.storages.find(id); found != state_.storages.end()) {
      found->second.pending = ticket;
      found->second.run_bytes = 0;
    }
  }
}

}  // namespace singularity
