#include "lineage.h"

#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>

#include "device/src/memory/swap.h"

namespace singularity {
namespace {

// What an identity was made for, so that none of one kind is one of another.
enum Purpose : uint64_t { kUniqueId = 1, kResultOf, kWrittenBy, kShrunk, kCopy, kRun, kRunPart, kFilled, kBytes };
constexpr uint64_t kOverwritten = 0x5a5a5a5a5a5a5a5aull;  // in the place of an identity
constexpr uint64_t kStagedBytes = 1 << 20;

std::atomic<uint64_t> broken_high{0}, broken_low{0};  // the function that `break_identity_of` named

Identity drawn() {
  std::random_device device;
  Mixer mixer;
  for (int i = 0; i < 4; i++) mixer.add(static_cast<uint64_t>(device()) << 32 | device());
  return mixer.identity();
}

}  // namespace

Lineage::Lineage(State& state) : state_(state), origin_(drawn()) {}

Identity Lineage::unique() {
  Mixer mixer(origin_);
  mixer.add(kUniqueId);
  mixer.add(++given_);
  return mixer.identity();
}

void Lineage::begin() {
  for (auto& [id, entry] : state_.storages)
    if (!entry.pending) entry.identity = identity_of_storage(entry.storage);
  tracks_ = true;
}
void Lineage::end() {
  for (auto& [id, entry] : state_.storages) {
    entry.identity = entry.run = {};
    entry.run_bytes = 0;
  }
  tracks_ = false;
}

void Lineage::look(const RecordHeader& record, const char* body, const Rules& rules) {
  touches_.clear();
  rules_ = &rules;
  looks_++;
  looked_ = 0;
  op_ = record.op;
  owned_ = false;
  call_ = {};
  alone_ = rules.unique || !tracks_;
  mixer_ = Mixer(rules.function);
  if (tracks_) {
    mixer_.add(reinterpret_cast<uintptr_t>(state_.settings));  // equal settings have one address
    mixer_.add_bytes(body, record.key_bytes);
  }
  Walk<Lineage>(body, record.key_bytes, record.length - sizeof(record), *this).run();
  if (!alone_) call_ = mixer_.identity();
  looked_ = record.seq;
}

void Lineage::words(const char* at, size_t bytes) {
  if (!tracks_) return;
  if (__builtin_expect(broken_low.load(std::memory_order_relaxed) == rules_->function.low, 0) &&
      broken_high.load(std::memory_order_relaxed) == rules_->function.high)
    return;
  if (bytes <= 64) return mixer_.add_bytes(at, bytes);
  mixer_.add(identity_of_bytes(at, bytes));
}

void Lineage::tensor(size_t argument, const NamedTensor& t) {
  const auto found = state_.storages.find(t.id);
  if (__builtin_expect(found == state_.storages.end(), 0)) {  // an earlier operation failed to make it
    alone_ = true;
    return;
  }
  StorageEntry& entry = found->second;
  Touch touch{t.id, &entry, rules_->effect(argument), entry.look == looks_};
  // An operator that writes does something else where two of its tensors are one: which ones counts.
  if (!rules_->effects.empty()) {
    if (touch.again) {
      mixer_.add(entry.look_index);
    } else {
      entry.look = looks_;
      entry.look_index = static_cast<uint32_t>(touches_.size());
    }
  }
  if (touch.effect & kOverwrites &&
      (!(t.flags & kContiguous) || t.offset || t.bytes() != entry.storage.nbytes() || touch.again))
    touch.effect &= static_cast<uint8_t>(~kOverwrites);
  touches_.push_back(touch);
  if (!tracks_) return;
  mixer_.add(static_cast<uint64_t>(t.offset));
  if (touch.effect & kOverwrites) return mixer_.add(kOverwritten);
  if (!entry.identity.known()) alone_ = true;
  mixer_.add(entry.identity);
}

Identity Lineage::result(size_t n) {
  if (!call_.known()) return tracks_ ? unique() : Identity{};
  Mixer mixer(call_);
  mixer.add(kResultOf);
  mixer.add(n);
  return mixer.identity();
}

void Lineage::own_what_is_written() {
  if (rules_->effects.empty() || owned_) return;
  for (size_t i = 0; i < touches_.size(); i++)
    if (touches_[i].effect & kWrites) own(i, 1);
}
void Lineage::own(size_t i, size_t mine) {
  const Touch& touch = touches_[i];
  if (touch.entry->place.holders() <= mine) return;
  bool read = !(touch.effect & kOverwrites);
  for (size_t j = 0; j < touches_.size() && !read; j++) read = j != i && touches_[j].entry == touch.entry;
  copied_bytes_ += singularity::own(touch.id, *touch.entry, state_, read || touch.effect & kOutArgument);
}

void Lineage::follow(size_t i, const StorageEntry& of_leader) {
  StorageEntry& entry = *touches_[i].entry;
  entry.run_bytes = 0;
  entry.identity = of_leader.identity;
  entry.writer = of_leader.writer == kNoOperator ? kNoOperator : op_;
}

void Lineage::written(const Touch& touch, size_t index) {
  touch.entry->run_bytes = 0;
  touch.entry->writer = op_;
  if (!tracks_) return;
  if (!call_.known()) {
    touch.entry->identity = unique();
    return;
  }
  Mixer mixer(call_);
  mixer.add(kWrittenBy);
  mixer.add(index);
  touch.entry->identity = mixer.identity();
}

void Lineage::wrote(const std::vector<c10::IValue>& stack) {
  if (rules_->effects.empty()) return;
  for (size_t i = 0; i < touches_.size(); i++) {
    const Touch& touch = touches_[i];
    if (!(touch.effect & kWrites)) continue;
    written(touch, i);
    if ((touch.effect & (kOverwrites | kOutArgument)) != (kOverwrites | kOutArgument)) continue;
    // An `out=` that got another size may be a part of its storage only, and the rest is as it was.
    bool whole = false;
    for (const c10::IValue& value : stack)
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().has_storage() &&
          value.toTensor().storage().is_alias_of(touch.entry->storage))
        whole = value.toTensor().nbytes() == touch.entry->storage.nbytes();
    if (!whole && tracks_) touch.entry->identity = unique();
  }
}

