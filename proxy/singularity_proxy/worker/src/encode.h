// Encodes the arguments of a call: the key and the values of its record.
#pragma once

#include <ATen/core/stack.h>

#include "channel.h"
#include "operators.h"
#include "ship.h"

namespace singularity {

using Inputs = c10::SmallVector<c10::TensorImpl*, 8>;  // the device tensors of a call, in order

// Raises what a CUDA build raises when the tensors of a call are on several devices.
[[noreturn]] void refuse_devices(const Operator& op, c10::ArrayRef<c10::IValue> arguments);
// A result that the operator wrote into a host number would be lost: the number was sent by value.
void check_written(const Operator& op, c10::ArrayRef<c10::IValue> arguments, size_t index);

// Encodes the arguments of one call. Borrowed pointers only: dropping a tensor reference under the
// channel's lock could need the GIL.
class Encoder {
 public:
  Encoder(Channel& channel, const Operator& op, c10::ArrayRef<c10::IValue> arguments)
      : c_(channel), key_(channel.key), values_(channel.values), op_(op), arguments_(arguments) {
    key_.clear();
    values_.clear();
    key_.put<uint16_t>(op.arguments);
  }
  Inputs& inputs() { return inputs_; }
  bool saw_sparse() const { return saw_sparse_; }

  void argument(size_t index) {
    const c10::IValue& v = arguments_[index];
    host_allowed_ = op_.is_host[index];
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return tag(Tag::none);
    other(v, !op_.is_value[index]);
  }

  void tensor(const at::Tensor& t) {
    if (!t.defined()) return tag(Tag::undefined_tensor);
    if (!t.is_cuda()) return host_tensor(t);
    if (C10_UNLIKELY(t.layout() != at::kStrided || t.is_nested())) return sparse_tensor(t);
    if (C10_UNLIKELY(t.get_device() != c_.index)) refuse_devices(op_, arguments_);
    encode_device_tensor(c_, t);
    inputs_.push_back(t.unsafeGetTensorImpl());
  }

 private:
  void tag(Tag t) { key_.put(t); }
  void count(Tag t, size_t n) {
    tag(t);
    key_.put<uint32_t>(static_cast<uint32_t>(n));
  }
  void other(const c10::IValue& v, bool in_key);  // anything but a tensor
  void host_tensor(const at::Tensor& t);
  void sparse_tensor(const at::Tensor& t);
  void integers(const std::vector<int64_t>& list);
  void list(c10::ArrayRef<c10::IValue> items);
  void number(const c10::IValue& v, bool in_key);

  Channel& c_;
  Buffer& key_;
  Buffer& values_;
  const Operator& op_;
  c10::ArrayRef<c10::IValue> arguments_;
  bool saw_sparse_ = false;
  bool host_allowed_ = false;  // of the argument that is being encoded
  Inputs inputs_;
};

}  // namespace singularity
