// The exchange files of one folder (wire/exchange.h), as the ranks of other nodes take part in them.
//
// A session on one of several nodes is a *part* of a gang, with a folder of its own, and a bridge process
// carries between the folders what ranks bring. So to each proxy the ranks of other parts look as if
// another proxy of its own node served them. Of each rank one folder is the original, that of the node where it runs;
// its bridge tells the others (`changes`), and theirs are the only writers of its words there (`apply`).
// Those words have an even number that is not 0 as `home`, so after a bridge was killed the next one
// knows whose ranks are whose. Everything that is told may be told again: after every new connection all
// of it is.
//
// Told of a rank, in this order: what lies in its arena, then its words as they were before that was looked
// at. So who learns that a rank has ended has everything that it brought.
//
// Used by one thread at a time; `bell` may be waited for by another.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "exchange_files.h"

namespace singularity {

constexpr uint32_t kMaxParts = 1024;

class Mirror {
 public:
  // Of part `part`. Throws FileError.
  Mirror(std::string folder, uint32_t part);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror();

  // A descriptor that is readable when there may be changes; `rung` makes it wait again, and looks for new groups.
  int bell() const { return either_.get(); }
  void rung();

  // What the peer was not told yet, about `most` bytes and one entry at least; empty: it knows everything.
  std::string changes(uint32_t peer, uint64_t most);
  // Tell the peer everything again: it is a new connection.
  void forget(uint32_t peer);
  // What a peer told. Throws StateError (it is not what a bridge tells), FileError (there is no room).
  void apply(uint32_t peer, std::string_view told);
  // No connection to the peer: its ranks are served by nobody until it tells something else.
  void away(uint32_t peer);
  // The peer's part is over: its ranks have ended, those that had not left.
  void ended(uint32_t peer);

 private:
  // What a peer knows of a rank.
  struct Known {
    struct Words {
      uint64_t contributed, consumed, device;
      uint32_t state, reserved;
      bool operator==(const Words&) const = default;
    } words{};
    std::array<uint64_t, kSlots> slots{};
    std::array<std::pair<uint64_t, uint32_t>, kLetters> letters{};
  };
  struct Group {
    Group(const std::string& folder, const GroupId& id, uint32_t size, int bell);
    ~Group();
    GroupId id;
    GroupFile file;
    std::vector<std::unique_ptr<Arena>> arenas;
    std::map<uint32_t, std::map<uint32_t, Known>> known;  // peer -> rank
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> received;  // (sender, receiver) -> what the sender's peer was told
    std::atomic<bool> over{false};
    std::thread watcher;
  };
  struct Entry;
  class Teller;
  void find_groups();
  Group& group(const GroupId& id, uint32_t size);
  Arena* arena(Group& group, uint32_t rank, bool make) const;
  bool tell(Group& group, uint32_t peer, Teller& teller);
  bool tell_received(Group& group, uint32_t sender, Teller& teller);
  bool tell_arena(Group& group, uint32_t peer, uint32_t rank, Known& known, Teller& teller);
  void take(uint32_t peer, const Entry& entry, const char* body);
  void leave_all(uint32_t peer, RankState how);
  bool forgotten(const Group& group) const;

  const std::string folder_;
  const uint32_t part_;
  Descriptor bell_, files_, either_;
  std::set<uint32_t> peers_;  // that are told now
  std::set<GroupId> refused_;  // of files that are none of a group
  bool look_again_ = false;
  std::map<GroupId, std::unique_ptr<Group>> groups_;
};

}  // namespace singularity
