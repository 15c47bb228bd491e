// The worker's view of sparse tensors on the device: metadata here, indices and values proxied.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "wire/layouts.h"

namespace singularity {

// Header and parts (indices, values, ...) of a sparse device tensor. Throws an error for
// tensors of other kinds that are not strided.
SparseHeader sparse_header(const at::Tensor& tensor, const std::string& op);
std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor);

// A sparse device tensor of `parts`, or `old` (an out= or in-place argument) made to hold them.
at::Tensor make_sparse(const SparseHeader& header, at::IntArrayRef sizes, const std::vector<at::Tensor>& parts);
void refill_sparse(const at::Tensor& old, const SparseHeader& header, at::IntArrayRef sizes,
                   const std::vector<at::Tensor>& parts);

}  // namespace singularity
