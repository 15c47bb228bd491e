#include "journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "wire/bulk.h"

namespace singularity {
namespace {
constexpr uint64_t kFirstJournalBytes = 256 << 10;
constexpr uint64_t kLargestJournalStep = 64 << 20;
constexpr size_t kMaxText = 4096;  // of a failure
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
}  // namespace

void Journal::open(const std::string& path, uint64_t base_seq) {
  close();
  path_ = path;
  fd_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd_.get() < 0) throw FileError(errno, "cannot open the journal", path);
  struct stat info;
  if (::fstat(fd_.get(), &info)) throw FileError(errno, "cannot open the journal", path);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  // A proxy that was killed before it wrote the magic has not executed anything either.
  map(std::max(bytes & ~uint64_t{4095}, kFirstJournalBytes));
  if (header()->magic == 0) {
    header()->version = kJournalVersion;
    header()->base_seq = base_seq;
    end_ = kJournalHeaderBytes;
    header()->end.store(end_);
    header()->magic = kJournalMagic;
    return;
  }
  end_ = header()->end.load();
  if (header()->magic != kJournalMagic || header()->version != kJournalVersion || end_ < kJournalHeaderBytes ||
      end_ > mapped_ || end_ % 8)
    throw StateError(path + " is not a journal of version 1");
}

void Journal::close() {
  guard_ = Guard();
  if (base_) ::munmap(base_, mapped_);
  base_ = nullptr;
  mapped_ = 0;
  end_ = kJournalHeaderBytes;
  fd_.close();
}

void Journal::remove() {
  close();
  if (!path_.empty()) ::unlink(path_.c_str());
}

void Journal::map(uint64_t bytes) {
  // Reserved for real: storing into a hole of a full file system would end the process by SIGBUS.
  int failed;
  do failed = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) ? errno : 0;
  while (failed == EINTR);
  if (failed) throw FileError(failed, "cannot reserve room for the journal", path_);
  void* p = base_ ? ::mremap(base_, mapped_, bytes, MREMAP_MAYMOVE)
                  : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (p == MAP_FAILED) throw FileError(errno, "cannot map the journal", path_);
  base_ = static_cast<char*>(p);
  mapped_ = bytes;
  guard_ = Guard(base_, mapped_);
}

char* Journal::room(size_t bytes) {
  const uint64_t end = end_;
  if (__builtin_expect(guard_.hit(), 0)) throw FileError(EIO, "someone shortened the journal", path_);
  if (__builtin_expect(end + bytes > mapped_, 0)) {
    uint64_t wanted = mapped_ + std::min(mapped_, kLargestJournalStep);
    if (mapped_ < planned_) wanted = std::min(wanted, planned_);
    while (end + bytes > wanted) wanted += kLargestJournalStep;
    const uint64_t before = mapped_;
    map(wanted);
    // One call instead of a fault for every page; a kernel that does not know it changes nothing.
    ::madvise(base_ + before, wanted - before, MADV_POPULATE_WRITE);
  }
  return base_ + end;
}

void Journal::plan(uint64_t bytes) {
  planned_ = (bytes + kJournalHeaderBytes + 2 * kMaxRecordBytes + 4095) & ~uint64_t{4095};
}

void Journal::publish(size_t bytes) {
  end_ += bytes;
  header()->end.store(end_, std::memory_order_release);
}

void Journal::append(const RecordHeader& record, const char* body) {
  char* at = room(record.length);
  std::memcpy(at, &record, sizeof(record));
  copy_past_caches(at + sizeof(record), body, record.length - sizeof(record));
  publish(record.length);
}

