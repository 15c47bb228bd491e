// The identities of one ring's storages: what each record does to them. The rules, for the bytes of
//
//   results of an operator    H(operator, settings, key, values, offsets and identities of its tensors; which one)
//   an argument it writes     the same, for all of its storage: views and partial writes need no more
//   ... overwritten whole     as before, but its own identity before counts for nothing: see rules.h
//   random, undefined, sparse or compiled results; anything made from a storage without identity: unique
//   a new or grown storage    unique: nobody knows what is in it
//   a shrunk storage          H(its identity before, bytes)
//   a copy from the host      H(its identity before, offset, bytes of the copy); copies that follow one
//                             another from byte 0 to the end of the storage: H(all these bytes)
//   a result of a collective  H(group, number of the collective, which output, rank where each gets another one),
//                             with its identity before unless the outputs are all of the storage
//   after a snapshot, and when lineage begins: H(its bytes)
//
// Generators have none: each ring has its own, and what is drawn is unique.
#pragma once

#include <string>
#include <vector>

#include "device/src/memory/state.h"
#include "walk.h"
#include "wire/records.h"

namespace singularity {

// A storage that a record names. The pointer lives until the ring gets another storage.
struct Touch {
  uint64_t id = 0;
  StorageEntry* entry = nullptr;
  uint8_t effect = kReads;  // of rules.h; kOverwrites only for a tensor that is all of its storage
  bool again = false;       // named before by the same record
};

class Lineage {
 public:
  explicit Lineage(State& state);
  Lineage(const Lineage&) = delete;
  Lineage& operator=(const Lineage&) = delete;

  // While this is false nothing gets an identity; storages that are shared are still owned before
  // they are written.
  bool tracks() const { return tracks_; }
  void begin();  // all storages get the identity of their bytes
  void end();    // all lose it

  // ---- one operator: look, own what it writes, let it run, say what it did
  void look(const RecordHeader& record, const char* body, const Rules& rules);
  // Whether that was this record; only once: what it found may not be so any more.
  bool take_look(const RecordHeader& record) { return std::exchange(looked_, 0) == record.seq; }
  bool has_look(const RecordHeader& record) const { return looked_ == record.seq; }
  const std::vector<Touch>& touches() const { return touches_; }
  // Of the call: two with the same one do the same. None for one that is like no other.
  Identity call() const { return call_; }
  // Of the n-th storage that it made.
  Identity result(size_t n);
  void own_what_is_written();
  // Instead of it, for one of several rings that make this call together: `mine` of the holders of what
  // touch `i` writes are theirs.
  void own(size_t i, size_t mine);
  void all_is_owned() { owned_ = true; }
  // A ring that made the same call did this instead.
  void follow(size_t i, const StorageEntry& of_leader);
  // Before the ring gets another storage. `stack`: its results, for `out=`.
  void wrote(const std::vector<c10::IValue>& stack);
  void failed();  // what it would have written may be anything

  // ---- other records
  void made(StorageEntry& entry) { entry.identity = tracks_ ? unique() : Identity{}; }
  void resized(StorageEntry& entry, uint64_t before);
  // A collective of a group filled a part of it, or all.
  void filled(StorageEntry& entry, Identity by, bool whole);
  void copied(StorageEntry& entry, uint64_t offset, uint64_t bytes, const char* from);

  Identity unique();
  uint64_t copied_bytes() const { return copied_bytes_; }  // on write, so far

  // For Walk.
  void tensor(size_t argument, const NamedTensor& t);
  void words(const char* at, size_t bytes);
  void generator(uint64_t) { alone_ = true; }
  void sparse() { alone_ = true; }

 private:
  void written(const Touch& touch, size_t index);
  State& state_;
  bool tracks_ = false;
  Identity origin_;           // drawn once
  uint64_t given_ = 0;        // unique identities so far
  uint64_t looks_ = 0;
  uint64_t copied_bytes_ = 0;
  const Rules* rules_ = nullptr;
  Mixer mixer_;
  bool alone_ = false;        // nothing can be like this call
  Identity call_;
  uint64_t looked_ = 0;       // number of the record
  uint32_t op_ = 0;           // its operator
  bool owned_ = false;
  std::vector<Touch> touches_;
};

// Of a storage's bytes, read from the device.
Identity identity_of_storage(const c10::Storage& storage);

// Mean nanoseconds that lineage adds to a record; lineage_cost.cpp.
double lineage_ns(uint64_t records);

// Tests only: the identity of calls of this operator is wrong from here on, because their values do
// not count; "" for none.
void break_identity_of(const std::string& name);

}  // namespace singularity
