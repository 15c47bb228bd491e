// From what the proxy told of a call to its results.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include "encode.h"
#include "operators.h"
#include "worker/src/tensors/storage.h"

namespace singularity {

using Results = c10::SmallVector<c10::IValue, 2>;

// Reads the description of the results of a call of `op`. Throws for results that cannot be had here.
CacheEntry read_results(Cursor& in, const Operator& op);
// Reads what the call warned of, from behind its results to the payload's end.
std::vector<c10::Warning> read_warnings(Cursor& in, const char* end);
// Whether each result that shares storage with an input shares it with that input in every call of
// the same key: not when another input of this call lies in the same storage.
bool sources_are_certain(const CacheEntry& e, const Inputs& inputs);

class Builder {
 public:
  // `graph`: results that are an input are new tensors nevertheless, as those of compiled code are.
  Builder(Channel& channel, uint64_t base, const Inputs& inputs, bool graph)
      : channel_(channel), base_(base), inputs_(inputs), graph_(graph) {}

  at::Tensor build(const TensorMeta& m) {
    if (m.kind == MetaKind::undefined) return {};
    const auto dtype = static_cast<c10::ScalarType>(m.dtype);
    if (m.kind == MetaKind::input_storage) {
      TORCH_CHECK(m.index < inputs_.size(), "the device proxy named an argument that there is not");
      c10::TensorImpl* input = inputs_[m.index];
      at::Tensor same(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(input));
      if (!graph_ && input->sizes() == at::IntArrayRef(m.sizes) && input->strides() == at::IntArrayRef(m.strides) &&
          input->storage_offset() == m.offset && same.scalar_type() == dtype)
        return same;
      return make_tensor(c10::Storage(same.storage()), dtype, m.sizes, m.strides, m.offset, m.flags);
    }
    if (storages_.size() <= m.index) storages_.resize(m.index + 1);
    if (!storages_[m.index]) storages_[m.index] = make_storage(channel_, base_ + m.index, m.bytes);
    at::Tensor made = at::detail::make_tensor<ShapedTensor>(c10::Storage(storages_[m.index]), *m.shape);
    if (C10_UNLIKELY(m.flags & kConjugate)) made._set_conj(true);
    if (C10_UNLIKELY(m.flags & kNegative)) made._set_neg(true);
    return made;
  }

 private:
  Channel& channel_;
  uint64_t base_;
  const Inputs& inputs_;
  const bool graph_;
  c10::SmallVector<c10::Storage, 2> storages_;
};

// A sparse result that is put together once the channel is free: its constructor makes device tensors.
struct Late {
  size_t position;
  std::shared_ptr<SparseMeta> meta;
  std::vector<at::Tensor> parts;
};
void finish(Results& results, const std::vector<Late>& late);
void results_of(const Operator& op, const CacheEntry& e, Builder& builder, c10::ArrayRef<c10::IValue> arguments,
                Results& results, std::vector<Late>& late);

}  // namespace singularity
