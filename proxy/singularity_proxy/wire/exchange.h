// The files through which the proxies of a node exchange what ranks bring to collectives.
//
//   group-<32 hex digits of the id>          GroupHeader, then RankWords for each rank
//   group-<32 hex digits of the id>-<rank>   the rank's arena: ArenaHeader, kSlots x Slot, kLetters x
//                                            Slot, MailWords for each receiver, then bytes
//
// Both lie beside the rings (one folder per session, 0600). Every word has one writer, the proxy that
// serves the rank (MailWords::received: the receiver's), and there are no locks: a proxy that is
// killed at any instant leaves words that are all true. A slot is complete when its `seq` is stored,
// which is done last; the place of its bytes is taken again only when nobody needs it any more.
//
// In a group of FoldOrder::fast a slot may hold the sum of what several ranks brought: all of one
// device, in the arena of the first of them. A rank's contribution is in one slot only, alone or in a
// sum, and stays there until all ranks have consumed it. So all ranks add the same numbers in the same
// order, also those that compute the result later, elsewhere.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace singularity {

constexpr uint64_t kGroupMagic = 0x50554f5247474e53ull;  // "SNGGROUP" in the file
constexpr uint64_t kArenaMagic = 0x414e4552414e4753ull;  // "SGNARENA" in the file
constexpr uint32_t kExchangeVersion = 2;
constexpr uint32_t kMaxRanks = 4096;
constexpr uint32_t kSlots = 1024;   // collectives of a rank that somebody has not consumed yet
constexpr uint32_t kLetters = 512;  // sent and not received yet

enum class RankState : uint32_t {
  absent = 0,  // has not joined yet
  joined = 1,  // served by the proxy `home`
  away = 2,    // joined, and served by no proxy now
  left = 3,    // of its own accord
  died = 4,    // its worker has ended
};

struct GroupHeader {
  uint64_t magic;
  uint32_t version, size;
  std::array<uint8_t, 16> id;
  alignas(64) std::atomic<uint32_t> bell;  // futex word: another number after each change that others may wait for
  // FoldOrder::fast: one proxy served all ranks when it added up collectives up to this number. What of them is
  // in no sum yet is added rank by rank for good, as there. Written by the proxy that serves all ranks.
  std::atomic<uint64_t> by_ranks;
};
constexpr size_t kGroupHeaderBytes = 4096;
static_assert(sizeof(GroupHeader) <= kGroupHeaderBytes);

struct alignas(64) RankWords {
  std::atomic<uint64_t> home;         // token of the proxy process that serves the rank; 0: none yet
  std::atomic<uint64_t> contributed;  // to all collectives up to this number
  std::atomic<uint64_t> consumed;     // the results of all collectives up to this number, for good
  std::atomic<uint32_t> state;        // RankState
  std::atomic<uint64_t> device;       // where it is or was served last: the same in the proxy that replaces one; 0: nowhere yet
};
static_assert(sizeof(RankWords) == 64);

struct ArenaHeader {
  uint64_t magic;
  uint32_t version, ranks;
};
constexpr size_t kArenaHeaderBytes = 64;
static_assert(sizeof(ArenaHeader) <= kArenaHeaderBytes);

struct Slot {
  std::atomic<uint64_t> seq;  // 0: free, or not complete
  uint64_t offset, bytes;     // of a packed contribution or sum (device/src/ranks/contribution.h), in the file
  uint32_t to, reserved;      // of a letter: the receiver
};
static_assert(sizeof(Slot) == 32);

struct MailWords {
  std::atomic<uint64_t> sent, received;  // all letters up to these numbers, to one receiver
};

constexpr size_t kSlotsAt = kArenaHeaderBytes, kLettersAt = kSlotsAt + kSlots * sizeof(Slot),
                 kMailAt = kLettersAt + kLetters * sizeof(Slot);
constexpr size_t arena_bytes_at(uint32_t ranks) { return (kMailAt + ranks * sizeof(MailWords) + 4095) & ~size_t{4095}; }

inline std::string hex_of(const std::array<uint8_t, 16>& id) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : id) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace singularity
