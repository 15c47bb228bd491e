#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace singularity {
namespace {
constexpr size_t kStageBytes = 1 << 20;   // small pieces are collected up to this
constexpr size_t kDirectBytes = 1 << 16;  // longer pieces are written from where they are
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

NewFile::NewFile(const std::string& path, uint64_t expected)
    : path_(path), temporary_(path + ".tmp"), stage_(new char[kStageBytes]) {
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
void NewFile::finish(bool durable) {
  flush();
  if (durable && ::fsync(fd_.get())) throw FileError(errno, "cannot flush", temporary_);
}
void NewFile::commit(bool durable) {
  if (::rename(temporary_.c_str(), path_.c_str())) throw FileError(errno, "cannot rename to", path_);
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

}  // namespace singularity
