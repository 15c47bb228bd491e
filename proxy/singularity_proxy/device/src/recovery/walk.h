// Goes through the arguments of an operator's record without making them: which storages it names,
// and everything that is no part of its key.
#pragma once

#include <c10/core/ScalarType.h>

#include "device/src/exec/reader.h"
#include "wire/layouts.h"
#include "wire/records.h"

namespace singularity {

// A tensor as a record names it.
struct NamedTensor {
  uint64_t id = 0;
  int64_t offset = 0;            // elements
  const char* sizes = nullptr;   // dim x i64, not aligned
  uint8_t dtype = 0, dim = 0, flags = 0;

  // Bytes of a contiguous tensor; 0 for one that no storage can hold.
  uint64_t bytes() const {
    if (dtype >= static_cast<uint8_t>(c10::ScalarType::Undefined)) return 0;
    uint64_t n = c10::elementSize(static_cast<c10::ScalarType>(dtype));
    for (int i = 0; i < dim; i++) {
      uint64_t size;
      std::memcpy(&size, sizes + 8 * i, 8);
      if (__builtin_mul_overflow(n, size, &n)) return 0;
    }
    return n;
  }
};

// `Visitor` has: tensor(size_t argument, const NamedTensor&), words(const char*, size_t bytes) for
// values outside of the key, generator(uint64_t id), sparse().
template <class Visitor>
class Walk {
 public:
  Walk(const char* body, size_t key_bytes, size_t body_bytes, Visitor& visitor)
      : key_(body, body + key_bytes), values_(body + padded(key_bytes), body + body_bytes), visit_(visitor) {}
  // Throws when the record is shorter than it says.
  void run() {
    const size_t count = key_.get<uint16_t>();
    for (size_t i = 0; i < count; i++) argument(i, key_.get<uint8_t>(), false);
  }

 private:
  void argument(size_t i, uint8_t tag, bool inside) {
    if (static_cast<Tag>(tag) == kSparseTag) return sparse(i);
    switch (static_cast<Tag>(tag)) {
      case Tag::tensor: return tensor(i);
      case Tag::integer:
      case Tag::real: key_.bytes(8); return;
      case Tag::boolean:
      case Tag::device: key_.bytes(1); return;
      case Tag::complex: key_.bytes(16); return;
      case Tag::value_integer:
      case Tag::value_real:
      case Tag::value_boolean: visit_.words(values_.bytes(8), 8); return;
      case Tag::value_complex: visit_.words(values_.bytes(16), 16); return;
      case Tag::host_scalar:
        key_.bytes(2);
        visit_.words(values_.bytes(16), 16);
        return;
      case Tag::host_tensor: {
        key_.bytes(1);
        key_.bytes(size_t{key_.get<uint8_t>()} * 8);
        const auto bytes = values_.get<uint64_t>();
        visit_.words(values_.bytes(bytes), bytes);
        return;
      }
      case Tag::integer_list:
      case Tag::real_list: key_.bytes(size_t{key_.get<uint32_t>()} * 8); return;
      case Tag::boolean_list:
      case Tag::string: key_.bytes(key_.get<uint32_t>()); return;
      case Tag::tensor_list:
      case Tag::optional_tensor_list:
      case Tag::scalar_list: {
        TORCH_CHECK(!inside, "a list of lists");
        for (auto n = key_.get<uint32_t>(); n; n--) argument(i, key_.get<uint8_t>(), true);
        return;
      }
      case Tag::generator: visit_.generator(values_.get<uint64_t>()); return;
      case Tag::none:
      case Tag::undefined_tensor: return;
    }
    TORCH_CHECK(false, "unknown argument tag ", int{tag});
  }
  void tensor(size_t i) {
    NamedTensor t;
    t.dtype = key_.get<uint8_t>();
    t.dim = key_.get<uint8_t>();
    t.flags = key_.get<uint8_t>();
    t.sizes = key_.bytes(size_t{t.dim} * (t.flags & kContiguous ? 8 : 16));
    t.id = values_.get<uint64_t>();
    t.offset = values_.get<int64_t>();
    visit_.tensor(i, t);
  }
  void sparse(size_t i) {
    const auto header = key_.get<SparseHeader>();
    key_.bytes(size_t{header.dim} * 8);
    visit_.sparse();
    const int parts = static_cast<at::Layout>(header.layout) == at::kSparse ? 2 : 3;
    for (int part = 0; part < parts; part++) {
      TORCH_CHECK(key_.get<Tag>() == Tag::tensor, "a part of a sparse tensor that is no tensor");
      tensor(i);
    }
  }

  Reader key_, values_;
  Visitor& visit_;
};

}  // namespace singularity
