// Encodes the arguments of a call: the key and the values of its record.
#pragma once

#include <ATen/core/stack.h>

#include <algorithm>

#include "worker/src/ring/channel.h"
#include "operators.h"
#include "ship.h"
#include "worker/src/tensors/storage.h"

namespace singularity {

using Inputs = c10::SmallVector<c10::TensorImpl*, 8>;  // the device tensors of a call, in order

// Tensors of one call are on several devices, and its composition is to say what it makes of that.
struct SeveralDevices {};
// Raises what a CUDA build raises when the tensors of a call are on several devices.
[[noreturn]] void refuse_devices(const Operator& op, c10::ArrayRef<c10::IValue> arguments);
// A result that the operator wrote into a host number would be lost: the number was sent by value.
void check_written(const Operator& op, c10::ArrayRef<c10::IValue> arguments, size_t index);

[[noreturn]] void refuse_dimensions(int64_t dimensions);
inline void check_dimensions(int64_t dimensions) {  // a record counts them in a byte
  if (C10_UNLIKELY(dimensions > kMaxDim)) refuse_dimensions(dimensions);
}

inline char* put_words(char* to, const int64_t* words, int n) {  // few: less work than a call of memcpy
  for (int i = 0; i < n; i++) std::memcpy(to + i * 8, words + i, 8);
  return to + n * 8;
}

// A plain tensor on the channel's device.
inline void encode_device_tensor(Channel& c, const c10::TensorImpl& impl, uint64_t id) {
  const int64_t *sizes = impl.sizes().data(), *strides = impl.strides().data();
  const auto dim = static_cast<int>(impl.sizes().size());
  check_dimensions(dim);
  // Also dimensions of size 0 and 1 have strides, and results inherit them: only what a reader would
  // compute is left out.
  bool contiguous = impl.is_contiguous_default(at::MemoryFormat::Contiguous);
  if (contiguous) {
    int64_t expected = 1;
    for (int i = dim - 1; i >= 0; i--) {
      contiguous = contiguous && strides[i] == expected;
      expected *= std::max<int64_t>(sizes[i], 1);
    }
  }
  char* const start = c.key.room(4 + static_cast<size_t>(dim) * 16);
  const uint32_t head = static_cast<uint32_t>(Tag::tensor) |
                        static_cast<uint32_t>(c10::typeMetaToScalarType(impl.dtype())) << 8 |
                        static_cast<uint32_t>(dim) << 16 |
                        static_cast<uint32_t>((contiguous ? kContiguous : 0) | (impl.is_conj() ? kConjugate : 0) |
                                              (impl.is_neg() ? kNegative : 0))
                            << 24;
  std::memcpy(start, &head, 4);
  char* p = put_words(start + 4, sizes, dim);
  if (!contiguous) p = put_words(p, strides, dim);
  c.key.advance(static_cast<size_t>(p - start));
  struct Place {
    uint64_t id;
    int64_t offset;
  };
  c.values.put(Place{id, impl.storage_offset()});
}

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
  // Whether this call may be refused though others of its key were not: CUDA raises that at once, before
  // anything is sent to the GPU.
  bool may_fail() const { return may_fail_; }
  // Of a tensor that is written and another one that shares a part of its memory. After all arguments.
  void look_for_overlaps() {
    if (inputs_.size() < 2) return;
    for (const uint16_t i : op_.written) {
      const c10::IValue& v = arguments_[i];
      if (v.isTensor()) look_for_overlap(v.toTensor());
      else if (op_.has_out && v.isTensorList())  // CUDA does not look at the lists of torch._foreach_*_
        for (const c10::IValue& item : v.toListRef()) look_for_overlap(item.toTensor());
    }
  }
  // Of the tensor whose values CUDA reads before it begins. After all arguments.
  void look_at_read_argument() {
    if (C10_UNLIKELY(op_.read_argument >= 0) && arguments_[op_.read_argument].isTensor())
      may_fail_ = may_fail_ || may_be_refused(arguments_[op_.read_argument].toTensor());
  }

  void argument(size_t index) {
    const c10::IValue& v = arguments_[index];
    host_allowed_ = op_.is_host[index];
    if (v.isTensor()) return tensor(v.toTensor());
    if (v.isNone()) return tag(Tag::none);
    other(v, !op_.is_value[index]);
  }

  void tensor(const at::Tensor& t) {
    constexpr c10::DispatchKeySet kPlain(c10::DispatchKey::CUDA);  // strided, and ours
    c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    if (C10_UNLIKELY(!impl->key_set().has_all(kPlain))) return other_tensor(t);
    const StorageRecord* record = record_of(impl->unsafe_storage().unsafeGetStorageImpl());
    if (C10_UNLIKELY(record->channel != &c_)) refuse_devices(op_, arguments_);
    encode_device_tensor(c_, *impl, record->id);
    inputs_.push_back(impl);
  }

 private:
  void tag(Tag t) { key_.put(t); }
  void count(Tag t, size_t n) {
    tag(t);
    key_.put<uint32_t>(static_cast<uint32_t>(n));
  }
  void other(const c10::IValue& v, bool in_key);  // anything but a tensor
  void other_tensor(const at::Tensor& t);  // not a plain one on the device
  void sparse_tensor(const at::Tensor& t);
  void integers(const std::vector<int64_t>& list);
  void list(c10::ArrayRef<c10::IValue> items);
  void optional_tensors(c10::ArrayRef<c10::IValue> items);
  void number(const c10::IValue& v, bool in_key);
  void look_for_overlap(const at::Tensor& written);
  bool may_be_refused(const at::Tensor& read) const;
  // The type that a number of the call becomes, as far as arguments say.
  c10::ScalarType type_of_numbers() const;

  Channel& c_;
  Buffer& key_;
  Buffer& values_;
  const Operator& op_;
  c10::ArrayRef<c10::IValue> arguments_;
  bool saw_sparse_ = false;
  bool may_fail_ = false;
  bool host_allowed_ = false;  // of the argument that is being encoded
  Inputs inputs_;
};

}  // namespace singularity
