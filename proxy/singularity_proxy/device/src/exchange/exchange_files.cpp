#include "exchange_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <random>

#include "wire/ring.h"

namespace singularity {
namespace {

constexpr uint64_t kFirstBytes = 16 << 10;  // that a rank cannot take part fits also into a full file system
constexpr uint64_t kStep = 1 << 20;
constexpr uint64_t kLargestStep = 64 << 20;
constexpr uint64_t kPlaceAlignment = 64;

uint64_t length_of(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info)) throw FileError(errno, "cannot look at", path);
  return static_cast<uint64_t>(info.st_size);
}

// Reserved for real: storing into a hole of a full file system would end the process by SIGBUS.
void reserve(int fd, uint64_t bytes, const std::string& path) {
  int failed;
  do failed = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) ? errno : 0;
  while (failed == EINTR);
  if (failed) throw FileError(failed, "cannot reserve room for what ranks exchange", path);
}

}  // namespace

SharedFile::Mapping::Mapping(int fd, uint64_t size, const std::string& path) : bytes(size) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw FileError(errno, "cannot map", path);
  base = static_cast<char*>(p);
  guard = Guard(base, bytes);
}
SharedFile::Mapping::~Mapping() {
  guard = Guard();
  ::munmap(base, bytes);
}

SharedFile::SharedFile(std::string path, uint64_t bytes, const std::function<void(char*)>* first) : path_(std::move(path)) {
  for (;;) {
    fd_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (fd_.get() >= 0) {
      mapping_ = std::make_shared<Mapping>(fd_.get(), std::max<uint64_t>(length_of(fd_.get(), path_), 1), path_);
      return;
    }
    if (errno != ENOENT || !first) throw FileError(errno, "cannot open", path_);
    // Made beside its place and then linked to it: nobody sees a file that is not filled yet, and of two
    // that make it one is taken.
    const std::string beside = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(std::random_device()());
    struct Unlink {
      const std::string& path;
      ~Unlink() { ::unlink(path.c_str()); }
    } unlink{beside};
    Descriptor fd(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd.get() < 0) throw FileError(errno, "cannot make", path_);
    reserve(fd.get(), bytes, path_);
    (*first)(Mapping(fd.get(), bytes, path_).base);
    if (::link(beside.c_str(), path_.c_str()) && errno != EEXIST) throw FileError(errno, "cannot make", path_);
  }
}

void SharedFile::grow(uint64_t bytes) {
  reserve(fd_.get(), bytes, path_);
  mapping_ = std::make_shared<Mapping>(fd_.get(), bytes, path_);
}
void SharedFile::look_again() {
  const uint64_t now = length_of(fd_.get(), path_);
  if (now > mapping_->bytes) mapping_ = std::make_shared<Mapping>(fd_.get(), now, path_);
}

// ---- the group

namespace {
const std::function<void(char*)> first_group(const GroupId& id, uint32_t ranks) {
  return [id, ranks](char* base) {
    auto* header = reinterpret_cast<GroupHeader*>(base);
    header->magic = kGroupMagic;
    header->version = kExchangeVersion;
    header->size = ranks;
    header->id = id;
  };
}
}  // namespace

GroupFile::GroupFile(const std::string& folder, const GroupId& id, uint32_t ranks)
    : ranks_(ranks), file_([&] {
        const auto first = first_group(id, ranks);
        return SharedFile(folder + "/group-" + hex_of(id), kGroupHeaderBytes + ranks * sizeof(RankWords), &first);
      }()) {
  const auto* header = reinterpret_cast<const GroupHeader*>(file_.base());
  if (file_.bytes() < kGroupHeaderBytes || header->magic != kGroupMagic || header->version != kExchangeVersion ||
      header->id != id)
    throw StateError(file_.path() + " is not the file of this process group");
  if (header->size != ranks || file_.bytes() < kGroupHeaderBytes + ranks * sizeof(RankWords))
    throw StateError("ranks of one process group say that it has " + std::to_string(header->size) + " and " +
                     std::to_string(ranks) + " ranks");
}

RankWords& GroupFile::rank(uint32_t r) const {
  return reinterpret_cast<RankWords*>(file_.base() + kGroupHeaderBytes)[r];
}

void GroupFile::ring() const {
  bell().fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell(), INT_MAX);
}

void GroupFile::remove() const {
  ::unlink(file_.path().c_str());
  for (uint32_t r = 0; r < ranks_; r++) ::unlink(arena_path(r).c_str());
}

// ---- an arena

