// Sparse arguments and results of an operator.
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>

#include "executor.h"
#include "wire/layouts.h"

namespace singularity {

using at::Tensor;

namespace {

bool is_coo(at::Layout layout) { return layout == at::kSparse; }

bool is_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}

}  // namespace

Tensor Executor::sparse_tensor(Reader& key, Reader& values) {
  const auto header = key.get<SparseHeader>();
  const auto layout = static_cast<at::Layout>(header.layout);
  TORCH_CHECK(is_coo(layout) || is_compressed(layout), "a tensor of layout number ", int{header.layout}, " is not sparse");
  int64_t size_words[kMaxDim];
  std::memcpy(size_words, key.bytes(header.dim * 8), header.dim * 8);
  const at::IntArrayRef sizes(size_words, header.dim);
  plain_ = false;
  Tensor parts[3];
  const int count = is_coo(layout) ? 2 : 3;
  for (int i = 0; i < count; i++) {
    TORCH_CHECK(key.get<Tag>() == Tag::tensor, "a part of a sparse tensor that is no tensor");
    parts[i] = device_tensor(key, values);
  }
  // The worker is not believed: an index outside of the sizes would read or write foreign memory.
  if (is_coo(layout)) {
    at::_validate_sparse_coo_tensor_args(parts[0], parts[1], sizes, header.coalesced != 0);
    return at::_sparse_coo_tensor_unsafe(parts[0], parts[1], sizes, parts[1].options().layout(layout), header.coalesced != 0);
  }
  at::_validate_sparse_compressed_tensor_args(parts[0], parts[1], parts[2], sizes, layout);
  return at::_sparse_compressed_tensor_unsafe(parts[0], parts[1], parts[2], sizes, parts[2].options().layout(layout));
}

void Executor::sparse_result(const Tensor& tensor, Buffer* reply) {
  const at::Layout layout = tensor.layout();
  SparseHeader header{static_cast<uint8_t>(layout), 0, 0, 0, static_cast<uint8_t>(tensor.dim())};
  std::vector<Tensor> parts;
  if (is_coo(layout)) {
    header.coalesced = tensor.is_coalesced();
    header.sparse_dims = static_cast<uint8_t>(tensor.sparse_dim());
    header.dense_dims = static_cast<uint8_t>(tensor.dense_dim());
    parts = {tensor._indices(), tensor._values()};
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(is_compressed(layout), "the result is a tensor of layout ", layout,
                                ", which the device proxy cannot send");
    const auto* impl = static_cast<const at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
    parts = {impl->compressed_indices(), impl->plain_indices(), impl->values()};
  }
  if (reply) {
    reply->put(kSparseResult);
    reply->put(header);
    reply->put_bytes(tensor.sizes().data(), static_cast<size_t>(tensor.dim()) * 8);
  }
  for (const Tensor& part : parts) tensor_result(part, /*all_new=*/false, reply);
}

}  // namespace singularity
