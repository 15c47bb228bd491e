#include "mirror.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "wire/ring.h"

namespace singularity {
namespace {

constexpr int kWatchMs = 100;  // a watcher of a group that is over ends within this

// `home` of a rank that runs in `part`, in the folders of other parts; a proxy's token is odd.
constexpr uint64_t home_in(uint32_t part) { return (uint64_t{part} + 1) << 1; }

bool is_from(const RankWords& words, uint32_t part) { return words.home.load(std::memory_order_acquire) == home_in(part); }

// Whether the rank runs here.
bool is_original(const RankWords& words) {
  if (words.state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::absent)) return false;
  const uint64_t home = words.home.load(std::memory_order_acquire);
  return home == 0 || home & 1;
}

// Devices of other nodes have the same names.
uint64_t device_in(uint32_t part, uint64_t device) { return device ? (device ^ (home_in(part) * 0x9e3779b97f4a7c15ull)) | 1 : 0; }

void raise_word(std::atomic<uint64_t>& word, uint64_t to) {
  if (word.load(std::memory_order_relaxed) < to) word.store(to, std::memory_order_release);
}

uint64_t consumed_by_all(const GroupFile& file) {
  uint64_t least = UINT64_MAX;
  for (uint32_t r = 0; r < file.ranks(); r++)
    if (!file.gone(r)) least = std::min(least, file.rank(r).consumed.load(std::memory_order_acquire));
  return least;
}

void signal(int bell) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(bell, &one, sizeof one);  // full is readable as well
}

}  // namespace

// One thing that is told; `bytes` more follow it. Both ends have the same byte order, as process images have.
struct Mirror::Entry {
  enum class What : uint32_t { words = 1, contribution = 2, letter = 3, received = 4 };
  What what;
  uint32_t size;  // of the group
  std::array<uint8_t, 16> id;
  uint32_t rank, to;  // of a letter: who sent it, and to whom
  uint64_t seq, bytes;
};

class Mirror::Teller {
 public:
  explicit Teller(uint64_t most) : most_(most) {}
  bool full() const { return told.size() >= most_; }
  void add(const Group& group, Entry::What what, uint32_t rank, uint32_t to, uint64_t seq, const void* body, uint64_t bytes) {
    const Entry entry{what, group.file.ranks(), group.id, rank, to, seq, bytes};
    told.append(reinterpret_cast<const char*>(&entry), sizeof entry);
    told.append(static_cast<const char*>(body), bytes);
  }
  std::string told;

 private:
  uint64_t most_;
};

// ---- groups

Mirror::Group::Group(const std::string& folder, const GroupId& group_id, uint32_t size, int bell)
    : id(group_id), file(folder, group_id, size), arenas(size) {
  const SignalsBlocked blocked;
  watcher = std::thread([this, bell] {
    uint32_t seen = file.bell().load(std::memory_order_acquire);
    signal(bell);
    while (!over.load()) {
      futex_wait(file.bell(), seen, kWatchMs);
      if (const uint32_t now = file.bell().load(std::memory_order_acquire); now != seen) {
        seen = now;
        signal(bell);
      }
    }
  });
}
Mirror::Group::~Group() {
  over.store(true);
  file.ring();  // it ends at once
  watcher.join();
}

Mirror::Mirror(std::string folder, uint32_t part)
    : folder_(std::move(folder)), part_(part), bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      files_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), either_(::epoll_create1(EPOLL_CLOEXEC)) {
  for (const Descriptor* one : {&bell_, &files_}) {
    epoll_event readable{};
    readable.events = EPOLLIN;
    if (::epoll_ctl(either_.get(), EPOLL_CTL_ADD, one->get(), &readable)) throw FileError(errno, "cannot watch", folder_);
  }
  if (::inotify_add_watch(files_.get(), folder_.c_str(), IN_CREATE | IN_ONLYDIR) < 0) throw FileError(errno, "cannot watch", folder_);
  find_groups();
}
Mirror::~Mirror() = default;

