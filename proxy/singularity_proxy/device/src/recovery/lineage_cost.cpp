// What lineage costs a record, measured where nothing else runs: for `./dev bench elastic`.
#include <array>

#include "lineage.h"
#include "wire/ring.h"

namespace singularity {
namespace {

constexpr uint64_t kTensors = 64;
constexpr int64_t kSide = 32;

void put_tensor(Buffer& key, Buffer& values, uint64_t id, std::initializer_list<int64_t> sizes) {
  key.put(Tag::tensor);
  key.put<uint8_t>(static_cast<uint8_t>(c10::ScalarType::Float));
  key.put<uint8_t>(static_cast<uint8_t>(sizes.size()));
  key.put<uint8_t>(kContiguous);
  for (const int64_t size : sizes) key.put<int64_t>(size);
  values.put<uint64_t>(id);
  values.put<int64_t>(0);
}

std::string record_of(uint32_t op, const Buffer& key, const Buffer& values) {
  RecordHeader header{};
  header.kind = static_cast<uint16_t>(Kind::op);
  header.seq = 1;
  header.op = op;
  header.key_bytes = static_cast<uint32_t>(key.size());
  header.length = static_cast<uint32_t>(sizeof(header) + padded(key.size()) + values.size());
  std::string record(reinterpret_cast<const char*>(&header), sizeof(header));
  record.append(key.data(), key.size());
  record.resize(sizeof(header) + padded(key.size()));
  return record.append(values.data(), values.size());
}

}  // namespace

// Mean nanoseconds of what lineage adds to one record: a linear layer (three tensors, two scalars, a
// result) and an addition in place in turns, on 64 tensors.
double lineage_ns(uint64_t records) {
  State state{c10::Device(c10::kCPU)};
  state.define(0, "aten::addmm", "", 0);
  state.define(1, "aten::add_", "Tensor", 0);
  for (uint64_t id = 1; id <= kTensors; id++) state.storages[id] = state.make_storage(kSide * kSide * 4);
  Lineage lineage(state);
  lineage.begin();
  std::vector<std::string> made;
  for (uint64_t id = 1; id + 2 <= kTensors; id++) {
    Buffer key, values;
    key.put<uint16_t>(5);
    put_tensor(key, values, id, {kSide});
    put_tensor(key, values, id + 1, {kSide, kSide});
    put_tensor(key, values, id + 2, {kSide, kSide});
    for (int i = 0; i < 2; i++) {
      key.put(Tag::value_integer);
      values.put<int64_t>(1);
    }
    made.push_back(record_of(0, key, values));
    Buffer sum, terms;
    sum.put<uint16_t>(3);
    put_tensor(sum, terms, id, {kSide, kSide});
    put_tensor(sum, terms, id + 1, {kSide, kSide});
    sum.put(Tag::value_integer);
    terms.put<int64_t>(1);
    made.push_back(record_of(1, sum, terms));
  }
  const std::vector<c10::IValue> nothing;
  uint64_t folded = 0;
  const uint64_t start = monotonic_ns();
  for (uint64_t i = 0; i < records; i++) {
    const std::string& bytes = made[i % made.size()];
    RecordHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const Rules& rules = state.ops[header.op].rules;
    lineage.look(header, bytes.data() + sizeof(header), rules);
    lineage.own_what_is_written();
    lineage.wrote(nothing);
    if (header.op == 0) folded ^= lineage.result(0).low;
  }
  const uint64_t ns = monotonic_ns() - start;
  TORCH_CHECK(folded, "identities that are all the same");
  return static_cast<double>(ns) / static_cast<double>(records);
}

}  // namespace singularity