Arena::Arena(const std::string& path, uint32_t ranks, bool make)
    : ranks_(ranks), file_([&] {
        const std::function<void(char*)> first = [ranks](char* base) {
          auto* header = reinterpret_cast<ArenaHeader*>(base);
          header->magic = kArenaMagic;
          header->version = kExchangeVersion;
          header->ranks = ranks;
        };
        return SharedFile(path, arena_bytes_at(ranks) + kFirstBytes, make ? &first : nullptr);
      }()) {
  const auto* header = reinterpret_cast<const ArenaHeader*>(file_.base());
  if (file_.bytes() < arena_bytes_at(ranks) || header->magic != kArenaMagic || header->version != kExchangeVersion ||
      header->ranks != ranks)
    throw StateError(path + " does not hold what a rank brought to collectives");
}

// The first gap that is long enough. What is in the slots decides, so a new writer knows what the last one did.
uint64_t Arena::place(uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  const auto look = [&](const Slot& s) {
    if (s.seq.load(std::memory_order_relaxed)) taken.emplace_back(s.offset, s.bytes);
  };
  for (uint64_t i = 0; i < kSlots; i++) look(slot(i));
  for (uint32_t i = 0; i < kLetters; i++) look(letters()[i]);
  std::sort(taken.begin(), taken.end());
  uint64_t at = arena_bytes_at(ranks_);
  for (const auto& [offset, length] : taken) {
    if (offset >= at && offset - at >= bytes) break;
    at = std::max(at, (offset + length + kPlaceAlignment - 1) & ~(kPlaceAlignment - 1));
  }
  return at;
}

char* Arena::open(uint64_t seq, uint32_t to, uint64_t bytes) {
  Slot* free = nullptr;
  if (to == kMaxRanks) {
    if (!slot(seq).seq.load(std::memory_order_relaxed)) free = &slot(seq);
  } else {
    for (uint32_t i = 0; i < kLetters && !free; i++)
      if (!letters()[i].seq.load(std::memory_order_relaxed)) free = &letters()[i];
  }
  if (!free) return nullptr;
  const uint64_t at = place(bytes);
  if (at + bytes > file_.bytes()) {
    const uint64_t step = std::min(std::max(file_.bytes(), kStep), kLargestStep);
    const size_t letter = to == kMaxRanks ? 0 : static_cast<size_t>(free - letters());
    const uint64_t needed = (at + bytes + 4095) & ~uint64_t{4095};
    try {
      file_.grow(std::max(file_.bytes() + step, needed));
    } catch (const FileError&) {  // as much as there is room for
      file_.grow(needed);
    }
    free = to == kMaxRanks ? &slot(seq) : &letters()[letter];
  }
  free->offset = at;
  free->bytes = bytes;
  free->to = to;
  opened_ = free;
  opened_seq_ = seq;
  return file_.base() + at;
}

void Arena::close() {
  opened_->seq.store(opened_seq_, std::memory_order_release);
  if (opened_->to != kMaxRanks) mail(opened_->to).sent.store(opened_seq_, std::memory_order_release);
  opened_ = nullptr;
}

void Arena::free_consumed(uint64_t consumed) {
  for (uint64_t i = 0; i < kSlots; i++) {
    Slot& s = slot(i);
    const uint64_t seq = s.seq.load(std::memory_order_relaxed);
    if (seq && seq <= consumed) s.seq.store(0, std::memory_order_release);
  }
  for (uint32_t i = 0; i < kLetters; i++) {
    Slot& s = letters()[i];
    const uint64_t seq = s.seq.load(std::memory_order_relaxed);
    if (seq && s.to < ranks_ && seq <= mail(s.to).received.load(std::memory_order_acquire))
      s.seq.store(0, std::memory_order_release);
  }
}

Slot* Arena::letter(uint64_t seq, uint32_t to) {
  for (uint32_t i = 0; i < kLetters; i++) {
    Slot& s = letters()[i];
    if (s.seq.load(std::memory_order_acquire) == seq && s.to == to) return &s;
  }
  return nullptr;
}

const char* Arena::find(uint64_t seq, uint64_t& bytes) { return has(seq) ? bytes_of(slot(seq), bytes) : nullptr; }
const char* Arena::find_letter(uint64_t seq, uint32_t to, uint64_t& bytes) {
  const Slot* found = letter(seq, to);
  return found ? bytes_of(*found, bytes) : nullptr;
}

const char* Arena::bytes_of(const Slot& slot, uint64_t& bytes) {
  const uint64_t offset = slot.offset;
  bytes = slot.bytes;
  const auto inside = [&] { return offset <= file_.bytes() && bytes <= file_.bytes() - offset; };
  if (!inside()) file_.look_again();
  if (!inside()) throw StateError(file_.path() + " is shorter than it says");
  return file_.base() + offset;
}

}  // namespace singularity
