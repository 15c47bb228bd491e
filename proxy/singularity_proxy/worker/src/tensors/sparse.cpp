#include "sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>

#include "device.h"

namespace singularity {

using at::Tensor;

namespace {

at::SparseTensorImpl* coo_impl(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace

SparseHeader sparse_header(const Tensor& tensor, const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_quantized(), op,
                              ": quantized tensors are not supported on the proxied device; quantize on the host");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_nested(), op,
                              ": this operation on nested tensors is not supported on the proxied device; use the "
                              "jagged layout, or .unbind() first");
  const bool coo = tensor.layout() == at::kSparse;
  TORCH_CHECK_NOT_IMPLEMENTED(coo || at::sparse_csr::is_sparse_compressed(tensor), op, ": tensors of layout ",
                              tensor.layout(), " are not supported on the proxied device; use .to_dense() first");
  SparseHeader header{static_cast<uint8_t>(tensor.layout()), 0, 0, 0, static_cast<uint8_t>(tensor.dim())};
  if (coo) {
    header.coalesced = coo_impl(tensor)->coalesced();
    header.sparse_dims = static_cast<uint8_t>(coo_impl(tensor)->sparse_dim());
    header.dense_dims = static_cast<uint8_t>(coo_impl(tensor)->dense_dim());
  }
  return header;
}

std::vector<Tensor> sparse_parts(const Tensor& tensor) {
  if (tensor.layout() == at::kSparse) return {coo_impl(tensor)->indices(), coo_impl(tensor)->values()};
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
}

void refill_sparse(const Tensor& old, const SparseHeader& header, at::IntArrayRef sizes, const std::vector<Tensor>& parts) {
  TORCH_CHECK(static_cast<uint8_t>(old.layout()) == header.layout, "the result of layout ",
              static_cast<at::Layout>(header.layout), " does not fit an out= tensor of layout ", old.layout());
  if (header.layout != static_cast<uint8_t>(at::kSparse))
    return at::sparse_csr::get_sparse_csr_impl(old)->set_member_tensors(parts.at(0), parts.at(1), parts.at(2), sizes);
  auto* impl = coo_impl(old);
  impl->raw_resize_(header.sparse_dims, header.dense_dims, sizes);
  impl->set_indices_and_values_unsafe(parts.at(0), parts.at(1));
  impl->set_coalesced(header.coalesced);
}

Tensor make_sparse(const SparseHeader& header, at::IntArrayRef sizes, const std::vector<Tensor>& parts) {
  const auto layout = static_cast<at::Layout>(header.layout);
  const Tensor& values = parts.back();
  const OnDevice on(values.get_device());  // the COO constructor makes empty parts on the current device
  const Tensor made =
      layout == at::kSparse
          ? at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparseCUDA), values.dtype())
          : at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCUDA),
                                                             values.device(), layout, values.dtype());
  refill_sparse(made, header, sizes, parts);
  return made;
}

}  // namespace singularity
