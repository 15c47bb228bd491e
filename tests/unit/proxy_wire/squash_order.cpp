// The torch-free parts of squashing under the sanitizers: identities, whom to believe, and the order of
// things in lockstep. Prints "ok <checks>" or what was wrong.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/src/ranks/identity.h"
#include "device/src/ranks/lockstep.h"
#include "device/src/recovery/validation.h"

using namespace singularity;

namespace {

int checks = 0;
void check(bool well, const char* what, size_t where = 0) {
  checks++;
  if (well) return;
  std::printf("%s at %zu\n", what, where);
  std::fflush(stdout);
  std::_Exit(1);
}

// ---- identities

using Key = std::pair<uint64_t, uint64_t>;
Key key_of(Identity id) { return {id.high, id.low}; }

// Every bit counts, wherever it is, and so does the length.
void every_bit_counts() {
  std::mt19937_64 random(1);
  for (const size_t n : {1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 1000}) {
    std::vector<char> bytes(n);  // of exactly that length: reading on would be noticed
    for (char& c : bytes) c = static_cast<char>(random());
    std::set<Key> seen{key_of(identity_of_bytes(bytes.data(), n))};
    for (size_t bit = 0; bit < n * 8; bit++) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      check(seen.insert(key_of(identity_of_bytes(bytes.data(), n))).second, "a bit that does not count", bit);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
    check(!seen.insert(key_of(identity_of_bytes(bytes.data(), n))).second, "the same bytes, another identity", n);
  }
  std::set<Key> zeros;
  const std::vector<char> nothing(4096, 0);
  for (size_t n = 0; n <= nothing.size(); n++)
    check(zeros.insert(key_of(identity_of_bytes(nothing.data(), n))).second, "zeros of another length", n);
  // Words in another order, and one word twice.
  std::set<Key> orders;
  for (int a = 0; a < 8; a++)
    for (int b = 0; b < 8; b++) {
      uint64_t words[8] = {};
      words[a] += 1;
      words[b] += 1;
      if (a <= b)
        check(orders.insert(key_of(identity_of_bytes(reinterpret_cast<char*>(words), 64))).second, "words in another place");
    }
}

void mixing_is_ordered() {
  std::set<Key> seen;
  for (uint64_t a = 0; a < 200; a++)
    for (uint64_t b = 0; b < 200; b++) {
      Mixer mixer;
      mixer.add(a);
      mixer.add(b);
      check(mixer.identity().known(), "an identity that says none");
      check(seen.insert(key_of(mixer.identity())).second, "two mixes with one identity", a * 200 + b);
    }
}

// ---- validation

void first_compare_then_share() {
  Validation v(3);
  check(v.compares() && !v.merges() && !v.next_window(), "shares before it compared");
  v.compared(0, "");
  check(v.compares() && !v.next_window(), "believes a comparison of nothing");
  v.compared(5, "");
  check(v.merges() && !v.compares() && v.next_window(), "does not share after a clean comparison");
  check(v.next_window(), "second window");
  check(!v.next_window() && v.compares(), "the third is not checked");
  v.compared(7, "");
  check(v.merges() && v.next_window(), "does not go on after a clean check");
  check(v.comparisons() == 12, "comparisons are not counted");
  check(v.next_window() && !v.next_window(), "the sixth is not checked");
  v.compared(1, "storage 5 differs");
  check(v.state() == Validation::State::off && !v.compares() && !v.merges() && !v.next_window(), "goes on after a difference");
  v.compared(1, "");
  v.switch_off("later");
  check(v.state() == Validation::State::off && v.why_off() == "storage 5 differs", "forgets why it is off");
  Validation once(0);
  once.compared(1, "");
  for (int i = 0; i < 1000; i++) check(once.next_window(), "checks though it shall not", static_cast<size_t>(i));
}

// ---- lockstep

struct Call {
  char kind;  // 'c' call, 'a' alone, 'e' end, 'x' a call that fails, 'u' a call like no other
  uint64_t number = 0;
  bool asks = false;
};

struct Ring {
  std::deque<Call> queue;
  std::string log;
  Ready ready() {
    if (queue.empty()) return Ready::nothing;
    return queue.front().kind == 'a' ? Ready::alone : queue.front().kind == 'e' ? Ready::end : Ready::call;
  }
  Identity call() { return queue.front().kind == 'u' ? Identity{} : Identity{queue.front().number, 1}; }
  bool asks() { return queue.front().asks; }
  void take(const std::string& what) {
    log += what + std::to_string(queue.front().number) + " ";
    queue.pop_front();
  }
  void alone() { take("a"); }
  void own(const std::vector<Ring*>& rings) { log += "o" + std::to_string(rings.size()) + " "; }
  bool lead() {
    const bool well = queue.front().kind != 'x';
    take(well ? "l" : "x");
    return well;
  }
  void follow(Ring& leader, bool well) {
    check(&leader != this, "follows itself");
    take(well ? "f" : "y");
  }
};

Squashed run(std::vector<Ring>& rings) {
  std::vector<Ring*> all;
  for (Ring& ring : rings) all.push_back(&ring);
  return run_in_lockstep(all, 200'000);
}

void ways_part() {
  std::vector<Ring> rings(3);
  for (Ring& ring : rings) ring.queue = {{'c', 1}, {'a', 2}, {'c', 3}, {'c', 4}};
  rings[1].queue.insert(rings[1].queue.begin(), {'a', 9});
  rings[2].queue[2].asks = true;    // whose reply is everybody's
  rings[1].queue.back().number = 5; // another call
  const Squashed done = run(rings);
  check(done.executed == 2 && done.skipped == 4, "counts");
  check(rings[0].log == "o3 l1 a2 f3 ", "the first ring");
  check(rings[1].log == "a9 f1 a2 f3 ", "the second ring");
  check(rings[2].log == "f1 a2 o3 l3 ", "the third ring");
  check(rings[0].queue.size() == 1 && rings[1].queue.size() == 1, "something after the end");

  std::vector<Ring> failing(2);
  for (Ring& ring : failing) ring.queue = {{'x', 1}, {'c', 2}};
  check(run(failing).executed == 1 && failing[0].log == "o2 x1 " && failing[1].log == "y1 ", "a failure");

  for (const char end : {'e', 'u'}) {
    std::vector<Ring> ended(2);
    for (Ring& ring : ended) ring.queue = {{'c', 1}, {'c', 2}};
    ended[1].queue[1].kind = end;
    check(run(ended).executed == 1 && ended[0].queue.size() == 1, "goes on over an end");
  }
}

}  // namespace

int main() {
  every_bit_counts();
  mixing_is_ordered();
  first_compare_then_share();
  ways_part();
  std::printf("ok %d\n", checks);
}
