// What ranks exchange through files, and turns of the device, under the sanitizers.
// Usage: exchange_stress FOLDER SEED.
//
//   * processes, one per rank, that contribute, check what the others brought, consume it, and are killed
//     at any instant; the next one goes on from the words in the files
//   * threads that do the same with mappings of their own, and take turns to count, without a lock
//   * threads in two folders with a bridge between them that loses its connection, and is replaced
//
// Prints "ok <kills> <checked> <turns> <bridges>" or what was wrong.
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "device/src/exchange/exchange_files.h"
#include "device/src/exchange/mirror.h"
#include "device/src/ring/slicer.h"
#include "wire/ring.h"

using namespace singularity;

namespace {

constexpr uint32_t kRanks = 3;
constexpr uint64_t kCollectives = 250, kThreadCollectives = 120, kLargest = 40000;
constexpr int kTurns = 2000;

[[noreturn]] void fail(const char* what, uint64_t where) {
  std::printf("%s at %llu\n", what, static_cast<unsigned long long>(where));
  std::fflush(stdout);
  std::_Exit(1);
}

uint64_t length(uint32_t rank, uint64_t seq) { return 1 + (seq * 7919 + rank * 104729) % kLargest; }
char byte(uint32_t rank, uint64_t seq, uint64_t at) { return static_cast<char>(rank * 31 + seq * 17 + at * 13 + (at >> 9)); }

GroupId id_of(uint8_t number) {
  GroupId id{};
  id[0] = number;
  return id;
}

// One rank's work, as its proxy would do it. What is in the files says where it begins.
uint64_t work(const std::string& folder, uint8_t group, uint32_t rank, uint64_t collectives, uint64_t seed) {
  GroupFile file(folder, id_of(group), kRanks);
  Arena mine(file.arena_path(rank), kRanks, true);
  std::vector<std::unique_ptr<Arena>> others(kRanks);
  std::mt19937_64 random(seed);
  RankWords& words = file.rank(rank);
  words.state.store(static_cast<uint32_t>(RankState::joined));
  const auto least = [&] {
    uint64_t n = UINT64_MAX;
    for (uint32_t r = 0; r < kRanks; r++) n = std::min(n, file.rank(r).consumed.load());
    return n;
  };
  uint64_t checked = 0;
  while (words.consumed.load() < collectives) {
    // A few are under way at once.
    for (uint64_t seq = words.contributed.load() + 1; seq <= collectives && seq <= words.consumed.load() + 1 + random() % 5; seq++) {
      mine.free_consumed(least());
      if (!mine.has(seq)) {
        char* to = mine.open(seq, kMaxRanks, length(rank, seq));
        if (!to) fail("no slot", seq);
        for (uint64_t i = 0; i < length(rank, seq); i++) to[i] = byte(rank, seq, i);
        mine.close();
      }
      words.contributed.store(seq);
      file.ring();
    }
    const uint64_t next = words.consumed.load() + 1;
    for (uint32_t r = 0; r < kRanks; r++) {
      uint64_t bytes = 0;
      const char* from = nullptr;
      for (int look = 0; !from; look++) {
        const uint32_t seen = file.bell().load();
        if (!others[r]) try {
            others[r] = std::make_unique<Arena>(file.arena_path(r), kRanks, false);
          } catch (const FileError&) {  // it wrote nothing yet
          }
        if (others[r]) from = others[r]->find(next, bytes);
        if (!from) futex_wait(file.bell(), seen, 5);
        if (look > 6000) fail("nothing came", next);
      }
      if (bytes != length(r, next)) fail("another length", next);
      for (uint64_t i = 0; i < bytes; i++)
        if (from[i] != byte(r, next, i)) fail("another byte", next);
      checked++;
    }
    words.consumed.store(next);
    file.ring();
  }
  return checked;
}

pid_t start(const std::string& folder, uint32_t rank, uint64_t seed) {
  const pid_t pid = fork();
  if (pid) return pid;
  try {
    work(folder, 1, rank, kCollectives, seed);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    std::_Exit(1);
  }
  std::_Exit(0);
}

int processes(const std::string& folder, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<pid_t> pids;
  for (uint32_t r = 0; r < kRanks; r++) pids.push_back(start(folder, r, random()));
  int kills = 0;
  for (uint32_t running = kRanks; running;) {
    usleep(static_cast<useconds_t>(500 + random() % 20000));
    const uint32_t r = static_cast<uint32_t>(random() % kRanks);
    if (!pids[r]) continue;
    kill(pids[r], SIGKILL);
    int status = 0;
    waitpid(pids[r], &status, 0);
    if (WIFEXITED(status)) {
      if (WEXITSTATUS(status)) std::_Exit(1);
      pids[r] = 0;
      running--;
      continue;
    }
    kills++;
    pids[r] = start(folder, r, random());
  }
  return kills;
}

// Rank 0 in one folder, the others in another one. -> how often a bridge was replaced
int bridged(const std::string& folder, uint64_t seed, std::atomic<uint64_t>& checked) {
  const std::string folders[] = {folder + "/part0", folder + "/part1"};
  for (const std::string& one : folders) mkdir(one.c_str(), 0700);
  std::unique_ptr<Mirror> ends[2];
  std::atomic<uint32_t> running{kRanks};
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kRanks; r++)
    threads.emplace_back([&, r] {
      checked += work(folders[r > 0], 3, r, kThreadCollectives, seed + r);
      running--;
    });
  std::mt19937_64 random(seed);
  int bridges = 0;
  while (running) {
    if (random() % 25 == 0 || !ends[0]) {  // both are killed
      bridges++;
      for (uint32_t p = 0; p < 2; p++) ends[p] = std::make_unique<Mirror>(folders[p], p);
      for (uint32_t p = 0; p < 2; p++) ends[p]->forget(1 - p);
    } else if (random() % 20 == 0) {  // the connection is lost, with what was on its way
      for (uint32_t p = 0; p < 2; p++) {
        ends[p]->changes(1 - p, 1 + random() % kLargest);
        ends[p]->away(1 - p);
      }
      for (uint32_t p = 0; p < 2; p++) ends[p]->forget(1 - p);
    }
    for (uint32_t p = 0; p < 2; p++) {
      pollfd bell{ends[p]->bell(), POLLIN, 0};
      poll(&bell, 1, 1);
      ends[p]->rung();
      ends[1 - p]->apply(p, ends[p]->changes(1 - p, 1 + random() % kLargest));
    }
  }
  for (std::thread& thread : threads) thread.join();
  return bridges;
}

}  // namespace

int main(int, char** arguments) {
  const std::string folder = arguments[1];
  const uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  const int kills = processes(folder, seed);

  std::atomic<uint64_t> checked{0};
  uint64_t turns = 0;  // only whoever has the turn touches it
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < kRanks; r++)
    threads.emplace_back([&, r] {
      checked += work(folder, 2, r, kThreadCollectives, seed + r);
      Slicer::Seat seat;
      const std::atomic<bool> never{false};
      std::atomic<bool> now{true};
      for (int i = 0; i < kTurns; i++) {
        if (i % 100 == 99) Slicer::one().take(seat, r, now);  // asked to stop: it may have got it or not
        if (!Slicer::one().take(seat, r, never)) fail("no turn", static_cast<uint64_t>(i));
        turns++;
        if (i % 3) Slicer::one().give(seat);
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (checked != kRanks * kRanks * kThreadCollectives) fail("not all was checked", checked);
  GroupFile(folder, id_of(1), kRanks).remove();
  const int bridges = bridged(folder, seed, checked);
  std::printf("ok %d %llu %llu %d\n", kills, static_cast<unsigned long long>(checked.load()), static_cast<unsigned long long>(turns),
              bridges);
  return 0;
}
