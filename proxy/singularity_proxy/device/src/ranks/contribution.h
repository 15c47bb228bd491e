// What a rank brings to a collective, how it is packed for other proxies, and whether what all ranks
// brought goes together. No state and no files: pure functions of contributions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wire/fold_order.h"
#include "wire/records.h"

namespace singularity {

// What a collective is called with, besides bytes.
struct Signature {
  Collective what = Collective::barrier;
  Reduction reduction = Reduction::sum;
  FoldOrder order = FoldOrder::bitwise;  // of its group
  double factor = 1;                     // of premul_sum: the rank's own
  int64_t root = -1;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of all tensors; Undefined: there are none
  std::vector<int64_t> in, out;                        // numbers of elements
};

// A rank whose parts are in the sum of a lower rank.
struct Caller {
  uint32_t rank = 0;
  Signature signature;
  std::string failure;
};

struct Contribution {
  Signature signature;
  std::string failure;            // why the rank cannot take part; then there is nothing else
  std::vector<at::Tensor> parts;  // the inputs: contiguous, one dimension. Or with those of `with` added
  bool borrowed = false;          // they lie in an arena or are a rank's own: they must not be changed
  bool lent = false;              // and are there during this call only
  bool given = false;             // nobody reads their storages, which they are all of, before the result is there
  std::vector<Caller> with;       // rising; when one of them cannot take part, or called something else, no parts
  bool in_sum = false;            // it is one of another's `with`: no parts either
};

constexpr bool is_message(Collective what) { return what == Collective::send || what == Collective::recv; }
constexpr bool is_reduced(Collective what) { return what == Collective::all_reduce || what == Collective::reduce; }
// Whether contributions may be added up before all of them are there.
inline bool is_summed(const Signature& s) {
  return s.order == FoldOrder::fast && (is_reduced(s.what) || s.what == Collective::reduce_scatter);
}

const char* name_of(Collective what);
// "all_reduce(sum) of 10 float32", for error texts.
std::string describe(const Signature& signature);

// Throws a sentence about a call that no rank of a group of `size` could make.
void check(const Signature& signature, uint32_t rank, uint32_t size);
// Why the ranks' calls do not go together, naming the first that differs and what it differs from; ""
// when they do. The same on every rank.
std::string disagreement(const std::vector<const Signature*>& of_ranks);
// Whether tensors of these two can be added, one by one.
bool can_be_added(const Signature& one, const Signature& other);
// Of a message and its receiver.
std::string disagreement(const Signature& sent, uint32_t from, const Signature& wanted, uint32_t to);

// ---- packed: a head, then the parts, each at a multiple of 64 bytes

// Bytes that `pack` needs.
uint64_t packed_bytes(const Contribution& contribution);
void pack(const Contribution& contribution, char* to);
// All but the parts; returns their places.
std::vector<at::Tensor> pack_head(const Contribution& contribution, char* to);
// The parts of the result lie in the memory at `from`, which `keep` keeps alive. Throws when there is no
// contribution in these bytes.
Contribution unpack(const char* from, uint64_t bytes, const std::function<void(void*)>& keep);

}  // namespace singularity