void Lineage::failed() {
  if (!rules_ || rules_->effects.empty()) return;
  for (const Touch& touch : touches_) {
    if (!(touch.effect & kWrites)) continue;
    touch.entry->run_bytes = 0;
    if (tracks_) touch.entry->identity = unique();
  }
}

void Lineage::resized(StorageEntry& entry, uint64_t before) {
  entry.run_bytes = 0;
  if (!tracks_) return;
  if (entry.storage.nbytes() > before || !entry.identity.known()) {
    entry.identity = unique();
    return;
  }
  Mixer mixer(entry.identity);
  mixer.add(kShrunk);
  mixer.add(entry.storage.nbytes());
  entry.identity = mixer.identity();
}

void Lineage::filled(StorageEntry& entry, Identity by, bool whole) {
  entry.run_bytes = 0;
  entry.writer = kNoOperator;
  if (!tracks_) return;
  if (!whole && !entry.identity.known()) {
    entry.identity = unique();
    return;
  }
  Mixer mixer(whole ? Identity{} : entry.identity);
  mixer.add(kFilled);
  mixer.add(by);
  entry.identity = mixer.identity();
}

void Lineage::copied(StorageEntry& entry, uint64_t offset, uint64_t bytes, const char* from) {
  if (!tracks_) return;
  const Identity content = identity_of_bytes(from, bytes);
  if (offset == 0 || offset == entry.run_bytes) {
    Mixer run(offset ? entry.run : Identity{});
    run.add(kRunPart);
    run.add(content);
    entry.run = run.identity();
    entry.run_bytes = offset + bytes;
  } else {
    entry.run_bytes = 0;
  }
  if (entry.run_bytes && entry.run_bytes == entry.storage.nbytes()) {
    Mixer mixer(entry.run);
    mixer.add(kRun);
    entry.identity = mixer.identity();
    return;
  }
  if (!entry.identity.known()) {
    entry.identity = unique();
    return;
  }
  Mixer mixer(entry.identity);
  mixer.add(kCopy);
  mixer.add(offset);
  mixer.add(content);
  entry.identity = mixer.identity();
}

Identity identity_of_storage(const c10::Storage& storage) {
  Mixer mixer;
  mixer.add(kBytes);
  mixer.add(storage.nbytes());
  if (const char* from = storage.device().is_cpu() ? Swap::readable(storage) : nullptr) {
    mixer.add(identity_of_bytes(from, storage.nbytes()));
    return mixer.identity();
  }
  const std::unique_ptr<char[]> host(new char[kStagedBytes]);
  Mixer parts;
  for (uint64_t at = 0; at < storage.nbytes(); at += kStagedBytes) {
    const uint64_t n = std::min<uint64_t>(kStagedBytes, storage.nbytes() - at);
    copy_to_host(storage, at, n, host.get());
    parts.add(identity_of_bytes(host.get(), n));
  }
  mixer.add(parts.identity());
  return mixer.identity();
}

void break_identity_of(const std::string& name) {
  Mixer mixer;
  const auto dot = name.find('.');
  const std::string base = name.substr(0, dot), overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  mixer.add_bytes(base.data(), base.size());
  mixer.add_bytes(overload.data(), overload.size());
  const Identity broken = name.empty() ? Identity{} : mixer.identity();
  broken_high.store(broken.high);
  broken_low.store(broken.low);
}

}  // namespace singularity
