// Files of the proxy: every failure becomes a FileError that keeps the system's error number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace singularity {

// Reading or writing a file failed (Python: OSError with this number and path).
struct FileError : std::exception {
  FileError(int number, std::string what_failed, std::string path);
  const char* what() const noexcept override { return text.c_str(); }
  int number;
  std::string path, text;
};

// The saved state is not what the ring needs; it cannot be rebuilt from these files.
struct StateError : std::exception {
  explicit StateError(std::string why) : text(std::move(why)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

// The request cannot be granted now; nothing was changed.
struct Refused : std::exception {
  explicit Refused(std::string why) : text(std::move(why)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close();

 private:
  int fd_;
};

// Writes `<path>.tmp` from its start to its end in large pieces. Without `commit` nothing stays.
class NewFile {
 public:
  // `expected` bytes are reserved at once, so that a full disk is noticed before anything is written.
  // `reuse`: a temporary file that is there already is written over, which spares fresh memory.
  NewFile(const std::string& path, uint64_t expected, bool reuse = false);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();
  void write(const void* data, size_t bytes);
  void pad_to(uint64_t position);
  uint64_t position() const { return written_ + staged_; }
  // What is written so far is in the file; `transfer` may write behind it, and `length` is its end.
  int flushed(uint64_t length);
  const std::string& temporary() const { return temporary_; }
  static std::string temporary_of(const std::string& path) { return path + ".tmp"; }
  void finish(bool durable);  // everything is in the temporary file now
  // ... and becomes `path`. What was there stays as the temporary, for `reuse`, if it has at most `spare` bytes.
  void commit(bool durable, uint64_t spare = 0);

 private:
  void create(uint64_t expected);
  bool take_over(uint64_t expected);
  bool exchange(uint64_t spare);
  void flush();
  void put(const char* data, size_t bytes);
  std::string path_, temporary_;
  Descriptor fd_;
  std::unique_ptr<char[]> stage_;
  size_t staged_ = 0;
  uint64_t written_ = 0;
  bool kept_ = false, reused_ = false;
};

// Bytes of a file and of memory that belong together.
struct Piece {
  char* at;
  uint64_t offset, bytes;
};

// Moves all pieces between memory and file, long ones in parallel. Throws FileError, StateError.
void transfer(int fd, const std::string& path, const std::vector<Piece>& pieces, bool writing);

// Reads exactly `bytes` at `offset`; throws StateError when the file is shorter.
void read_exactly(int fd, const std::string& path, void* to, size_t bytes, uint64_t offset);

}  // namespace singularity
