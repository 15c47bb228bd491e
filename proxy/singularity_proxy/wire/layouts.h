// Sparse tensors on the wire: their indices and values are ordinary device tensors.
//
// As an argument, Tag kSparseTag: u8 at::Layout, u8 coalesced, u8 sparse dims, u8 dense dims, u8 dim,
// i64 sizes[dim]; then COO: indices, values; compressed: compressed indices, plain indices, values
// (each a Tag::tensor). As a result, char kSparseResult, the same five bytes and sizes, then one
// TensorMeta per part. The dtype is that of the values.
#pragma once

#include "records.h"

namespace singularity {

constexpr Tag kSparseTag = static_cast<Tag>(64);
constexpr char kSparseResult = 's';

struct SparseHeader {
  uint8_t layout, coalesced, sparse_dims, dense_dims, dim;
};
static_assert(sizeof(SparseHeader) == 5);

}  // namespace singularity
