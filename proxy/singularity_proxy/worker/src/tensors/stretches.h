// From the tensors of a collective to what travels: stretches of memory, checked as NCCL's front end
// checks them, and its reduction.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "worker/src/ranks/membership.h"

namespace singularity {

// The one tensor of a list that could hold several, for several devices of one process.
const at::Tensor& only(const std::vector<at::Tensor>& tensors);
// Raises for a tensor that NCCL would not take.
void check_dense(const at::Tensor& tensor);
void check_dense_contiguous(const at::Tensor& tensor);
void check_same_dtype(const at::Tensor& input, const at::Tensor& output);

// All of `tensor`, which is contiguous in some memory format; complex numbers as pairs of real ones.
Stretch whole(const at::Tensor& tensor);
// Its elements from `start` on.
Stretch stretch_of(const at::Tensor& tensor, int64_t start, int64_t count);
// `parts` equal stretches.
Stretches equal_parts(const at::Tensor& tensor, int parts);
// Along the first dimension; empty splits: equal ones.
Stretches split_parts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int parts);

// What is to be done with the `tensors` that are inputs of a reduction. Replaces them where the values
// that travel are others than the user's (a factor that lies on the device).
Fold fold_of(const c10d::ReduceOp& op, const char* what, std::vector<at::Tensor>& tensors);
// Booleans are folded as bytes.
void as_numbers(Stretches& stretches);

}  // namespace singularity
