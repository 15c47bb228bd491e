#include "identity.h"

namespace singularity {
namespace {

// Of the eight words of a block: each is in one product of either half.
constexpr uint64_t kKeys[16] = {
    0xa0761d6478bd642full, 0xe7037ed1a0b428dbull, 0x8ebc6af09c88c6e3ull, 0x589965cc75374cc3ull,
    0x1d8e4e27c47d124full, 0xeb44accab455d165ull, 0x9e6c63d0873f2a49ull, 0xb3c3a1f5d52b8e17ull,
    0xc6a4a7935bd1e995ull, 0xff51afd7ed558ccdull, 0xc4ceb9fe1a85ec53ull, 0x87c37b91114253d5ull,
    0x4cf5ad432745937full, 0x52dce729da3ed7a1ull, 0x38495ab57c3e9b6dull, 0xd6e8feb86659fd93ull};
constexpr size_t kBlock = 64;

struct Lanes {
  uint64_t first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8};

  void take(const char* at) {
    uint64_t w[8];
    std::memcpy(w, at, kBlock);
    for (int i = 0; i < 4; i++) {
      first[i] = Mixer::folded(w[2 * i] ^ kKeys[2 * i] ^ first[i], w[2 * i + 1] ^ kKeys[2 * i + 1]) + first[i];
      second[i] =
          Mixer::folded(w[2 * i + 1] ^ kKeys[8 + 2 * i] ^ second[i], w[(2 * i + 2) % 8] ^ kKeys[9 + 2 * i]) + second[i];
    }
  }
};

}  // namespace

Identity identity_of_bytes(const char* at, size_t n) {
  Mixer mixer;
  mixer.add(n);
  Lanes lanes;
  for (; n >= kBlock; at += kBlock, n -= kBlock) lanes.take(at);
  for (const uint64_t lane : lanes.first) mixer.add(lane);
  for (const uint64_t lane : lanes.second) mixer.add(lane);
  mixer.add_bytes(at, n);
  return mixer.identity();
}

}  // namespace singularity
