#include "exchange.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <random>

#include "errors.h"
#include "fold.h"
#include "state.h"
#include "swap.h"

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

}  // namespace

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
  words.state.store(static_cast<uint32_t>(RankState::joined), std::memory_order_release);
  file_.ring();
}

void Exchange::depart(uint32_t rank, RankState how) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!here_.erase(rank)) return;
  RankWords& words = file_.rank(rank);
  words.home.store(0);
  words.state.store(static_cast<uint32_t>(how), std::memory_order_release);
  file_.ring();
  bool empty = true;
  for (uint32_t r = 0; r < info_.size; r++) empty &= file_.gone(r) || file_.state(r) == RankState::absent;
  if (empty) file_.remove();
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
    const bool here = all_here();
    if (seq - consumed > kSlots && !replaying) return false;
    Round& one = round(seq);
    const bool repeated = arena_of(rank, false) && arena_of(rank, false)->has(seq);
    if (!here && !repeated && !publish(rank, seq, contribution) && !replaying) return false;
    if (!arena_of(rank, false) || !arena_of(rank, false)->has(seq)) one.unpublished.insert(rank);
    const c10::Device device = contribution.parts.empty() ? c10::Device(c10::kCPU) : contribution.parts[0].device();
    if (!one.of[rank]) one.of[rank] = std::move(contribution);
    if (here || one.unpublished.empty()) fold_what_is_there(one, seq, device);
    keep(one, rank);
  }
  if (words.contributed.load(std::memory_order_relaxed) < seq) words.contributed.store(seq, std::memory_order_release);
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
    for (at::Tensor& part : mine.parts) part = part.clone();
  } catch (...) {
    one.of[rank].reset();
    one.unpublished.erase(rank);
    throw;
  }
  mine.lent = mine.borrowed = false;
}

// Whether the contribution of `rank` can be looked at.
bool Exchange::fetch(Round& one, uint32_t rank, uint64_t seq) {
  if (one.of[rank]) return true;
  Arena* arena = arena_of(rank, false);
  uint64_t bytes = 0;
  const char* from = arena ? arena->find(seq, bytes) : nullptr;
  if (!from) return false;
  const std::shared_ptr<void> keep = arena->keep();
  one.of[rank] = unpack(from, bytes, [keep](void*) {});
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
      if (next.given) Swap::one().unshelve(next.parts[0].storage());
      const at::Tensor part = next.parts[0].to(device);
      const bool own = !next.borrowed || !part.is_same(next.parts[0]);
      if (one.folded_ranks == 0) {
        one.folded.push_back(next.given ? fold_first(Swap::take(part), s.reduction, s.factor, true)
                                        : fold_first(part, s.reduction, s.factor, own));
      } else {
        fold_next(one.folded[0], part, s.reduction, s.factor);
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
  Verdict verdict;
  Round& one = round(seq);
  for (uint32_t r = 0; r < info_.size; r++) {
    if (fetch(one, r, seq)) continue;
    verdict.missing.push_back(r);
    verdict.away |= file_.state(r) == RankState::away;
    if (file_.gone(r) && verdict.failure.empty())
      verdict.failure = "rank " + std::to_string(r) +
                        (file_.state(r) == RankState::died ? " has ended" : " has left the group") + " without taking part";
  }
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
      at::Tensor sum = fold_first(part(0, rank), mine.reduction, one.of[0]->signature.factor, false);
      for (size_t r = 1; r < info_.size; r++) fold_next(sum, part(r, rank), mine.reduction, one.of[r]->signature.factor);
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
    return entry.first <= by_all || (entry.first <= here && entry.second.unpublished.empty());
  });
}

bool Exchange::durable(uint32_t rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forget_consumed();
  for (const auto& [seq, one] : rounds_)
    if (one.unpublished.count(rank)) return false;
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
