#include "exchange.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "device/src/exec/errors.h"
#include "device/src/ranks/fold.h"
#include "device/src/ranks/identity.h"
#include "device/src/memory/state.h"
#include "device/src/memory/swap.h"

namespace singularity {
namespace {

// Names this process in the groups' files; another number in the next one.
uint64_t token() {
  static const uint64_t mine = [] {
    std::random_device random;
    return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
  }();
  return mine;
}

std::atomic<uint64_t> device_here{0};
std::atomic<uint64_t> published{0};

// Names the device that this process serves, in the groups' files.
uint64_t device() {
  const uint64_t named = device_here.load(std::memory_order_relaxed);
  return named ? named : token();
}

void count_published(const Contribution& contribution) {
  for (const at::Tensor& part : contribution.parts) published.fetch_add(part.nbytes(), std::memory_order_relaxed);
}

void make_own(Contribution& contribution) {
  for (at::Tensor& part : contribution.parts) part = part.clone();
  contribution.lent = contribution.borrowed = false;
}

c10::Device device_of(const Contribution& contribution) {
  return contribution.parts.empty() ? c10::Device(c10::kCPU) : contribution.parts[0].device();
}

}  // namespace

void name_device(const std::string& name) {
  Mixer mixer;
  mixer.add_bytes(name.data(), name.size());
  device_here.store(mixer.identity().low | 1);
}

uint64_t published_bytes() { return published.load(std::memory_order_relaxed); }

std::shared_ptr<Exchange> Exchange::of(const std::string& folder, const GroupInfo& info) {
  static auto& mutex = *new std::mutex();
  static auto& all = *new std::map<std::string, std::weak_ptr<Exchange>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Exchange>& known = all[folder + "/" + hex_of(info.id)];
  std::shared_ptr<Exchange> one = known.lock();
  if (!one) {
    std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
    one = std::make_shared<Exchange>(folder, info);
    all[folder + "/" + hex_of(info.id)] = one;
  }
  TORCH_CHECK(one->info_.size == info.size, "ranks of process group '", info.name, "' say that it has ",
              one->info_.size, " and ", info.size, " ranks");
  return one;
}

Exchange::Exchange(std::string folder, GroupInfo info)
    : folder_(std::move(folder)), info_(std::move(info)), file_(folder_, info_.id, info_.size), arenas_(info_.size) {}

void Exchange::check_files() const {
  if (file_.damaged()) throw StateError("a file through which ranks exchange data was shortened while it was in use");
}

// ---- ranks

void Exchange::arrive(uint32_t rank, uint64_t contributed, uint64_t consumed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  here_.insert(rank);
  RankWords& words = file_.rank(rank);
  words.contributed.store(std::max(words.contributed.load(), contributed));
  words.consumed.store(std::max(words.consumed.load(), consumed));
  words.home.store(token());
  words.device.store(device());
  words.state.store(static_cast<uint32_t>(RankState::joined), std::memory_order_release);
  file_.ring();
}

void Exchange::depart(uint32_t rank, RankState how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!here_.erase(rank)) return;
  if (how == RankState::away)  // its journal brings it again, wherever that is
    for (auto& [seq, one] : rounds_) one.waiting.erase(rank);
  RankWords& words = file_.rank(rank);
  words.home.store(0);
  words.state.store(static_cast<uint32_t>(how), std::memory_order_release);
  file_.ring();
  bool empty = true;
  for (uint32_t r = 0; r < info_.size; r++) empty &= file_.gone(r) || file_.state(r) == RankState::absent;
  if (empty) file_.remove();
}

void Exchange::set_aside(uint32_t rank, bool aside) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!here_.count(rank)) return;
  const RankState state = aside ? RankState::away : RankState::joined;
  file_.rank(rank).state.store(static_cast<uint32_t>(state), std::memory_order_release);
  file_.ring();
}

