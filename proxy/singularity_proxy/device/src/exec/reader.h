// Reads the body of one record; throws instead of leaving it.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>

namespace singularity {

class Reader {
 public:
  Reader(const char* at, const char* end) : at_(at), end_(end) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, bytes(sizeof(T)), sizeof(T));
    return value;
  }
  const char* bytes(size_t n) {
    TORCH_CHECK(n <= static_cast<size_t>(end_ - at_), "a record for the device proxy is shorter than it says");
    const char* p = at_;
    at_ += n;
    return p;
  }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  const char* at() const { return at_; }

 private:
  const char *at_, *end_;
};

}  // namespace singularity