char* Journal::open_write(RecordHeader record, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kHead = sizeof(record) + 16;  // of the entry, before the bytes
  uint64_t filler = -(end_ + kHead) % kLine;       // so that they begin at a multiple of a line
  if (filler && filler < sizeof(record)) filler += kLine;
  record.length = static_cast<uint32_t>(padded(kHead + bytes));
  char* at = room(filler + record.length);
  if (filler) {
    std::memset(at, 0, filler);
    const RecordHeader empty{static_cast<uint32_t>(filler), kFiller, 0, record.seq - 1, 0, 0, 0};
    std::memcpy(at, &empty, sizeof(empty));
    at += filler;
  }
  std::memcpy(at, &record, sizeof(record));
  std::memcpy(at + sizeof(record), &offset, 8);
  std::memcpy(at + sizeof(record) + 8, &bytes, 8);
  std::memset(at + kHead + bytes, 0, record.length - kHead - bytes);
  opened_ = filler + record.length;
  return at + kHead;
}

void Journal::close_write() {
  publish(opened_);
  opened_ = 0;
}

void Journal::append_stub(RecordHeader record) {
  record.length = sizeof(record);
  std::memcpy(room(sizeof(record)), &record, sizeof(record));
  publish(sizeof(record));
}

void Journal::append_text(uint16_t kind, uint64_t seq, const void* head, size_t head_bytes, const std::string& text) {
  const auto text_bytes = static_cast<uint32_t>(std::min<size_t>(text.size(), kMaxText));
  RecordHeader record{};
  record.length = static_cast<uint32_t>(padded(sizeof(record) + head_bytes + sizeof(text_bytes) + text_bytes));
  record.kind = kind;
  record.seq = seq;
  char* at = room(record.length);
  std::memset(at, 0, record.length);
  std::memcpy(at, &record, sizeof(record));
  at += sizeof(record);
  std::memcpy(at, head, head_bytes);
  std::memcpy(at + head_bytes, &text_bytes, sizeof(text_bytes));
  std::memcpy(at + head_bytes + sizeof(text_bytes), text.data(), text_bytes);
  publish(record.length);
}

void Journal::append_failed(uint64_t seq, uint32_t status, const std::string& text) {
  append_text(kFailedMark, seq, &status, sizeof(status), text);
}

void Journal::append_result_bytes(uint64_t seq, uint64_t ticket, uint64_t output, uint64_t offset, const char* from,
                                  uint64_t bytes) {
  RecordHeader record{};
  record.length = static_cast<uint32_t>(padded(sizeof(record) + 32 + bytes));
  record.kind = kResultBytes;
  record.seq = seq;
  char* at = room(record.length);
  const uint64_t words[] = {ticket, output, offset, bytes};
  std::memcpy(at, &record, sizeof(record));
  std::memcpy(at + sizeof(record), words, sizeof(words));
  copy_past_caches(at + sizeof(record) + sizeof(words), from, bytes);
  publish(record.length);
}

void Journal::append_result(uint64_t seq, uint64_t ticket, const std::string& failure) {
  append_text(kResult, seq, &ticket, sizeof(ticket), failure);
}

void Journal::retract(const RecordHeader& record) {
  end_ -= record.length;
  header()->end.store(end_, std::memory_order_release);
}

void Journal::restart(uint64_t base_seq) {
  end_ = kJournalHeaderBytes;
  header()->end.store(end_);
  header()->base_seq = base_seq;
  const uint64_t kept = std::max(planned_, kFirstJournalBytes);
  if (mapped_ <= kept + kept / 2) return;  // plans go up and down with the state
  guard_ = Guard();
  ::munmap(base_, mapped_);
  base_ = nullptr;
  mapped_ = 0;
  if (::ftruncate(fd_.get(), static_cast<off_t>(kept))) throw FileError(errno, "cannot shorten the journal", path_);
  map(kept);
}

const char* Journal::next(uint64_t& position, RecordHeader& record) const {
  if (position == 0) position = kJournalHeaderBytes;
  if (position >= end_) return nullptr;
  const char* at = base_ + position;
  const bool whole = end_ - position >= sizeof(record);
  if (whole) std::memcpy(&record, at, sizeof(record));
  if (!whole || record.length < sizeof(record) || record.length % 8 || record.length > end_ - position || guard_.hit())
    throw StateError(path_ + " is damaged behind byte " + std::to_string(position));
  position += record.length;
  return at + sizeof(record);
}

}  // namespace singularity