bool Exchange::all_here() const {
  for (uint32_t r = 0; r < info_.size; r++)
    if (file_.rank(r).home.load(std::memory_order_acquire) != token() || file_.state(r) != RankState::joined) return false;
  return true;
}

uint64_t Exchange::consumed_by_all() const {
  uint64_t least = UINT64_MAX;
  for (uint32_t r = 0; r < info_.size; r++)
    if (!file_.gone(r)) least = std::min(least, file_.rank(r).consumed.load(std::memory_order_acquire));
  return least;
}

// ---- files

Arena* Exchange::arena_of(uint32_t rank, bool make) {
  std::unique_ptr<Arena>& arena = arenas_[rank];
  if (!arena) try {
      arena = std::make_unique<Arena>(file_.arena_path(rank), info_.size, make);
    } catch (const FileError& error) {
      if (make || error.number != ENOENT) throw;
    }
  if (arena && arena->damaged()) throw StateError("a file through which ranks exchange data was shortened while it was in use");
  return arena.get();
}

// False: there is no slot.
bool Exchange::publish(uint32_t rank, uint64_t seq, const Contribution& contribution) {
  Arena& arena = *arena_of(rank, true);
  if (arena.has(seq)) return true;
  arena.free_consumed(consumed_by_all());
  char* place = arena.open(seq, kMaxRanks, packed_bytes(contribution));
  if (!place) return false;
  pack(contribution, place);
  arena.close();
  count_published(contribution);
  return true;
}

// What was kept in memory because all ranks were here, and one has moved since.
void Exchange::publish_late() {
  if (rounds_.empty() || all_here()) return;
  for (auto& [seq, one] : rounds_)
    for (auto rank = one.unpublished.begin(); rank != one.unpublished.end();) {
      const bool folded = *rank < one.folded_ranks;
      if (!folded && one.of[*rank]->given)
        for (const at::Tensor& part : one.of[*rank]->parts) Swap::one().unshelve(part.storage());
      if (folded || !here_.count(*rank) || !publish(*rank, seq, *one.of[*rank])) {
        ++rank;
        continue;
      }
      rank = one.unpublished.erase(rank);
      file_.ring();
    }
}

// ---- collectives

Exchange::Round& Exchange::round(uint64_t seq) {
  Round& one = rounds_[seq];
  if (one.of.empty()) one.of.resize(info_.size);
  return one;
}

bool Exchange::contribute(uint32_t rank, uint64_t seq, Contribution contribution, bool replaying) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_files();
  RankWords& words = file_.rank(rank);
  const uint64_t consumed = consumed_by_all();
  if (seq > consumed) {
    if (seq - consumed > kSlots && !replaying) return false;
    Round& one = round(seq);
    if (is_summed(contribution.signature)) {
      if (replaying)  // it may be in a file, alone or in a sum
        for (uint32_t r = 0; r <= rank; r++) fetch(one, r, seq);
      if (!one.of[rank]) bring(one, rank, seq, std::move(contribution));
    } else {
      const bool here = all_here();
      const bool repeated = arena_of(rank, false) && arena_of(rank, false)->has(seq);
      if (!here && !repeated && !publish(rank, seq, contribution) && !replaying) return false;
      if (!arena_of(rank, false) || !arena_of(rank, false)->has(seq)) one.unpublished.insert(rank);
      const c10::Device device = device_of(contribution);
      if (!one.of[rank]) one.of[rank] = std::move(contribution);
      if (here || one.unpublished.empty()) fold_what_is_there(one, seq, device);
      keep(one, rank);
    }
  }
  if (words.contributed.load(std::memory_order_relaxed) < seq) words.contributed.store(seq, std::memory_order_release);
  file_.ring();
  return true;
}