// The files of groups that were made since.
void Mirror::find_groups() {
  struct Close {
    void operator()(DIR* folder) const { ::closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> folder(::opendir(folder_.c_str()));
  if (!folder) throw FileError(errno, "cannot look into", folder_);
  while (const dirent* entry = ::readdir(folder.get())) {
    GroupId id;
    if (std::strlen(entry->d_name) != 6 + 2 * id.size() || std::strncmp(entry->d_name, "group-", 6)) continue;
    bool named = true;
    for (size_t i = 0; i < id.size(); i++) {
      unsigned byte = 0;
      named = named && std::sscanf(entry->d_name + 6 + 2 * i, "%2x", &byte) == 1;
      id[i] = static_cast<uint8_t>(byte);
    }
    if (!named || groups_.count(id) || refused_.count(id)) continue;
    try {
      GroupHeader header;
      const std::string path = folder_ + "/" + entry->d_name;
      const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (fd.get() < 0) throw FileError(errno, "cannot open", path);
      read_exactly(fd.get(), path, &header, sizeof header, 0);
      if (header.size == 0 || header.size > kMaxRanks) throw StateError(path + " is not the file of a process group");
      group(id, header.size);
    } catch (const FileError& error) {
      // Removed just now, or there is no room for it yet: then it is tried again.
      if (error.number != ENOENT) look_again_ = true;
    } catch (const StateError&) {
      refused_.insert(id);  // something else that user code has put there
    }
  }
}

Mirror::Group& Mirror::group(const GroupId& id, uint32_t size) {
  std::unique_ptr<Group>& found = groups_[id];
  try {
    if (!found) found = std::make_unique<Group>(folder_, id, size, bell_.get());
  } catch (...) {
    groups_.erase(id);
    throw;
  }
  if (found->file.ranks() != size)
    throw StateError("ranks of one process group say that it has " + std::to_string(found->file.ranks()) + " and " +
                     std::to_string(size) + " ranks");
  if (found->file.damaged()) throw StateError("a file through which ranks exchange data was shortened while it was in use");
  return *found;
}

// nullptr: the rank brought nothing yet.
Arena* Mirror::arena(Group& group, uint32_t rank, bool make) const {
  std::unique_ptr<Arena>& arena = group.arenas[rank];
  if (!arena) try {
      arena = std::make_unique<Arena>(group.file.arena_path(rank), group.file.ranks(), make);
    } catch (const FileError& error) {
      if (make || error.number != ENOENT) throw;
    }
  if (arena && arena->damaged()) throw StateError("a file through which ranks exchange data was shortened while it was in use");
  return arena.get();
}

void Mirror::rung() {
  uint64_t times;
  [[maybe_unused]] ssize_t got = ::read(bell_.get(), &times, sizeof times);
  alignas(inotify_event) char made[4096];
  bool found = look_again_;
  while (::read(files_.get(), made, sizeof made) > 0) found = true;
  std::erase_if(groups_, [this](const auto& one) { return forgotten(*one.second); });  // one of the same name may be new
  look_again_ = false;
  if (found) find_groups();
}

// Whether nobody takes part any more, and the peers know.
bool Mirror::forgotten(const Group& group) const {
  bool anybody = false, original = false;
  for (uint32_t r = 0; r < group.file.ranks(); r++) {
    const RankWords& words = group.file.rank(r);
    if (group.file.state(r) == RankState::absent) continue;
    anybody = true;
    if (!group.file.gone(r)) return false;
    if (!is_original(words)) continue;
    original = true;
    for (const uint32_t peer : peers_) {
      const auto at = group.known.find(peer);
      if (at == group.known.end()) return false;
      const auto of = at->second.find(r);
      if (of == at->second.end() || of->second.words.state != words.state.load()) return false;
    }
  }
  return anybody && (!original || !peers_.empty());
}

// ---- telling

void Mirror::forget(uint32_t peer) {
  peers_.insert(peer);
  for (auto& [id, group] : groups_) {
    group->known.erase(peer);
    std::erase_if(group->received, [&](const auto& one) { return is_from(group->file.rank(one.first.first), peer); });
  }
}

std::string Mirror::changes(uint32_t peer, uint64_t most) {
  Teller teller(most);
  for (auto& [id, group] : groups_)
    if (!tell(*group, peer, teller)) break;
  return std::move(teller.told);
}

// False: there is more.
bool Mirror::tell(Group& group, uint32_t peer, Teller& teller) {
  const uint32_t size = group.file.ranks();
  bool takes_part = false;
  std::vector<std::pair<uint32_t, Known::Words>> originals;
  for (uint32_t r = 0; r < size; r++) {
    const RankWords& words = group.file.rank(r);
    if (is_original(words))
      originals.push_back({r,
                           {words.contributed.load(std::memory_order_acquire), words.consumed.load(std::memory_order_acquire),
                            words.device.load(std::memory_order_acquire), words.state.load(std::memory_order_acquire), 0}});
    if (!is_from(words, peer)) continue;
    takes_part = true;
    if (!tell_received(group, r, teller)) return false;
  }
  std::map<uint32_t, Known>& known = group.known[peer];
  if (takes_part)  // a sum in the arena of one is what several brought, so all arenas come before all words
    for (const auto& [r, now] : originals)
      if (!tell_arena(group, peer, r, known[r], teller)) return false;
  for (const auto& [r, now] : originals) {
    if (now == known[r].words) continue;
    if (teller.full()) return false;
    teller.add(group, Entry::What::words, r, 0, 0, &now, sizeof now);
    known[r].words = now;
  }
  return true;
}

// Which messages of a rank of a peer were received here.
bool Mirror::tell_received(Group& group, uint32_t sender, Teller& teller) {
  Arena* theirs = arena(group, sender, false);
  for (uint32_t to = 0; theirs && to < group.file.ranks(); to++) {
    if (!is_original(group.file.rank(to))) continue;
    const uint64_t now = theirs->mail(to).received.load(std::memory_order_acquire);
    uint64_t& told = group.received[{sender, to}];
    if (now <= told) continue;
    if (teller.full()) return false;
    teller.add(group, Entry::What::received, sender, to, now, nullptr, 0);
    told = now;
  }
  return true;
}

// What lies in the arena of a rank. The writer gives none of it up meanwhile that the peer lacks: what peers
// have consumed and received is in the files here by this thread alone.
bool Mirror::tell_arena(Group& group, uint32_t peer, uint32_t rank, Known& known, Teller& teller) {
  Arena* mine = arena(group, rank, false);
  if (!mine) return true;
  for (uint32_t i = 0; i < kSlots; i++) {
    const uint64_t seq = mine->collective_in(i);
    if (seq == known.slots[i]) continue;
    if (seq) {
      if (teller.full()) return false;
      uint64_t bytes = 0;
      const char* from = mine->find(seq, bytes);
      if (!from) continue;
      teller.add(group, Entry::What::contribution, rank, 0, seq, from, bytes);
    }
    known.slots[i] = seq;
  }
  struct Untold {
    uint64_t seq;
    uint32_t to, place;
  };
  std::vector<Untold> letters;
  for (uint32_t i = 0; i < kLetters; i++) {
    const auto [seq, to] = mine->letter_in(i);
    if (std::pair{seq, to} == known.letters[i]) continue;
    const bool one = seq && to < group.file.ranks();
    if (one && is_from(group.file.rank(to), peer)) letters.push_back({seq, to, i});
    else if (!one || group.file.state(to) != RankState::absent) known.letters[i] = {seq, to};  // else: it is not known where
  }
  std::sort(letters.begin(), letters.end(), [](const Untold& a, const Untold& b) { return a.seq < b.seq; });
  for (const auto& [seq, to, place] : letters) {
    if (teller.full()) return false;
    uint64_t bytes = 0;
    const char* from = mine->find_letter(seq, to, bytes);
    if (!from) continue;
    teller.add(group, Entry::What::letter, rank, to, seq, from, bytes);
    known.letters[place] = {seq, to};
  }
  return true;
}

// ---- being told

void Mirror::apply(uint32_t peer, std::string_view told) {
  if (peer >= kMaxParts || peer == part_) throw StateError("there is no part " + std::to_string(peer) + " beside this one");
  for (size_t at = 0; at < told.size();) {
    Entry entry;
    if (told.size() - at < sizeof entry) throw StateError("what part " + std::to_string(peer) + " told ends too early");
    std::memcpy(&entry, told.data() + at, sizeof entry);
    at += sizeof entry;
    if (entry.bytes > told.size() - at) throw StateError("what part " + std::to_string(peer) + " told ends too early");
    take(peer, entry, told.data() + at);
    at += entry.bytes;
  }
}

void Mirror::take(uint32_t peer, const Entry& entry, const char* body) {
  if (entry.size == 0 || entry.size > kMaxRanks || entry.rank >= entry.size || entry.to >= entry.size)
    throw StateError("part " + std::to_string(peer) + " told of a rank that cannot be");
  if (entry.what == Entry::What::received && !groups_.count(entry.id)) return;  // nobody here is in it any more
  Group& one = group(entry.id, entry.size);
  RankWords& words = one.file.rank(entry.rank);
  if (entry.what == Entry::What::received) {
    if (!is_original(words) || !is_from(one.file.rank(entry.to), peer))
      throw StateError("part " + std::to_string(peer) + " received what it cannot have received");
    if (Arena* mine = arena(one, entry.rank, false)) raise_word(mine->mail(entry.to).received, entry.seq);
    return one.file.ring();
  }
  const uint64_t home = words.home.load(std::memory_order_acquire);
  if (home != home_in(peer)) {
    if (home || words.state.load() != static_cast<uint32_t>(RankState::absent))
      throw StateError("rank " + std::to_string(entry.rank) + " of a process group runs in part " + std::to_string(peer) +
                       " and elsewhere: each rank has one place");
    words.home.store(home_in(peer), std::memory_order_release);  // it is absent until its words come
  }
  switch (entry.what) {
    case Entry::What::words: {
      Known::Words now;
      if (entry.bytes != sizeof now) throw StateError("part " + std::to_string(peer) + " told of a rank in another form");
      std::memcpy(&now, body, sizeof now);
      if (now.state > static_cast<uint32_t>(RankState::died)) throw StateError("part " + std::to_string(peer) + " told of a rank in no state");
      raise_word(words.contributed, now.contributed);
      raise_word(words.consumed, now.consumed);
      words.device.store(device_in(peer, now.device), std::memory_order_release);
      words.state.store(now.state, std::memory_order_release);
      bool over = true;  // who comes late learns that the others are gone
      for (uint32_t r = 0; r < entry.size; r++) over &= one.file.gone(r);
      if (over) one.file.remove();
      break;
    }
    case Entry::What::contribution: {
      Arena& theirs = *arena(one, entry.rank, true);
      const uint64_t consumed = consumed_by_all(one.file);
      if (theirs.collective_in(entry.seq % kSlots) >= entry.seq || entry.seq <= consumed) break;  // told before
      // That the writer uses a place again says as well that all have consumed what was in it.
      theirs.free_consumed(std::max(consumed, entry.seq > kSlots ? entry.seq - kSlots : 0));
      char* place = theirs.open(entry.seq, kMaxRanks, entry.bytes);
      if (!place) throw StateError("part " + std::to_string(peer) + " told of a collective out of turn");
      std::memcpy(place, body, entry.bytes);
      theirs.close();
      break;
    }
    case Entry::What::letter: {
      if (!is_original(one.file.rank(entry.to))) break;
      Arena& theirs = *arena(one, entry.rank, true);
      if (theirs.has_letter(entry.seq, entry.to) || entry.seq <= theirs.mail(entry.to).received.load()) break;  // told before
      theirs.free_consumed(0);
      char* place = theirs.open(entry.seq, entry.to, entry.bytes);
      if (!place) throw StateError("part " + std::to_string(peer) + " sent more messages than were received");
      std::memcpy(place, body, entry.bytes);
      theirs.close();
      break;
    }
    default: throw StateError("part " + std::to_string(peer) + " told something unknown");
  }
  one.file.ring();
}

void Mirror::away(uint32_t peer) {
  peers_.erase(peer);
  leave_all(peer, RankState::away);
}

void Mirror::ended(uint32_t peer) {
  peers_.erase(peer);
  leave_all(peer, RankState::died);
}

void Mirror::leave_all(uint32_t peer, RankState how) {
  for (auto& [id, group] : groups_) {
    bool changed = false;
    for (uint32_t r = 0; r < group->file.ranks(); r++) {
      RankWords& words = group->file.rank(r);
      const RankState state = group->file.state(r);
      if (!is_from(words, peer) || group->file.gone(r) || state == how || state == RankState::absent) continue;
      words.state.store(static_cast<uint32_t>(how), std::memory_order_release);
      changed = true;
    }
    if (changed) group->file.ring();
  }
}

}  // namespace singularity
