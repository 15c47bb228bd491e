// Elementwise reductions, one rank after the other.
//
// The order is the ranks' own, whatever number of proxies they are spread over: each element goes
// through the same roundings, so the bits of a result do not depend on where ranks run.
#pragma once

#include <ATen/core/Tensor.h>

#include "wire/records.h"

namespace singularity {

// The first rank's contribution becomes the sum. It is changed in place when it is nobody else's.
at::Tensor fold_first(const at::Tensor& first, Reduction reduction, double factor, bool own);
// The next rank's. `sum` is changed.
void fold_next(at::Tensor& sum, const at::Tensor& next, Reduction reduction, double factor);
// After the last one.
void fold_end(at::Tensor& sum, Reduction reduction, uint32_t ranks);

}  // namespace singularity