// FoldOrder::fast.
void Exchange::bring(Round& one, uint32_t rank, uint64_t seq, Contribution contribution) {
  if (!all_here()) arena_of(rank, true);  // what this may throw is this rank's failure, not its neighbours'
  one.waiting[rank] = std::move(contribution);
  try {
    add_up(one, seq);
    if (const auto mine = one.waiting.find(rank); mine != one.waiting.end()) {
      if (mine->second.lent) make_own(mine->second);
      if (mine->second.given)
        for (const at::Tensor& part : mine->second.parts) Swap::one().shelve(part.storage());
    }
  } catch (...) {
    one.waiting.erase(rank);
    if (one.unpublished.erase(rank)) one.of[rank].reset();
    throw;
  }
  if (one.of[rank]) keep(one, rank);
}

// What waits is added up if that can be done now. Which ranks come together follows from where ranks are, not
// from who is first.
void Exchange::add_up(Round& one, uint64_t seq) {
  if (one.waiting.empty()) return;
  const bool here = all_here();
  std::atomic<uint64_t>& by_ranks = file_.by_ranks();
  if (here && by_ranks.load(std::memory_order_relaxed) < seq) by_ranks.store(seq);  // before anybody sees a result
  if (seq <= by_ranks.load()) {
    const c10::Device on = device_of(one.waiting.begin()->second);
    for (auto& [rank, contribution] : one.waiting) {
      one.of[rank] = std::move(contribution);
      one.unpublished.insert(rank);
    }
    one.waiting.clear();
    publish_late();
    if (here || one.unpublished.empty()) fold_what_is_there(one, seq, on);
    return;
  }
  for (uint32_t r = 0; r < info_.size; r++) {
    if (one.waiting.count(r) || one.of[r] || file_.gone(r)) continue;
    if (file_.state(r) != RankState::joined || file_.rank(r).device.load() == device()) return;
  }
  const c10::Device on = device_of(one.waiting.begin()->second);
  if (publish_sum(one, seq)) fold_what_is_there(one, seq, on);
}

// False: there is no slot.
bool Exchange::publish_sum(Round& one, uint64_t seq) {
  const uint32_t first = one.waiting.begin()->first;
  Contribution sum;
  std::vector<double> factors;
  bool possible = true;
  for (const auto& [rank, contribution] : one.waiting) {
    if (rank == first) {
      sum.signature = contribution.signature;
      sum.failure = contribution.failure;
    } else {
      sum.with.push_back({rank, contribution.signature, contribution.failure});
    }
    factors.push_back(contribution.signature.factor);
    possible &= contribution.failure.empty() && can_be_added(sum.signature, contribution.signature);
  }
  if (possible) sum.parts = one.waiting.begin()->second.parts;  // for their sizes
  Arena& arena = *arena_of(first, true);
  arena.free_consumed(consumed_by_all());
  std::vector<at::Tensor> made;
  try {
    char* place = arena.open(seq, kMaxRanks, packed_bytes(sum));
    if (!place) return false;
    for (const auto& [rank, contribution] : one.waiting)
      if (contribution.given)
        for (const at::Tensor& part : contribution.parts) Swap::one().unshelve(part.storage());
    std::vector<at::Tensor> places = pack_head(sum, place);
    for (size_t i = 0; i < places.size(); i++) {
      std::vector<at::Tensor> parts;
      for (const auto& [rank, contribution] : one.waiting) parts.push_back(contribution.parts.at(i));
      at::Tensor total = parts[0].device().is_cpu() ? places[i] : at::empty_like(parts[0]);
      const bool alone = sum.with.empty();  // then it is a contribution like any
      fold_into(total, parts, alone ? Reduction::sum : sum.signature.reduction, factors);
      if (!total.is_same(places[i])) places[i].copy_(total);
      made.push_back(std::move(total));
    }
    for (const auto& [rank, contribution] : one.waiting)
      if (contribution.given && possible)
        for (const at::Tensor& part : contribution.parts) Swap::discard(part.storage());
  } catch (...) {  // no room in the file system, or these cannot be added: none of them takes part
    sum.failure = singularity::describe(std::current_exception()).text;
    for (Caller& other : sum.with) other.failure = sum.failure;
    sum.parts.clear();
    made.clear();
    char* place = arena.open(seq, kMaxRanks, packed_bytes(sum));
    if (!place) return false;
    pack(sum, place);
  }
  arena.close();
  count_published(sum);
  one.waiting.clear();
  fetch(one, first, seq);
  if (!made.empty() && !made[0].device().is_cpu()) {  // it is still on the device
    one.of[first]->parts = std::move(made);
    one.of[first]->borrowed = false;
  }
  file_.ring();
  return true;
}

