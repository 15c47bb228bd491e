// Where the ranks of one process group meet, as seen by one proxy.
//
// Contributions of ranks that this proxy serves stay in its memory; when a rank of the group is served
// elsewhere they are also put into files (exchange_files.h), from which every proxy takes what it needs
// and computes the results of its own ranks. A contribution is dropped when everybody has consumed it.
// What a proxy held is lost with it: its ranks' journals make the same contributions again, and
// `contributed` and `consumed` in the group's file say what need not be repeated.
//
// In a group of FoldOrder::fast this proxy first adds what its own ranks bring to a reduction, and puts
// the sum into a file instead of each contribution: so many bytes less are written, read and added. It
// does so as soon as every rank of its device has contributed and the others are known to be elsewhere.
// A sum in a file is final. Whoever repeats a contribution from its journal finds it in there.
//
// Used by the threads of all rings of a proxy; nothing waits in here but for a fold of another thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/src/ranks/contribution.h"
#include "exchange_files.h"
#include "sharing.h"

namespace singularity {

// Names the physical device of this process, alike in the proxy that replaces it. Once, before ranks come.
void name_device(const std::string& device);
// Of contributions and sums that this process put into files, for other proxies; without heads.
uint64_t published_bytes();

struct GroupInfo {
  GroupId id{};
  uint32_t size = 0;
  std::string name;  // for error texts
};

// How a collective of a rank stands.
struct Verdict {
  bool ready = false;             // also when it failed
  std::string failure;            // a sentence
  std::vector<uint32_t> missing;  // ranks that have not contributed yet
  bool away = false;              // one of them is served by no proxy now
};

class Exchange {
 public:
  // The one of this process. Throws FileError, StateError.
  static std::shared_ptr<Exchange> of(const std::string& folder, const GroupInfo& info);
  Exchange(std::string folder, GroupInfo info);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const GroupInfo& info() const { return info_; }

  // ---- a rank comes to this proxy, and goes
  // `rebuilding`: more is going to be repeated from its journal.
  void arrive(uint32_t rank, uint64_t contributed, uint64_t consumed);
  void depart(uint32_t rank, RankState how);
  // Its proxy keeps what it brought and executes nothing for a while: the others' limits do not count then.
  void set_aside(uint32_t rank, bool aside);

  // ---- collectives, in the order of their numbers
  // False: there is no room before others have consumed more; nothing was done. Not while replaying.
  bool contribute(uint32_t rank, uint64_t seq, Contribution contribution, bool replaying);
  Verdict look(uint32_t rank, uint64_t seq);
  // Of a ready one that has not failed: what belongs into the rank's outputs. Throws what a fold throws.
  std::vector<at::Tensor> result(uint32_t rank, uint64_t seq, c10::Device device);
  // Instead of a copy of `value`, a result: entry `id` of `ring`, all of which it is, gets its storage and
  // shares it with the others. False: that cannot be. For rings that own what they write.
  bool hand_over(uint64_t seq, const at::Tensor& value, uint64_t id, StorageEntry& entry, State& ring);
  // The rank will never need its results up to `seq` again, whatever ends.
  void consume(uint32_t rank, uint64_t seq);
  // Whether the rank's contributions outlive this process, or nobody needs them.
  bool durable(uint32_t rank);

  // ---- messages, in an order of their own for each sender and receiver
  bool send(uint32_t rank, uint32_t to, uint64_t seq, const Contribution& contribution, bool replaying);
  Verdict look_for(uint32_t rank, uint32_t from, uint64_t seq, const Signature& wanted);
  at::Tensor receive(uint32_t rank, uint32_t from, uint64_t seq, c10::Device device);
  void received(uint32_t rank, uint32_t from, uint64_t seq);

  // ---- waiting for others
  std::atomic<uint32_t>& bell() const { return file_.bell(); }
  void ring() const { file_.ring(); }

 private:
  struct Round {
    std::vector<std::optional<Contribution>> of;  // of this proxy's ranks, and what was read of others
    std::set<uint32_t> unpublished;               // ranks whose contribution is in this memory only
    std::map<uint32_t, Contribution> waiting;     // and not in `of` yet: it is to be added to its neighbours'
    std::vector<at::Tensor> folded;               // of the first `folded_ranks` ranks
    uint32_t folded_ranks = 0;
    Place place;                                  // among the entries that hold the sum
    bool compared = false, ended = false;
    std::string failure;
  };
  bool all_here() const;
  uint64_t consumed_by_all() const;
  Arena* arena_of(uint32_t rank, bool make);
  bool publish(uint32_t rank, uint64_t seq, const Contribution& contribution);
  void publish_late();
  Round& round(uint64_t seq);
  void bring(Round& round, uint32_t rank, uint64_t seq, Contribution contribution);
  void add_up(Round& round, uint64_t seq);
  bool publish_sum(Round& round, uint64_t seq);
  void keep(Round& round, uint32_t rank);
  bool fetch(Round& round, uint32_t rank, uint64_t seq);
  void fold_what_is_there(Round& round, uint64_t seq, c10::Device device);
  void compare(Round& round, uint64_t seq);
  void forget_consumed();
  void check_files() const;

  const std::string folder_;
  const GroupInfo info_;
  std::mutex mutex_;
  GroupFile file_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::set<uint32_t> here_;  // ranks that this proxy serves
  std::map<uint64_t, Round> rounds_;
};

}  // namespace singularity
