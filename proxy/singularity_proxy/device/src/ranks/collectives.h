// The collectives of one ring: its groups, what it still waits for, and what that does to its storages.
//
// A collective is recorded and the ring goes on; the storages of its outputs are *pending* until the
// result is there. A record that touches one of them cannot be executed yet (NotYet): the ring waits
// and tries again. A storage whose result came and that nobody has touched since is *fresh*. Used by the
// ring's thread, and by others only while that is paused.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/src/exchange/exchange.h"
#include "device/src/exec/executor.h"
#include "device/src/recovery/journal.h"
#include "device/src/memory/state.h"

namespace singularity {

// What people and the barrier are told of a ring's group.
struct GroupStats {
  std::string id, name;  // id: 32 hex digits
  uint32_t number = 0, rank = 0, size = 0;
  uint64_t contributed = 0, consumed = 0;
  std::map<uint32_t, uint64_t> sent, received;  // messages, by the other rank
  std::map<uint32_t, uint64_t> asked;           // messages received or waited for, by the sender
};

class Collectives {
 public:
  Collectives(State& state, Executor& executor) : state_(state), executor_(executor) {}
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  void live_in(std::string folder) { folder_ = std::move(folder); }  // of the ring's file

  // ---- records. Throw what is wrong with the call, and NotYet
  void execute(const RecordHeader& record, const char* body, bool replaying);
  // The call failed here: the other ranks of its group are told.
  void failed(const RecordHeader& record, const char* body, const std::string& why);
  // After a snapshot was loaded: the ranks of its groups are here now.
  void arrive();

  // ---- results
  bool idle() const { return pending_.empty(); }  // nothing is pending
  size_t pending() const { return pending_.size(); }
  uint64_t oldest() const { return pending_.front()->ticket; }
  // A result (or failure) that is there now; nullptr: none is. Those of one group come in order.
  struct Result {
    uint64_t ticket = 0;
    std::string failure;  // with the names of collective and group
    bool told = false;    // the worker knows of a failure already
    std::vector<at::Tensor> values;
  };
  std::unique_ptr<Result> next_result();
  // Stores it into the outputs, after it was journaled.
  void settle(const Result& result);
  // What the journal has of a result: kResultBytes, kResult.
  // Returns why it failed.
  std::string replay(const RecordHeader& entry, const char* body);

  // ---- waiting
  std::atomic<uint32_t>* bell(const NotYet& what) const;  // rung when something changes; nullptr: nothing waits
  // "all_reduce(sum) of 8 Float (number 17 of ...): waits for rank 2", for people.
  std::string waits_for(const NotYet& what) const;
  bool possible(const NotYet& what) const;  // with what is there now, or it is worth a try
  bool result_is_there() const;

  // Whether a snapshot of this ring says it all: nothing is pending, and nobody needs what is only here.
  bool durable() const;
  void depart(RankState how);
  void set_aside(bool aside);
  std::vector<GroupStats> stats() const;
  bool takes_turns() const;  // it is in a group with others
  bool has_groups() const { return !state_.groups.empty(); }
  // Whether this rank has taken part in so many collectives of its groups, and messages. Keys: a group's
  // id, or "id:2>0" for messages from its rank 2 to its rank 0; others are not this rank's.
  bool reached(const std::map<std::string, uint64_t>& targets) const;

 private:
  struct Pending {
    uint64_t ticket = 0;  // number of the record
    uint32_t number = 0;  // of the group
    std::shared_ptr<Exchange> exchange;
    uint32_t rank = 0;
    uint64_t seq = 0, timeout_ns = 0, waited_ns = 0, looked_ns = 0;
    Signature signature;
    std::vector<at::Tensor> outputs;
    std::vector<uint64_t> ids;           // of their storages
    std::vector<at::Tensor> replayed;    // what the journal has of the values
    bool told = false;                   // that it fails
    std::string text(const std::string& what) const;
    // Results come in order among those of one group, and of one sender of messages.
    std::pair<uint32_t, int64_t> line() const {
      return {number, signature.what == Collective::recv ? signature.root : -1};
    }
  };
  void join(const RecordHeader& record, const char* body);
  void leave(uint32_t number);
  void collective(const RecordHeader& record, const char* body, bool replaying);
  GroupState& group(uint64_t number);
  Exchange& exchange(uint32_t number);
  void contribute(const RecordHeader& record, GroupState& group, const CollectiveCall& call, Contribution contribution,
                  bool replaying);
  void finish(const Pending& pending);
  Pending* find(uint64_t ticket) const;
  std::map<uint32_t, uint64_t> asked(uint32_t number) const;
  Verdict look(Pending& pending) const;
  void name_outputs(const Pending& pending, bool failed);

  State& state_;
  Executor& executor_;
  std::string folder_;
  std::map<uint32_t, std::shared_ptr<Exchange>> exchanges_;  // by the group's number
  std::vector<std::unique_ptr<Pending>> pending_;            // by ticket
};

}  // namespace singularity