// What is needed after this call, and is nowhere else.
void Exchange::keep(Round& one, uint32_t rank) {
  Contribution& mine = *one.of[rank];
  if (mine.given)
    for (const at::Tensor& part : mine.parts) Swap::one().shelve(part.storage());
  if (!mine.lent) return;
  if (!mine.parts.empty() && !one.unpublished.count(rank)) return one.of[rank].reset();  // it is in the arena
  try {
    make_own(mine);
  } catch (...) {
    one.of[rank].reset();
    one.unpublished.erase(rank);
    throw;
  }
}

// Whether the contribution of `rank` can be looked at. One that is in a sum is found with the first rank of that, so
// lower ranks are asked for before.
bool Exchange::fetch(Round& one, uint32_t rank, uint64_t seq) {
  if (one.of[rank]) return true;
  Arena* arena = arena_of(rank, false);
  uint64_t bytes = 0;
  const char* from = arena ? arena->find(seq, bytes) : nullptr;
  if (!from) return false;
  const std::shared_ptr<void> keep = arena->keep();
  Contribution found = unpack(from, bytes, [keep](void*) {});
  for (uint32_t before = rank; const Caller& other : found.with) {
    TORCH_CHECK(other.rank > before && other.rank < info_.size && !one.of[other.rank], "a sum of rank ", rank,
                " and others has rank ", other.rank, " where it cannot be");
    before = other.rank;
  }
  for (const Caller& other : found.with) {
    Contribution& inside = one.of[other.rank].emplace();
    inside.signature = other.signature;
    inside.failure = other.failure;
    inside.in_sum = true;
  }
  one.of[rank] = std::move(found);
  return true;
}

// Reductions are begun before all contributions are there: one buffer instead of one for each rank. What
// is given to it needs no memory after that: the first one's becomes the sum's.
void Exchange::fold_what_is_there(Round& one, uint64_t seq, c10::Device device) {
  if (!one.failure.empty() || one.ended) return;
  try {
    if (!one.folded.empty()) Swap::one().unshelve(one.folded[0].storage());
    while (one.folded_ranks < info_.size && fetch(one, one.folded_ranks, seq)) {
      Contribution& next = *one.of[one.folded_ranks];
      const Signature& s = next.signature;
      if (!is_reduced(s.what) || !next.failure.empty()) break;
      if (one.folded_ranks && !disagreement({&one.of[0]->signature, &s}).empty()) break;
      if (next.in_sum) {
        one.folded_ranks++;
        continue;
      }
      if (next.parts.empty()) break;  // of one that has a failure, or another call, in it
      if (next.given) Swap::one().unshelve(next.parts[0].storage());
      const Reduction how = next.with.empty() ? s.reduction : of_sums(s.reduction);
      const at::Tensor part = next.parts[0].to(device);
      const bool own = !next.borrowed || !part.is_same(next.parts[0]);
      if (one.folded_ranks == 0) {
        one.folded.push_back(next.given ? fold_first(Swap::take(part), how, s.factor, true) : fold_first(part, how, s.factor, own));
      } else {
        fold_next(one.folded[0], part, how, s.factor);
        if (next.given) Swap::discard(part.storage());
      }
      next.parts.clear();
      one.folded_ranks++;
    }
    if (one.folded_ranks == info_.size && !one.ended) {
      fold_end(one.folded[0], one.of[0]->signature.reduction, info_.size);
      one.ended = true;
    }
    if (!one.folded.empty() && !one.ended) Swap::one().shelve(one.folded[0].storage());
  } catch (...) {
    one.failure = singularity::describe(std::current_exception()).text;
  }
}

