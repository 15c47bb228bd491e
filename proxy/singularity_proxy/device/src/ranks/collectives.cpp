#include "collectives.h"

#include <cstdio>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>

#include "device/src/memory/capacity.h"
#include "device/src/exec/errors.h"
#include "wire/ring.h"

namespace singularity {
namespace {

constexpr size_t kMaxGroups = 4096;  // of one ring
constexpr size_t kMaxGroupName = 256;
constexpr uint64_t kLongestLook = 1'000'000'000;  // ns between two looks of a ring that waits, at most
constexpr size_t kMostFresh = 1 << 16;

std::string seconds(uint64_t ns) {
  std::string text = std::to_string(static_cast<double>(ns) * 1e-9);
  return text.substr(0, text.find('.') + 2) + " s";
}

Signature signature_of(const CollectiveCall& call, FoldOrder order) {
  Signature s;
  s.order = order;
  s.what = call.what;
  s.reduction = call.reduction;
  s.factor = call.factor;
  s.root = call.root;
  for (const at::Tensor& t : call.inputs) s.in.push_back(t.numel());
  for (const at::Tensor& t : call.outputs) s.out.push_back(t.numel());
  if (!call.inputs.empty()) s.dtype = call.inputs[0].scalar_type();
  else if (!call.outputs.empty()) s.dtype = call.outputs[0].scalar_type();
  return s;
}

// Whether a tensor is all of its storage.
bool is_all(const at::Tensor& t) { return t.storage_offset() == 0 && t.nbytes() == t.storage().nbytes(); }

}  // namespace

std::string Collectives::Pending::text(const std::string& what) const {
  const std::string peer = signature.what == Collective::recv ? " from rank " + std::to_string(signature.root) : "";
  return describe(signature) + peer + " (number " + std::to_string(seq) + " of process group '" + exchange->info().name +
         "', rank " + std::to_string(rank) + "): " + what;
}

// ---- groups

GroupState& Collectives::group(uint64_t number) {
  const auto found = state_.groups.find(static_cast<uint32_t>(number));
  TORCH_CHECK(number <= UINT32_MAX && found != state_.groups.end(), "the device proxy knows no process group ", number);
  return found->second;
}
Exchange& Collectives::exchange(uint32_t number) { return *exchanges_.at(number); }

void Collectives::join(const RecordHeader& record, const char* body) {
  Reader in(body, body + record.length - sizeof(record));
  GroupState mine;
  std::memcpy(mine.id.data(), in.bytes(mine.id.size()), mine.id.size());
  mine.rank = in.get<uint32_t>();
  mine.size = in.get<uint32_t>();
  mine.timeout_ms = in.get<uint64_t>();
  const auto name_bytes = in.get<uint32_t>();
  TORCH_CHECK(name_bytes <= kMaxGroupName && mine.size >= 1 && mine.size <= kMaxRanks && mine.rank < mine.size &&
                  record.base >= 1 && record.base <= UINT32_MAX,
              "a process group of ", mine.size, " ranks with rank ", mine.rank, " cannot be");
  mine.name.assign(in.bytes(name_bytes), name_bytes);
  TORCH_CHECK(record.op <= static_cast<uint32_t>(FoldOrder::fast), "a process group with an unknown order of reductions, ", record.op);
  mine.order = static_cast<FoldOrder>(record.op);
  const auto number = static_cast<uint32_t>(record.base);
  if (const auto known = state_.groups.find(number); known != state_.groups.end()) {
    TORCH_CHECK(known->second.id == mine.id && known->second.rank == mine.rank, "process group ", number, " exists already");
    known->second.timeout_ms = mine.timeout_ms;
    for (const auto& pending : pending_)
      if (pending->number == number) pending->timeout_ns = mine.timeout_ms * 1'000'000;
    return;
  }
  TORCH_CHECK(state_.groups.size() < kMaxGroups, "a process may be in at most ", kMaxGroups, " process groups on a device");
  std::shared_ptr<Exchange> meeting = Exchange::of(folder_, {mine.id, mine.size, mine.name});
  meeting->arrive(mine.rank, 0, 0);
  exchanges_[number] = std::move(meeting);
  state_.groups.emplace(number, std::move(mine));
}

void Collectives::leave(uint32_t number) {
  const GroupState& mine = group(number);
  for (const auto& pending : pending_)
    if (pending->number == number) throw NotYet{.ticket = pending->ticket};
  exchange(number).depart(mine.rank, RankState::left);
  exchanges_.erase(number);
  state_.groups.erase(number);
}

void Collectives::arrive() {
  for (const auto& [number, mine] : state_.groups) {
    std::shared_ptr<Exchange>& meeting = exchanges_[number];
    if (!meeting) meeting = Exchange::of(folder_, {mine.id, mine.size, mine.name});
    meeting->arrive(mine.rank, mine.contributed, mine.consumed);
  }
}

void Collectives::depart(RankState how) {
  for (const auto& [number, mine] : state_.groups)
    if (const auto found = exchanges_.find(number); found != exchanges_.end()) found->second->depart(mine.rank, how);
}

void Collectives::set_aside(bool aside) {
  for (const auto& [number, mine] : state_.groups)
    if (const auto found = exchanges_.find(number); found != exchanges_.end()) found->second->set_aside(mine.rank, aside);
}

// ---- records

void Collectives::execute(const RecordHeader& record, const char* body, bool replaying) {
  switch (static_cast<Kind>(record.kind)) {
    case Kind::join_group: return join(record, body);
    case Kind::leave_group: return leave(static_cast<uint32_t>(record.base));
    default: return collective(record, body, replaying);
  }
}

void Collectives::collective(const RecordHeader& record, const char* body, bool replaying) {
  GroupState& mine = group(record.base);
  const CollectiveCall call = executor_.collective(record, body, true);
  Contribution contribution;
  contribution.signature = signature_of(call, mine.order);
  check(contribution.signature, mine.rank, mine.size);
  contribution.parts = call.inputs;
  contribution.borrowed = true;
  // An input that is also the output waits for the result itself: nobody changes it before all is added.
  contribution.lent = !is_reduced(call.what) || call.outputs.empty() ||
                      !call.outputs[0].storage().is_alias_of(call.inputs[0].storage());
  // With lineage the result replaces its storage, so until then that needs no memory.
  contribution.given = !contribution.lent && executor_.keeps_lineage() && is_all(call.inputs[0]) && is_all(call.outputs[0]);
  contribute(record, mine, call, std::move(contribution), replaying);
}

void Collectives::failed(const RecordHeader& record, const char* body, const std::string& why) {
  GroupState& mine = group(record.base);
  const CollectiveCall call = executor_.collective(record, body, false);
  Contribution contribution;
  contribution.signature = signature_of(call, mine.order);
  contribution.failure = why;
  try {
    contribute(record, mine, call, contribution, /*replaying=*/true);  // never to be tried again
    if (call.what != Collective::send) pending_.back()->told = true;
  } catch (const std::exception&) {  // not even this: the others must not wait
    exchange(static_cast<uint32_t>(record.base)).depart(mine.rank, RankState::died);
  }
}

void Collectives::contribute(const RecordHeader& record, GroupState& mine, const CollectiveCall& call,
                             Contribution contribution, bool replaying) {
  const auto number = static_cast<uint32_t>(record.base);
  Exchange& meeting = exchange(number);
  const auto peer = static_cast<uint32_t>(call.root);
  TORCH_CHECK(!is_message(call.what) || (call.root >= 0 && call.root < mine.size), "a message to or from rank ", call.root);
  uint64_t& last = call.what == Collective::send   ? mine.sent[peer]
                   : call.what == Collective::recv ? mine.received[peer]
                                                   : mine.contributed;
  uint64_t expected = last + 1;
  if (call.what == Collective::recv)
    for (const auto& other : pending_)
      if (other->number == number && other->signature.what == Collective::recv && other->signature.root == call.root)
        expected = other->seq + 1;
  TORCH_CHECK(call.seq == expected, "collective ", call.seq, " of process group '", mine.name, "' came where ", expected,
              " was expected");
  Pending pending;
  pending.ticket = record.seq;
  pending.number = number;
  pending.exchange = exchanges_.at(number);
  pending.rank = mine.rank;
  pending.seq = call.seq;
  pending.timeout_ns = mine.timeout_ms * 1'000'000;
  pending.looked_ns = monotonic_ns();
  pending.signature = contribution.signature;
  pending.outputs = call.outputs;
  pending.ids = call.output_ids;
  if (call.what == Collective::send) {
    if (!meeting.send(mine.rank, peer, call.seq, contribution, replaying)) throw NotYet{.group = number};
    last = call.seq;
    return;
  }
  if (call.what != Collective::recv) {
    if (!meeting.contribute(mine.rank, call.seq, std::move(contribution), replaying)) throw NotYet{.group = number};
    last = call.seq;
  }
  executor_.make_pending(call, record.seq);
  pending_.push_back(std::make_unique<Pending>(std::move(pending)));
}

// ---- results

Verdict Collectives::look(Pending& pending) const {
  Verdict verdict;
  try {
    verdict = pending.signature.what == Collective::recv
                  ? pending.exchange->look_for(pending.rank, static_cast<uint32_t>(pending.signature.root), pending.seq,
                                               pending.signature)
                  : pending.exchange->look(pending.rank, pending.seq);
  } catch (...) {
    verdict.failure = describe(std::current_exception()).text;
    verdict.ready = true;
  }
  const uint64_t now = monotonic_ns();
  // While a rank is moved no time passes, and none that this process was stopped for.
  if (!verdict.away) pending.waited_ns += std::min(now - pending.looked_ns, kLongestLook);
  pending.looked_ns = now;
  if (!verdict.ready && pending.timeout_ns && pending.waited_ns > pending.timeout_ns) {
    std::string missing;
    for (const uint32_t r : verdict.missing) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    verdict.failure = "rank " + missing + " did not take part within " + seconds(pending.timeout_ns);
    verdict.ready = true;
  }
  return verdict;
}

std::unique_ptr<Collectives::Result> Collectives::next_result() {
  std::set<std::pair<uint32_t, int64_t>> behind;
  for (const auto& pending : pending_) {
    const bool message = pending->signature.what == Collective::recv;
    if (behind.count(pending->line())) continue;
    const Verdict verdict = look(*pending);
    if (!verdict.ready) {
      behind.insert(pending->line());
      continue;
    }
    auto result = std::make_unique<Result>();
    result->ticket = pending->ticket;
    result->told = pending->told;
    std::string failure = verdict.failure;
    if (failure.empty()) try {
        if (message)
          result->values.push_back(pending->exchange->receive(pending->rank, static_cast<uint32_t>(pending->signature.root),
                                                              pending->seq, state_.device));
        else
          result->values = pending->exchange->result(pending->rank, pending->seq, state_.device);
      } catch (...) {
        result->values.clear();
        failure = describe(std::current_exception()).text;
      }
    if (!failure.empty()) result->failure = pending->text(failure);
    return result;
  }
  return nullptr;
}

void Collectives::settle(const Result& result) {
  Pending& pending = *find(result.ticket);
  for (size_t i = 0; i < pending.outputs.size(); i++) {
    const auto found = state_.storages.find(pending.ids[i]);
    if (found == state_.storages.end() || found->second.pending != result.ticket) continue;  // freed, or another one by now
    StorageEntry& entry = found->second;
    const bool there = i < result.values.size();
    if (there && executor_.keeps_lineage() && is_all(pending.outputs[i]) &&
        pending.exchange->hand_over(pending.seq, result.values[i], found->first, entry, state_))
      continue;
    {
      const Unlimited as_before;  // it had this memory when it made the call
      Swap::one().unshelve(entry.storage);
    }
    if (there) pending.outputs[i].copy_(result.values[i]);
  }
  if (executor_.keeps_lineage()) name_outputs(pending, !result.failure.empty());
  for (const uint64_t id : pending.ids)
    if (const auto found = state_.storages.find(id); found != state_.storages.end() && found->second.pending == result.ticket) {
      found->second.pending = 0;
      found->second.fresh = result.failure.empty();
      if (found->second.fresh) state_.fresh.push_back(id);
      if (state_.fresh.size() > kMostFresh) state_.use_fresh();  // nobody looks at them
    }
  finish(pending);
}

// The identities of what a collective brought: see lineage.h.
void Collectives::name_outputs(const Pending& pending, bool failed) {
  const Signature& call = pending.signature;
  const bool of_rank = call.what == Collective::reduce_scatter || call.what == Collective::all_to_all ||
                       call.what == Collective::scatter || call.what == Collective::recv;
  const GroupId& group = pending.exchange->info().id;
  Mixer collective;
  collective.add_bytes(reinterpret_cast<const char*>(group.data()), group.size());
  collective.add(static_cast<uint64_t>(call.what));
  collective.add(pending.seq);
  if (of_rank) collective.add(static_cast<uint64_t>(call.root) << 32 | pending.rank);
  // Outputs in one storage, one behind the other from its start to its end, are all of it.
  std::map<uint64_t, uint64_t> reach;
  for (size_t i = 0; i < pending.outputs.size(); i++) {
    const at::Tensor& t = pending.outputs[i];
    uint64_t& end = reach[pending.ids[i]];
    const uint64_t start = static_cast<uint64_t>(t.storage_offset()) * t.element_size();
    end = start == end ? start + t.nbytes() : UINT64_MAX;
  }
  std::map<uint64_t, Mixer> of_storage;
  for (size_t i = 0; i < pending.outputs.size(); i++) {
    Mixer& mixer = of_storage.try_emplace(pending.ids[i], collective).first->second;
    mixer.add(i);
    mixer.add(static_cast<uint64_t>(pending.outputs[i].storage_offset()));
    mixer.add(pending.outputs[i].nbytes());
  }
  for (const auto& [id, mixer] : of_storage) {
    const auto found = state_.storages.find(id);
    if (found == state_.storages.end() || found->second.pending != pending.ticket) continue;
    if (failed) executor_.lineage().made(found->second);
    else executor_.lineage().filled(found->second, mixer.identity(), reach[id] == found->second.storage.nbytes());
  }
}

void Collectives::finish(const Pending& pending) {
  GroupState& mine = state_.groups.at(pending.number);
  if (pending.signature.what == Collective::recv) {
    const auto from = static_cast<uint32_t>(pending.signature.root);
    mine.received[from] = pending.seq;
    pending.exchange->received(pending.rank, from, pending.seq);
  } else {
    mine.consumed = pending.seq;
    pending.exchange->consume(pending.rank, pending.seq);
  }
  std::erase_if(pending_, [&](const auto& one) { return one.get() == &pending; });
}

std::string Collectives::replay(const RecordHeader& entry, const char* body) {
  Reader in(body, body + entry.length - sizeof(entry));
  Pending* pending = find(in.get<uint64_t>());
  if (!pending) return "";  // the base is newer
  if (entry.kind == kResultBytes) {
    const auto output = in.get<uint64_t>(), offset = in.get<uint64_t>(), bytes = in.get<uint64_t>();
    TORCH_CHECK(output < pending->outputs.size(), "a result in the journal has more tensors than the collective");
    pending->replayed.resize(pending->outputs.size());
    at::Tensor& value = pending->replayed[output];
    if (!value.defined()) value = at::empty_like(pending->outputs[output], at::TensorOptions().device(c10::kCPU));
    TORCH_CHECK(offset <= value.nbytes() && bytes <= value.nbytes() - offset, "a result in the journal is longer than its tensor");
    std::memcpy(static_cast<char*>(value.mutable_data_ptr()) + offset, in.bytes(bytes), bytes);
    return "";
  }
  Result result;
  result.ticket = pending->ticket;
  const auto failure_bytes = in.get<uint32_t>();
  result.failure.assign(in.bytes(failure_bytes), failure_bytes);
  result.values = std::move(pending->replayed);
  if (result.failure.empty())
    for (size_t i = 0; i < pending->outputs.size(); i++)
      TORCH_CHECK(pending->outputs[i].numel() == 0 || (i < result.values.size() && result.values[i].defined()),
                  "a result in the journal is not complete");
  for (size_t i = 0; i < result.values.size(); i++)
    if (!result.values[i].defined()) result.values[i] = at::empty_like(pending->outputs[i]);
  settle(result);
  return result.failure;
}

// ---- waiting

Collectives::Pending* Collectives::find(uint64_t ticket) const {
  for (const auto& pending : pending_)
    if (pending->ticket == ticket) return pending.get();
  return nullptr;
}
bool Collectives::possible(const NotYet& what) const {
  Pending* pending = find(what.ticket);
  return !pending || look(*pending).ready;
}
bool Collectives::result_is_there() const {
  std::set<std::pair<uint32_t, int64_t>> behind;
  for (const auto& pending : pending_)
    if (behind.insert(pending->line()).second && look(*pending).ready) return true;
  return false;
}
bool Collectives::takes_turns() const {
  for (const auto& [number, mine] : state_.groups)
    if (mine.size > 1) return true;
  return false;
}

std::atomic<uint32_t>* Collectives::bell(const NotYet& what) const {
  if (const Pending* pending = find(what.ticket)) return &pending->exchange->bell();
  const auto found = exchanges_.find(what.group);
  return found == exchanges_.end() ? nullptr : &found->second->bell();
}

std::string Collectives::waits_for(const NotYet& what) const {
  Pending* pending = find(what.ticket);
  if (!pending) return what.ticket ? "" : "others have not consumed what this rank contributed";
  const Verdict verdict = look(*pending);
  std::string missing;
  for (const uint32_t r : verdict.missing) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
  return pending->text(missing.empty() ? "has its result" : "waits for rank " + missing);
}

bool Collectives::durable() const {
  if (!pending_.empty()) return false;
  for (const auto& [number, mine] : state_.groups)
    if (!exchanges_.at(number)->durable(mine.rank)) return false;
  return true;
}

std::vector<GroupStats> Collectives::stats() const {
  std::vector<GroupStats> all;
  for (const auto& [number, mine] : state_.groups)
    all.push_back({hex_of(mine.id), mine.name, number, mine.rank, mine.size, mine.contributed, mine.consumed, mine.sent,
                   mine.received, asked(number)});
  return all;
}

// ---- the barrier

std::map<uint32_t, uint64_t> Collectives::asked(uint32_t number) const {
  std::map<uint32_t, uint64_t> last = state_.groups.at(number).received;
  for (const auto& pending : pending_)
    if (pending->number == number && pending->signature.what == Collective::recv)
      last[static_cast<uint32_t>(pending->signature.root)] = pending->seq;
  return last;
}

bool Collectives::reached(const std::map<std::string, uint64_t>& targets) const {
  const auto count_of = [](const std::map<uint32_t, uint64_t>& counts, uint32_t rank) {
    const auto found = counts.find(rank);
    return found == counts.end() ? 0 : found->second;
  };
  for (const auto& [number, mine] : state_.groups) {
    const std::string id = hex_of(mine.id);
    for (auto target = targets.lower_bound(id); target != targets.end() && target->first.starts_with(id); ++target) {
      const auto& [key, wanted] = *target;
      if (key.size() == id.size()) {
        if (mine.contributed < wanted) return false;
        continue;
      }
      uint32_t from = 0, to = 0;
      if (std::sscanf(key.c_str() + id.size(), ":%u>%u", &from, &to) != 2) continue;
      if (from == mine.rank && count_of(mine.sent, to) < wanted) return false;
      if (to == mine.rank && count_of(asked(number), from) < wanted) return false;
    }
  }
  return true;
}

}  // namespace singularity
