// Elementwise reductions, one rank after the other.
//
// In FoldOrder::bitwise the order is the ranks' own, whatever number of proxies they are spread over:
// each element goes through the same roundings, so the bits of a result do not depend on where ranks
// run. In FoldOrder::fast the ranks of one device come first, in their order, and then the devices, in
// the order of their first ranks: the bits depend on what shares a device, and on nothing else. Either
// way sums have the tensors' own dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "wire/records.h"

namespace singularity {

// The first rank's contribution becomes the sum. It is changed in place when it is nobody else's.
at::Tensor fold_first(const at::Tensor& first, Reduction reduction, double factor, bool own);
// The next rank's. `sum` is changed.
void fold_next(at::Tensor& sum, const at::Tensor& next, Reduction reduction, double factor);
// What several ranks contribute, in their order, into `sum`, which is as large and holds nothing yet.
// `factors` are theirs.
void fold_into(at::Tensor& sum, const std::vector<at::Tensor>& parts, Reduction reduction, const std::vector<double>& factors);
// How such sums are folded, for one of this reduction.
constexpr Reduction of_sums(Reduction reduction) {
  return reduction == Reduction::premul_sum ? Reduction::sum : reduction;
}
// After the last one.
void fold_end(at::Tensor& sum, Reduction reduction, uint32_t ranks);

}  // namespace singularity
