#include "snapshot.h"

#include <ATen/EmptyTensor.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/src/exec/reader.h"
#include "device/src/memory/swap.h"
#include "wire/records.h"

namespace singularity {
namespace {

// Between device and file, piece by piece: one is copied while the one before is written.
constexpr uint64_t kTransferBytes = 16 << 20;
constexpr size_t kTransferSlots = 3;
constexpr uint64_t kSmallBytes = 16 << 10;     // shorter storages are read and written together
constexpr uint64_t kWindowBytes = 1 << 20;

// Reads small pieces of a file that lie close together.
class Window {
 public:
  Window(int fd, const std::string& path, uint64_t file_bytes) : fd_(fd), path_(path), end_(file_bytes) {}
  const char* at(uint64_t offset, uint64_t bytes) {
    if (bytes > end_ || offset > end_ - bytes) throw StateError(path_ + " is damaged");
    if (offset < from_ || offset + bytes > from_ + size_) {
      if (!data_) data_.reset(new char[kWindowBytes]);
      from_ = offset;
      size_ = std::min(kWindowBytes, end_ - offset);
      read_exactly(fd_, path_, data_.get(), size_, offset);
    }
    return data_.get() + (offset - from_);
  }

 private:
  const int fd_;
  const std::string& path_;
  const uint64_t end_;
  uint64_t from_ = 0, size_ = 0;
  std::unique_ptr<char[]> data_;
};

uint64_t aligned(uint64_t position, uint64_t bytes) {
  const uint64_t alignment = bytes >= 65536 ? 4096 : 64;
  return (position + alignment - 1) & ~(alignment - 1);
}

uint64_t checksum(const char* p, size_t n) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < n; i++) h = (h ^ static_cast<uint8_t>(p[i])) * 0x100000001b3ull;
  return h;
}

void put_text(Buffer& out, const std::string& text) {
  out.put<uint32_t>(static_cast<uint32_t>(text.size()));
  out.put_bytes(text.data(), text.size());
}
std::string get_text(Reader& in) {
  const auto n = in.get<uint32_t>();
  return std::string(in.bytes(n), n);
}

struct Entry {
  uint64_t id;
  const c10::Storage* storage;
  uint64_t offset;
  bool alias;  // the bytes belong to an earlier entry
  bool shared; // for as long as nobody writes: each has bytes of its own in the file
};

std::vector<Entry> sorted_storages(const State& state) {
  std::vector<Entry> entries;
  entries.reserve(state.storages.size());
  for (const auto& [id, entry] : state.storages) entries.push_back({id, &entry.storage, 0, false, entry.place.shared()});
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  return entries;
}

// Everything but the storages' bytes; their offsets count from `data_offset` 0.
void write_table(const State& state, const std::vector<Entry>& entries, Buffer& out) {
  out.put<uint64_t>(entries.size());
  for (const Entry& e : entries) {
    out.put<uint64_t>(e.id);
    out.put<uint64_t>(e.storage->nbytes());
    out.put<uint64_t>(e.offset);
    out.put<uint32_t>(e.storage->device() != state.device);
    out.put<uint32_t>(0);
  }
  out.put<uint32_t>(static_cast<uint32_t>(state.ops.size()));
  for (const OperatorEntry& op : state.ops) {
    out.put<uint32_t>(static_cast<uint32_t>(op.name.size()));
    out.put<uint32_t>(static_cast<uint32_t>(op.overload.size()));
    out.put<uint64_t>(op.schema);
    out.put_bytes(op.name.data(), op.name.size());
    out.put_bytes(op.overload.data(), op.overload.size());
  }
  out.put<uint32_t>(static_cast<uint32_t>(state.generators.size()));
  for (const auto& [id, generator] : state.generators) {
    at::Generator g = generator;
    std::lock_guard<std::mutex> lock(g.mutex());
    const at::Tensor saved = g.get_state();
    out.put<uint64_t>(id);
    out.put<uint32_t>(static_cast<uint32_t>(saved.nbytes()));
    out.put_bytes(saved.const_data_ptr(), saved.nbytes());
  }
  out.put<uint32_t>(static_cast<uint32_t>(state.events.size()));
  for (const auto& [id, ns] : state.events) {
    out.put<uint64_t>(id);
    out.put<uint64_t>(ns);
  }
  out.put<uint32_t>(static_cast<uint32_t>(state.failed.size()));
  for (const auto& [id, origin] : state.failed) {
    out.put<uint64_t>(id);
    put_text(out, origin);
  }
  out.put<uint64_t>(state.pending_seq);
  put_text(out, state.pending_reply);
  out.put_bytes(state.settings->bytes.data(), sizeof(Settings));
  out.put<uint64_t>(state.memory_limit);
  out.put<uint32_t>(static_cast<uint32_t>(state.groups.size()));
  for (const auto& [number, group] : state.groups) {
    out.put<uint32_t>(number);
    out.put_bytes(group.id.data(), group.id.size());
    out.put<uint32_t>(group.rank);
    out.put<uint32_t>(group.size);
    out.put<uint64_t>(group.timeout_ms);
    put_text(out, group.name);
    out.put<uint64_t>(group.contributed);
    out.put<uint64_t>(group.consumed);
    for (const auto* messages : {&group.sent, &group.received}) {
      out.put<uint32_t>(static_cast<uint32_t>(messages->size()));
      for (const auto& [peer, count] : *messages) {
        out.put<uint32_t>(peer);
        out.put<uint64_t>(count);
      }
    }
  }
  for (const auto& [number, group] : state.groups) out.put<uint32_t>(static_cast<uint32_t>(group.order));
}

