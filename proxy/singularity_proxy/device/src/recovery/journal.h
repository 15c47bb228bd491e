// The journal: every record that changes a ring's state, in a file, before it is executed.
//
// File: a header page {u64 magic "SINGJRNL", u32 version, u32 0, u64 base_seq, u64 end}, then entries
// as they were in the ring (RecordHeader and body, a multiple of 8 bytes). Records that change nothing
// leave their header alone, so the sequence numbers have no gap. `end` is stored after an entry is
// complete: whatever kills the proxy, the file holds whole entries only. Memory that is mapped from a
// file survives the process, so nothing is ever flushed.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "wire/records.h"
#include "files.h"
#include "device/src/ring/guard.h"

namespace singularity {

constexpr uint64_t kJournalMagic = 0x4c4e524a474e4953ull;  // "SINGJRNL" in the file
constexpr uint32_t kJournalVersion = 1;
constexpr size_t kJournalHeaderBytes = 4096;
// Kind of an entry that was no record: the operator before it failed for want of memory, which
// another run of it might not do. Body: u32 Status, u32 text bytes, text.
constexpr uint16_t kFailedMark = 0xff01;
// Kind of an entry without meaning, numbered as the one before it: what follows begins at a better place.
constexpr uint16_t kFiller = 0xff02;
// The result of a collective came behind the record of that number. First its bytes, in pieces: u64 number of
// the collective's record, u64 output, u64 offset, u64 bytes, bytes. Then kResult: u64 number of the
// collective's record, u32 bytes of the sentence why it failed (0: it did not), sentence.
constexpr uint16_t kResultBytes = 0xff03;
constexpr uint16_t kResult = 0xff04;

struct JournalHeader {
  uint64_t magic;
  uint32_t version, reserved;
  uint64_t base_seq;          // entries follow the snapshot of this sequence number
  std::atomic<uint64_t> end;  // bytes from the start of the file
};

class Journal {
 public:
  Journal() = default;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal() { close(); }

  // Continues the journal at `path` or starts an empty one. Throws FileError, StateError.
  void open(const std::string& path, uint64_t base_seq);
  bool is_open() const { return base_ != nullptr; }
  void close();
  void remove();  // closes it and deletes the file

  // Adds a record whose body is at `body` (its header may have been changed). Throws FileError when
  // there is no room; the journal is then as before.
  void append(const RecordHeader& header, const char* body);
  void append_stub(RecordHeader header);  // a record that changed nothing
  // A Kind::write whose `bytes` bytes the caller copies to the returned place; `close_write` then makes
  // it an entry. Until then the journal is as before. Throws FileError.
  char* open_write(RecordHeader header, uint64_t offset, uint64_t bytes);
  void close_write();
  void append_result_bytes(uint64_t seq, uint64_t ticket, uint64_t output, uint64_t offset, const char* from, uint64_t bytes);
  void append_result(uint64_t seq, uint64_t ticket, const std::string& failure);
  // The last entry, of a record that was not executed after all, is gone.
  void retract(const RecordHeader& header);
  void append_failed(uint64_t seq, uint32_t status, const std::string& text);
  void restart(uint64_t base_seq);        // everything in it is in a snapshot now
  // How long it is expected to become between two restarts. So much of the file is kept by `restart`:
  // memory that is in use already takes new entries several times faster than fresh memory does.
  void plan(uint64_t bytes);

  uint64_t bytes() const { return base_ ? end_ - kJournalHeaderBytes : 0; }

  // Reading, from the start: the body of the next entry, nullptr at the end; throws StateError when damaged.
  // `record` is a copy of its header; the body lies in the file, whose owner may change it meanwhile.
  const char* next(uint64_t& position, RecordHeader& record) const;

 private:
  JournalHeader* header() const { return reinterpret_cast<JournalHeader*>(base_); }
  // An entry of ours: `head`, u32 text bytes, text.
  void append_text(uint16_t kind, uint64_t seq, const void* head, size_t head_bytes, const std::string& text);
  char* room(size_t bytes);
  void publish(size_t bytes);
  void map(uint64_t bytes);
  std::string path_;
  Descriptor fd_;
  char* base_ = nullptr;
  uint64_t mapped_ = 0, planned_ = 0;
  uint64_t end_ = kJournalHeaderBytes;  // the file's own word is written, and read once
  uint64_t opened_ = 0;                 // bytes of the entry that `open_write` began
  Guard guard_;
};

}  // namespace singularity