// All contributions are there: do they go together?
void Exchange::compare(Round& one, uint64_t seq) {
  one.compared = true;
  std::vector<const Signature*> signatures;
  for (uint32_t r = 0; r < info_.size && one.failure.empty(); r++) {
    if (!one.of[r]->failure.empty()) one.failure = "rank " + std::to_string(r) + " could not take part: " + one.of[r]->failure;
    signatures.push_back(&one.of[r]->signature);
  }
  if (one.failure.empty()) one.failure = disagreement(signatures);
}

Verdict Exchange::look(uint32_t rank, uint64_t seq) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_files();
  publish_late();
  for (auto& [number, waits] : rounds_) add_up(waits, number);
  Verdict verdict;
  Round& one = round(seq);
  std::vector<uint32_t> late;
  for (uint32_t r = 0; r < info_.size; r++) {
    if (fetch(one, r, seq)) continue;
    // One that has contributed waits itself: for its neighbours, to be added up with them.
    (file_.rank(r).contributed.load() < seq ? verdict.missing : late).push_back(r);
    verdict.away |= file_.state(r) == RankState::away;
    if (file_.gone(r) && verdict.failure.empty())
      verdict.failure = "rank " + std::to_string(r) +
                        (file_.state(r) == RankState::died ? " has ended" : " has left the group") + " without taking part";
  }
  if (verdict.missing.empty()) verdict.missing = std::move(late);
  if (verdict.missing.empty()) {
    if (!one.compared) compare(one, seq);
    verdict.failure = one.failure;
    verdict.ready = true;
  } else {
    verdict.ready = !verdict.failure.empty();
  }
  return verdict;
}

std::vector<at::Tensor> Exchange::result(uint32_t rank, uint64_t seq, c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Round& one = round(seq);
  const Signature& mine = one.of[rank]->signature;
  const auto root = static_cast<size_t>(std::max<int64_t>(mine.root, 0));
  const auto part = [&](size_t of, size_t index) { return one.of[of]->parts.at(index).to(device); };
  std::vector<at::Tensor> results;
  switch (mine.what) {
    case Collective::all_reduce:
    case Collective::reduce:
      if (mine.out.empty()) break;
      fold_what_is_there(one, seq, device);
      TORCH_CHECK(one.failure.empty(), one.failure);
      TORCH_CHECK(one.ended, "what ranks brought to a reduction is not whole");
      results.push_back(one.folded.at(0));
      break;
    case Collective::broadcast: results.push_back(part(root, 0)); break;
    case Collective::scatter: results.push_back(part(root, rank)); break;
    case Collective::gather:
      if (mine.out.empty()) break;
      [[fallthrough]];
    case Collective::all_gather:
      for (size_t r = 0; r < info_.size; r++) results.push_back(part(r, 0));
      break;
    case Collective::all_to_all:
      for (size_t r = 0; r < info_.size; r++) results.push_back(part(r, rank));
      break;
    case Collective::reduce_scatter: {
      at::Tensor sum;
      for (size_t r = 0; r < info_.size; r++) {
        const Contribution& next = *one.of[r];
        if (next.in_sum) continue;
        const Reduction how = next.with.empty() ? mine.reduction : of_sums(mine.reduction);
        if (!sum.defined()) sum = fold_first(part(r, rank), how, next.signature.factor, false);
        else fold_next(sum, part(r, rank), how, next.signature.factor);
      }
      fold_end(sum, mine.reduction, info_.size);
      results.push_back(std::move(sum));
      break;
    }
    default: break;
  }
  return results;
}

