// Long copies that pass the caches by.
//
// A plain store first reads the line it is going to replace, and what it writes pushes something else
// out of the caches. Where the copy is longer than the caches, or nobody reads it soon (a journal), that
// is half of the work for nothing.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace singularity {

constexpr size_t kLongCopy = 64 << 10;     // shorter ones are not worth it
constexpr uint64_t kBeyondCaches = 8 << 20;  // memory of this size does not stay in a core's caches
constexpr size_t kLine = 64;

inline bool aligned_to(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

struct Line {
  explicit Line(const char* from) {
    for (int i = 0; i < 4; i++) part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
  }
  void store(char* to) const {
    for (int i = 0; i < 4; i++) _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, part[i]);
  }
  void stream(char* to) const {  // `to` is a multiple of 16
    for (int i = 0; i < 4; i++) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, part[i]);
  }
  __m128i part[4];
};

inline void copy_through_caches(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

// As memcpy; everything is stored in order with what the caller stores next.
inline void copy_past_caches(char* to, const char* from, size_t bytes) {
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
  if (bytes < kLongCopy) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) Line(from + at).stream(to + at);
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
}

// To `kept` past the caches and to `used`, in one pass: each byte of `from` is read once, so both get
// the same even when its owner changes it meanwhile. `far`: also `used` is not worth a place in a cache.
inline void copy_twice(char* kept, char* used, bool far, const char* from, size_t bytes) {
  const size_t lines = aligned_to(kept, 16) ? bytes / kLine * kLine : 0;
  size_t at = 0;
  if (far && aligned_to(used, 16)) {
    for (; at < lines; at += kLine) {
      const Line line(from + at);
      line.stream(kept + at);
      line.stream(used + at);
    }
  } else {
    for (; at < lines; at += kLine) {
      const Line line(from + at);
      line.stream(kept + at);
      line.store(used + at);
    }
  }
  std::memcpy(used + at, from + at, bytes - at);
  std::memcpy(kept + at, used + at, bytes - at);
  _mm_sfence();
}

}  // namespace singularity
