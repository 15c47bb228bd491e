#include "fold.h"

#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace singularity {

at::Tensor fold_first(const at::Tensor& first, Reduction reduction, double factor, bool own) {
  at::Tensor sum = own ? first : first.clone();
  if (reduction == Reduction::premul_sum) sum.mul_(factor);
  return sum;
}

void fold_next(at::Tensor& sum, const at::Tensor& next, Reduction reduction, double factor) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::avg: sum.add_(next); return;
    case Reduction::product: sum.mul_(next); return;
    case Reduction::min: at::minimum_out(sum, sum, next); return;
    case Reduction::max: at::maximum_out(sum, sum, next); return;
    case Reduction::band: sum.bitwise_and_(next); return;
    case Reduction::bor: sum.bitwise_or_(next); return;
    case Reduction::bxor: sum.bitwise_xor_(next); return;
    case Reduction::premul_sum: sum.add_(next.mul(factor)); return;
  }
  TORCH_CHECK(false, "unknown reduction ", static_cast<int64_t>(reduction));
}

void fold_into(at::Tensor& sum, const std::vector<at::Tensor>& parts, Reduction reduction, const std::vector<double>& factors) {
  size_t done = 1;
  if (parts.size() > 1 && (reduction == Reduction::sum || reduction == Reduction::avg)) {
    at::add_out(sum, parts[0], parts[1]);  // one pass over memory instead of two
    done = 2;
  } else {
    sum.copy_(parts.at(0));
    if (reduction == Reduction::premul_sum) sum.mul_(factors.at(0));
  }
  for (; done < parts.size(); done++) fold_next(sum, parts[done], reduction, factors.at(done));
}

void fold_end(at::Tensor& sum, Reduction reduction, uint32_t ranks) {
  if (reduction != Reduction::avg) return;
  if (at::isIntegralType(sum.scalar_type(), /*includeBool=*/true))
    sum.div_(static_cast<int64_t>(ranks), "trunc");
  else
    sum.div_(static_cast<double>(ranks));
}

}  // namespace singularity
