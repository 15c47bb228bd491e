#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

namespace singularity {
namespace {
constexpr size_t kStageBytes = 1 << 20;   // small pieces are collected up to this
constexpr size_t kDirectBytes = 1 << 16;  // longer pieces are written from where they are
constexpr uint64_t kCutBytes = 4 << 20;          // of one system call
constexpr uint64_t kBytesPerThread = 16 << 20;   // less is not worth another thread
constexpr size_t kMaxThreads = 8;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14; before, it fails and changes nothing
#endif
}  // namespace

FileError::FileError(int error, std::string what_failed, std::string where)
    : number(error), path(std::move(where)), text(what_failed + " " + path + ": " + strerror(error)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}
void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

NewFile::NewFile(const std::string& path, uint64_t expected, bool reuse)
    : path_(path), temporary_(temporary_of(path)), stage_(new char[kStageBytes]) {
  reused_ = reuse && take_over(expected);
  if (!reused_) create(expected);
}
// An own file of this name and of about the length of the new one: what is in it does not matter.
bool NewFile::take_over(uint64_t expected) {
  fd_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info;
  if (fd_.get() < 0 || ::fstat(fd_.get(), &info) || !S_ISREG(info.st_mode) || info.st_nlink != 1 ||
      info.st_uid != ::geteuid())
    return false;
  const auto size = static_cast<uint64_t>(info.st_size), held = static_cast<uint64_t>(info.st_blocks) * 512;
  if (held < expected / 2 || size > 2 * std::max<uint64_t>(expected, kStageBytes)) return false;
  return (size >= expected && held >= expected) || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(expected)) == 0;
}
void NewFile::create(uint64_t expected) {
  ::unlink(temporary_.c_str());  // of a proxy that was killed while it wrote
  fd_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd_.get() < 0) throw FileError(errno, "cannot create", temporary_);
  if (expected) {
    int failed;
    do failed = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(expected)) ? errno : 0;
    while (failed == EINTR);
    if (failed && failed != EOPNOTSUPP) {
      ::unlink(temporary_.c_str());
      throw FileError(failed, "cannot reserve " + std::to_string(expected) + " bytes in", temporary_);
    }
  }
}
NewFile::~NewFile() {
  if (!kept_) ::unlink(temporary_.c_str());
}
void NewFile::put(const char* data, size_t bytes) {
  while (bytes) {
    const ssize_t n = ::write(fd_.get(), data, std::min<size_t>(bytes, 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw FileError(n < 0 ? errno : ENOSPC, "cannot write", temporary_);
    data += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}
void NewFile::flush() {
  const size_t n = staged_;
  staged_ = 0;
  put(stage_.get(), n);
}
void NewFile::write(const void* data, size_t bytes) {
  if (bytes == 0) return;
  if (staged_ + bytes > kStageBytes || bytes >= kDirectBytes) flush();
  if (bytes >= kDirectBytes) return put(static_cast<const char*>(data), bytes);
  std::memcpy(stage_.get() + staged_, data, bytes);
  staged_ += bytes;
}
void NewFile::pad_to(uint64_t position) {
  static const char zeros[4096] = {0};
  while (this->position() < position) write(zeros, std::min<uint64_t>(sizeof(zeros), position - this->position()));
}
int NewFile::flushed(uint64_t length) {
  flush();
  if ((length > written_ || reused_) && ::ftruncate(fd_.get(), static_cast<off_t>(length)))
    throw FileError(errno, "cannot lengthen", temporary_);
  return fd_.get();
}
void NewFile::finish(bool durable) {
  flush();
  if (durable && ::fsync(fd_.get())) throw FileError(errno, "cannot flush", temporary_);
}
bool NewFile::exchange(uint64_t spare) {
  struct stat old, mine;
  if (!spare || ::lstat(path_.c_str(), &old) || !S_ISREG(old.st_mode) || ::fstat(fd_.get(), &mine)) return false;
  // One that `take_over` would refuse later only takes room.
  const uint64_t useful = 2 * std::max(static_cast<uint64_t>(mine.st_size), uint64_t{kStageBytes});
  const auto held = std::max(static_cast<uint64_t>(old.st_size), static_cast<uint64_t>(old.st_blocks) * 512);
  return held <= std::min(spare, useful) &&
         ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
}
void NewFile::commit(bool durable, uint64_t spare) {
  if (!exchange(spare) && ::rename(temporary_.c_str(), path_.c_str())) throw FileError(errno, "cannot rename to", path_);
  kept_ = true;
  if (!durable) return;
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, std::max<size_t>(slash, 1));
  Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get())) throw FileError(errno, "cannot flush", folder);
}

void read_exactly(int fd, const std::string& path, void* to, size_t bytes, uint64_t offset) {
  char* p = static_cast<char*>(to);
  while (bytes) {
    const ssize_t n = ::pread(fd, p, std::min<size_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw FileError(errno, "cannot read", path);
    if (n == 0) throw StateError(path + " ends too early, so the device state in it is not complete");
    p += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void write_exactly(int fd, const std::string& path, const char* from, size_t bytes, uint64_t offset) {
  while (bytes) {
    const ssize_t n = ::pwrite(fd, from, std::min<size_t>(bytes, 1 << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw FileError(n < 0 ? errno : ENOSPC, "cannot write", path);
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
}

void transfer(int fd, const std::string& path, const std::vector<Piece>& pieces, bool writing) {
  std::vector<Piece> cut;
  uint64_t total = 0;
  for (const Piece& piece : pieces) {
    total += piece.bytes;
    for (uint64_t at = 0; at < piece.bytes; at += kCutBytes)
      cut.push_back({piece.at + at, piece.offset + at, std::min(kCutBytes, piece.bytes - at)});
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (size_t i; (i = next.fetch_add(1)) < cut.size();) {
        const Piece& piece = cut[i];
        if (writing) {
          write_exactly(fd, path, piece.at, piece.bytes, piece.offset);
        } else {
          // Memory that was just allocated: one call instead of a fault for every page.
          const auto first = (reinterpret_cast<uintptr_t>(piece.at) + 4095) & ~uintptr_t{4095};
          const auto last = (reinterpret_cast<uintptr_t>(piece.at) + piece.bytes) & ~uintptr_t{4095};
          if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE);
          read_exactly(fd, path, piece.at, piece.bytes, piece.offset);
        }
      }
    } catch (...) {
      next.store(cut.size());
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  const size_t count = std::min<size_t>({std::max(std::thread::hardware_concurrency(), 1u), kMaxThreads, total / kBytesPerThread + 1});
  std::vector<std::thread> others;
  for (size_t i = 1; i < count; i++) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace singularity