void read_table(State& state, Reader& in) {
  for (auto n = in.get<uint32_t>(), i = uint32_t{0}; i < n; i++) {
    const auto name_bytes = in.get<uint32_t>(), overload_bytes = in.get<uint32_t>();
    const auto schema = in.get<uint64_t>();
    std::string name(in.bytes(name_bytes), name_bytes), overload(in.bytes(overload_bytes), overload_bytes);
    if (!name.empty()) state.define(i, std::move(name), std::move(overload), schema);
  }
  for (auto n = in.get<uint32_t>(); n; n--) {
    const auto id = in.get<uint64_t>();
    const auto bytes = in.get<uint32_t>();
    state.set_generator(id, in.bytes(bytes), bytes);
  }
  for (auto n = in.get<uint32_t>(); n; n--) {
    const auto id = in.get<uint64_t>();
    state.events[id] = in.get<uint64_t>();
  }
  for (auto n = in.get<uint32_t>(); n; n--) {
    const auto id = in.get<uint64_t>();
    state.failed[id] = get_text(in);
  }
  state.pending_seq = in.get<uint64_t>();
  state.pending_reply = get_text(in);
  Settings settings;
  std::memcpy(settings.bytes.data(), in.bytes(sizeof(settings)), sizeof(settings));
  state.settings = remember(settings);
  state.memory_limit = in.get<uint64_t>();
  if (!in.left()) return;  // of a version that knew no groups
  for (auto n = in.get<uint32_t>(); n; n--) {
    GroupState& group = state.groups[in.get<uint32_t>()];
    std::memcpy(group.id.data(), in.bytes(group.id.size()), group.id.size());
    group.rank = in.get<uint32_t>();
    group.size = in.get<uint32_t>();
    group.timeout_ms = in.get<uint64_t>();
    group.name = get_text(in);
    group.contributed = in.get<uint64_t>();
    group.consumed = in.get<uint64_t>();
    for (auto* messages : {&group.sent, &group.received})
      for (auto count = in.get<uint32_t>(); count; count--) {
        const auto peer = in.get<uint32_t>();
        (*messages)[peer] = in.get<uint64_t>();
      }
  }
  if (!in.left()) return;  // of a version that knew one order of reductions
  for (auto& [number, group] : state.groups) group.order = static_cast<FoldOrder>(in.get<uint32_t>());
}

}  // namespace

uint64_t Snapshot::expected_bytes(const State& state) {
  uint64_t sum = 0;
  for (const auto& [id, entry] : state.storages) sum += entry.storage.nbytes();
  return sum;
}

Snapshot::Snapshot(const State& state, uint64_t clock_ns, const std::string& path, Options options)
    : file_(path, expected_bytes(state), options.reuse), durable_(options.durable) {
  std::vector<Entry> entries = sorted_storages(state);
  std::unordered_map<const void*, uint64_t> seen;
  Buffer table(1 << 16);
  write_table(state, entries, table);  // for its length: the offsets follow from it
  SnapshotHeader header{};
  header.data_offset = (sizeof(header) + table.size() + 4095) & ~uint64_t{4095};
  uint64_t position = header.data_offset;
  // Small ones first: together they are one write, and so are many page faults less.
  for (const bool small : {true, false})
    for (Entry& e : entries) {
      if (small != (e.storage->nbytes() < kSmallBytes)) continue;
      const void* const holder = e.shared ? static_cast<const void*>(e.storage) : e.storage->unsafeGetStorageImpl();
      const auto [first, fresh] = seen.try_emplace(holder, 0);
      if (fresh) {
        position = aligned(position, e.storage->nbytes());
        first->second = position;
        position += e.storage->nbytes();
      }
      e.offset = first->second;
      e.alias = !fresh;
    }
  table.clear();
  write_table(state, entries, table);
  header.magic = kSnapshotMagic;
  header.version = kSnapshotVersion;
  header.device_type = state.device.is_cpu() ? 0 : 1;
  header.seq = state.seq;
  header.clock_ns = clock_ns;
  header.table_bytes = table.size();
  header.file_bytes = position;
  header.checksum = checksum(table.data(), table.size());
  file_.write(&header, sizeof(header));
  file_.write(table.data(), table.size());
  for (const Entry& e : entries) {
    if (e.alias || e.storage->nbytes() >= kSmallBytes) continue;
    file_.pad_to(e.offset);
    char small[kSmallBytes];
    copy_to_host(*e.storage, 0, e.storage->nbytes(), small);
    file_.write(small, e.storage->nbytes());
  }
  const int fd = file_.flushed(header.file_bytes);
  std::vector<Piece> pieces;
  std::unique_ptr<Stage> stage;
  for (const Entry& e : entries) {
    const uint64_t bytes = e.storage->nbytes();
    if (e.alias || bytes < kSmallBytes) continue;
    if (const char* from = Swap::readable(*e.storage)) {
      pieces.push_back({const_cast<char*>(from), e.offset, bytes});
      continue;
    }
    if (!stage) stage = std::make_unique<Stage>(state.device, kTransferSlots, kTransferBytes);
    stage->fetch(*e.storage, 0, bytes, [&](char* from, uint64_t at, uint64_t n) {
      transfer(fd, file_.temporary(), {{from, e.offset + at, n}}, true);
    });
  }
  transfer(fd, file_.temporary(), pieces, true);
  file_.finish(durable_);
  bytes_ = header.file_bytes;
}

