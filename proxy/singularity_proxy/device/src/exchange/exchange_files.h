// The files of wire/exchange.h, mapped. What others wrote is never believed to lie inside of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/src/recovery/files.h"
#include "device/src/ring/guard.h"
#include "wire/exchange.h"
#include "wire/records.h"

namespace singularity {

// A file that is mapped whole and may become longer. Mappings that tensors still lie in stay until these
// have gone (`keep`).
class SharedFile {
 public:
  // Opens it, or (with `first`) makes it of `bytes` bytes and lets `first` fill it before others can see
  // it. Throws FileError.
  SharedFile(std::string path, uint64_t bytes, const std::function<void(char*)>* first);
  char* base() const { return mapping_->base; }
  uint64_t bytes() const { return mapping_->bytes; }
  bool damaged() const { return mapping_->guard.hit(); }
  void grow(uint64_t bytes);  // throws FileError; then it is as before
  void look_again();          // maps what another process added
  std::shared_ptr<void> keep() const { return mapping_; }
  const std::string& path() const { return path_; }

 private:
  struct Mapping {
    Mapping(int fd, uint64_t bytes, const std::string& path);
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();
    char* base;
    uint64_t bytes;
    Guard guard;
  };
  std::string path_;
  Descriptor fd_;
  std::shared_ptr<Mapping> mapping_;
};

// The words of a group that all its proxies share.
class GroupFile {
 public:
  // Throws FileError, StateError when the file is of something else.
  GroupFile(const std::string& folder, const GroupId& id, uint32_t ranks);
  uint32_t ranks() const { return ranks_; }
  RankWords& rank(uint32_t r) const;
  RankState state(uint32_t r) const { return static_cast<RankState>(rank(r).state.load(std::memory_order_acquire)); }
  bool gone(uint32_t r) const { return state(r) == RankState::left || state(r) == RankState::died; }
  std::atomic<uint32_t>& bell() const { return reinterpret_cast<GroupHeader*>(file_.base())->bell; }
  std::atomic<uint64_t>& by_ranks() const { return reinterpret_cast<GroupHeader*>(file_.base())->by_ranks; }
  void ring() const;
  bool damaged() const { return file_.damaged(); }
  void remove() const;  // with all arenas
  std::string arena_path(uint32_t rank) const { return file_.path() + "-" + std::to_string(rank); }

 private:
  uint32_t ranks_;
  SharedFile file_;
};

// What one rank brought and others have not consumed yet.
class Arena {
 public:
  // With `make` as the rank's own proxy, which writes; otherwise to read. Throws FileError (ENOENT: the
  // rank wrote nothing yet), StateError.
  Arena(const std::string& path, uint32_t ranks, bool make);

  // ---- the writer
  // A place for a packed contribution of `bytes` bytes; `close` then makes it visible. nullptr: no slot is
  // free. Throws FileError when the file cannot grow. Collectives: `to` is kMaxRanks.
  char* open(uint64_t seq, uint32_t to, uint64_t bytes);
  void close();
  // Places whose collectives all ranks consumed up to `consumed`, or whose letters were received, are free.
  void free_consumed(uint64_t consumed);

  // ---- everybody
  // The bytes of the contribution; nullptr: it is not there. The memory lives as long as `keep`.
  const char* find(uint64_t seq, uint64_t& bytes);
  const char* find_letter(uint64_t seq, uint32_t to, uint64_t& bytes);
  bool has(uint64_t seq) { return slot(seq).seq.load(std::memory_order_acquire) == seq; }
  // What is in a place now: the number of a collective, or of a letter and its receiver; 0: nothing.
  uint64_t collective_in(uint64_t place) { return slot(place).seq.load(std::memory_order_acquire); }
  std::pair<uint64_t, uint32_t> letter_in(uint32_t place) {
    const uint64_t seq = letters()[place].seq.load(std::memory_order_acquire);
    return {seq, letters()[place].to};
  }
  bool has_letter(uint64_t seq, uint32_t to) { return letter(seq, to) != nullptr; }
  std::shared_ptr<void> keep() const { return file_.keep(); }
  MailWords& mail(uint32_t to) { return *(reinterpret_cast<MailWords*>(file_.base() + kMailAt) + to); }
  bool damaged() const { return file_.damaged(); }

 private:
  Slot& slot(uint64_t seq) { return reinterpret_cast<Slot*>(file_.base() + kSlotsAt)[seq % kSlots]; }
  Slot* letters() { return reinterpret_cast<Slot*>(file_.base() + kLettersAt); }
  Slot* letter(uint64_t seq, uint32_t to);
  const char* bytes_of(const Slot& slot, uint64_t& bytes);
  uint64_t place(uint64_t bytes);
  const uint32_t ranks_;
  SharedFile file_;
  Slot* opened_ = nullptr;
  uint64_t opened_seq_ = 0;
};

}  // namespace singularity