bool Exchange::hand_over(uint64_t seq, const at::Tensor& value, uint64_t id, StorageEntry& entry, State& ring) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = rounds_.find(seq);
  if (found == rounds_.end() || found->second.folded.empty() || !found->second.folded[0].is_same(value)) return false;
  const c10::Storage& sum = value.storage();
  if (sum.nbytes() != value.nbytes() || sum.nbytes() != entry.storage.nbytes() || sum.device() != entry.storage.device())
    return false;
  entry.place.join(found->second.place, sum, ring.account, nullptr);
  ring.recent.forget(id);
  entry.storage = sum;
  return true;
}

void Exchange::consume(uint32_t rank, uint64_t seq) {
  const std::lock_guard<std::mutex> lock(mutex_);
  RankWords& words = file_.rank(rank);
  if (words.consumed.load(std::memory_order_relaxed) < seq) words.consumed.store(seq, std::memory_order_release);
  forget_consumed();
  file_.ring();
}

void Exchange::forget_consumed() {
  const uint64_t by_all = consumed_by_all();
  uint64_t here = UINT64_MAX;
  for (const uint32_t r : here_) here = std::min(here, file_.rank(r).consumed.load(std::memory_order_relaxed));
  std::erase_if(rounds_, [&](const auto& entry) {
    const Round& one = entry.second;
    return entry.first <= by_all || (entry.first <= here && one.unpublished.empty() && one.waiting.empty());
  });
}

bool Exchange::durable(uint32_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forget_consumed();
  for (const auto& [seq, one] : rounds_)
    if (one.unpublished.count(rank) || one.waiting.count(rank)) return false;
  return true;
}

// ---- messages

bool Exchange::send(uint32_t rank, uint32_t to, uint64_t seq, const Contribution& contribution, bool replaying) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_files();
  Arena& arena = *arena_of(rank, true);
  if (seq <= arena.mail(to).sent.load(std::memory_order_acquire)) return true;
  arena.free_consumed(consumed_by_all());
  char* place = arena.open(seq, to, packed_bytes(contribution));
  if (!place) return replaying;
  pack(contribution, place);
  arena.close();
  file_.ring();
  return true;
}

Verdict Exchange::look_for(uint32_t rank, uint32_t from, uint64_t seq, const Signature& wanted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_files();
  Verdict verdict;
  Arena* arena = arena_of(from, false);
  uint64_t bytes = 0;
  if (const char* at = arena ? arena->find_letter(seq, rank, bytes) : nullptr) {
    const Contribution sent = unpack(at, bytes, [](void*) {});
    verdict.failure = sent.failure.empty() ? disagreement(sent.signature, from, wanted, rank)
                                           : "rank " + std::to_string(from) + " could not take part: " + sent.failure;
    verdict.ready = true;
    return verdict;
  }
  verdict.missing.push_back(from);
  verdict.away = file_.state(from) == RankState::away;
  if (file_.gone(from))
    verdict.failure = "rank " + std::to_string(from) +
                      (file_.state(from) == RankState::died ? " has ended" : " has left the group") + " without sending it";
  verdict.ready = !verdict.failure.empty();
  return verdict;
}

at::Tensor Exchange::receive(uint32_t rank, uint32_t from, uint64_t seq, c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Arena* arena = arena_of(from, false);
  uint64_t bytes = 0;
  const char* at = arena ? arena->find_letter(seq, rank, bytes) : nullptr;
  TORCH_CHECK(at, "a message of rank ", from, " is gone");
  const std::shared_ptr<void> keep = arena->keep();
  return unpack(at, bytes, [keep](void*) {}).parts.at(0).to(device);
}

void Exchange::received(uint32_t rank, uint32_t from, uint64_t seq) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Arena* arena = arena_of(from, false)) {
    std::atomic<uint64_t>& word = arena->mail(rank).received;
    if (word.load(std::memory_order_relaxed) < seq) word.store(seq, std::memory_order_release);
    file_.ring();
  }
}

}  // namespace singularity