void Snapshot::commit(uint64_t spare) { file_.commit(durable_, spare); }

bool snapshot_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void advance_snapshot(const std::string& path, uint64_t seq) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (fd.get() < 0 || ::pwrite(fd.get(), &seq, sizeof(seq), offsetof(SnapshotHeader, seq)) != sizeof(seq))
    throw FileError(errno, "cannot update", path);
}

Restored load_snapshot(State& state, const std::string& path, uint64_t room) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (fd.get() < 0) throw FileError(errno, "cannot open", path);
  struct stat info;
  if (::fstat(fd.get(), &info)) throw FileError(errno, "cannot open", path);
  SnapshotHeader header;
  read_exactly(fd.get(), path, &header, sizeof(header), 0);
  if (header.magic != kSnapshotMagic || header.version != kSnapshotVersion)
    throw StateError(path + " is not a device state of version " + std::to_string(kSnapshotVersion));
  if (header.file_bytes > static_cast<uint64_t>(info.st_size) || header.file_bytes < sizeof(header) ||
      header.table_bytes > header.file_bytes - sizeof(header))
    throw StateError(path + " is cut short, so the device state in it is not complete");
  const uint32_t device_type = state.device.is_cpu() ? 0 : 1;
  if (header.device_type != device_type)
    throw Refused(std::string("this state is of a ") + (header.device_type ? "cuda" : "cpu") +
                  " device and cannot continue on " + state.device.str());
  std::string table(header.table_bytes, '\0');
  read_exactly(fd.get(), path, table.data(), table.size(), sizeof(header));
  if (checksum(table.data(), table.size()) != header.checksum) throw StateError(path + " is damaged");

  Reader in(table.data(), table.data() + table.size());
  const auto count = in.get<uint64_t>();
  uint64_t total = 0;
  {
    Reader ahead = in;
    for (uint64_t i = 0; i < count; i++) {
      ahead.get<uint64_t>();
      const auto bytes = ahead.get<uint64_t>(), offset = ahead.get<uint64_t>();
      ahead.bytes(8);
      if (offset > header.file_bytes || bytes > header.file_bytes - offset ||
          __builtin_add_overflow(total, bytes, &total))
        throw StateError(path + " is damaged");
    }
  }
  if (room && total > room)
    throw Refused("the session's " + std::to_string(total) + " bytes of device memory do not fit the " +
                  std::to_string(room) + " bytes that are free on this device");
  std::unordered_map<uint64_t, c10::Storage> by_offset;
  std::vector<Piece> pieces;
  std::unique_ptr<Stage> stage;
  Window window(fd.get(), path, header.file_bytes);
  for (uint64_t i = 0; i < count; i++) {
    const auto id = in.get<uint64_t>(), bytes = in.get<uint64_t>(), offset = in.get<uint64_t>();
    const bool on_host = in.get<uint32_t>();
    in.get<uint32_t>();
    if (const auto shared = by_offset.find(offset); bytes && shared != by_offset.end()) {
      state.storages[id] = shared->second;
      continue;
    }
    c10::Storage storage;
    if (on_host) {
      c10::Allocator* host = c10::GetAllocator(c10::kCPU);
      storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes), host->allocate(bytes), host, true);
    } else {
      storage = state.make_storage(bytes);
    }
    if (bytes < kSmallBytes) {
      copy_from_host(storage, 0, bytes, window.at(offset, bytes));
    } else if (storage.device().is_cpu()) {
      pieces.push_back({static_cast<char*>(storage.mutable_data()), offset, bytes});
    } else {
      if (!stage) stage = std::make_unique<Stage>(state.device, kTransferSlots, kTransferBytes);
      stage->send(storage, 0, bytes, [&](char* to, uint64_t at, uint64_t n) {
        transfer(fd.get(), path, {{to, offset + at, n}}, false);
      });
    }
    if (bytes) by_offset[offset] = storage;
    state.storages[id] = std::move(storage);
  }
  transfer(fd.get(), path, pieces, false);
  read_table(state, in);
  state.seq = header.seq;
  return {total, header.clock_ns};
}

}  // namespace singularity
