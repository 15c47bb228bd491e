// What is known of a storage's bytes without looking at them: 128 bits that follow from how they came
// to be. Two storages with one identity hold the same bytes; the rules are in rules.h and lineage.h.
// The hash is made for speed and for chance, not against an adversary: all ranks that are compared
// belong to one session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace singularity {

struct Identity {
  uint64_t high = 0, low = 0;  // both 0: none
  bool known() const { return high | low; }
  bool operator==(const Identity&) const = default;
};

struct IdentityHash {
  size_t operator()(const Identity& id) const { return id.low; }
};

// Takes words in and gives an identity. The two lanes see every word, under other constants.
class Mixer {
 public:
  constexpr Mixer() = default;
  constexpr explicit Mixer(Identity start) : a_(start.high ^ kA), b_(start.low ^ kB) {}
  constexpr void add(uint64_t word) {
    a_ = folded(a_ ^ word, kC) + word;
    b_ = folded(b_ + word, kD) ^ rotated(word);
  }
  constexpr void add(Identity id) {
    add(id.high);
    add(id.low);
  }
  // Bytes of a record, a few hundred; longer ones are for `identity_of_bytes`.
  void add_bytes(const char* at, size_t n) {
    uint64_t word;
    add(n);
    for (; n >= 8; at += 8, n -= 8) {
      std::memcpy(&word, at, 8);
      add(word);
    }
    if (n == 0) return;
    word = 0;
    std::memcpy(&word, at, n);
    add(word);
  }
  constexpr Identity identity() const {
    const uint64_t high = folded(a_ ^ kD, b_ ^ kA), low = folded(b_ + kC, rotated(a_) ^ kB) ^ a_;
    return {high, low | (high == 0)};  // never the one that says "none"
  }

  static constexpr uint64_t folded(uint64_t x, uint64_t y) {
    const unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

 private:
  static constexpr uint64_t rotated(uint64_t x) { return x << 29 | x >> 35; }
  // Odd, with about as many ones as zeros.
  static constexpr uint64_t kA = 0x9e3779b97f4a7c15ull, kB = 0xd1b54a32d192ed03ull, kC = 0xbf58476d1ce4e5b9ull,
                            kD = 0x94d049bb133111ebull;
  uint64_t a_ = kA, b_ = kB;
};

// Of any number of bytes, at the speed of memory.
Identity identity_of_bytes(const char* at, size_t n);

}  // namespace singularity
