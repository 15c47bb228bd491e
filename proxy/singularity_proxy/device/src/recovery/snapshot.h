// The state of one ring in one file.
//
//   0  u64 magic "SINGSNAP"   8 u32 version   12 u32 device type (0 cpu, 1 cuda)
//   16 u64 seq (last executed record)   24 u64 ring clock (ns)   32 u64 table bytes
//   40 u64 data offset   48 u64 file bytes   56 u64 table checksum (FNV-1a 64)
//   64 table, then padding, then the storages' bytes at the offsets that the table names
//
// Table: u64 n, n x {u64 id, u64 bytes, u64 offset in the file, u32 on host, u32 0}      storages, by id
//        u32 n, n x {u32 name bytes, u32 overload bytes, u64 schema hash, name, overload} operators
//        u32 n, n x {u64 id, u32 bytes, state}                                           generators
//        u32 n, n x {u64 id, u64 ns}                                                     events
//        u32 n, n x {u64 first id, u32 bytes, text}                                      failed operations
//        u64 seq, u32 bytes, reply                                                       pending reply
//        56 bytes Settings, u64 bytes that the worker may use                            settings
//        u32 n, n x {u32 number, 16 bytes id, u32 rank, u32 size, u64 timeout in ms,
//          u32 bytes, name, u64 contributed, u64 consumed, 2 x (sent, received):
//          u32 n, n x {u32 other rank, u64 messages}}        process groups (may be missing)
// checkpoint/device/state.py reads the same format.
#pragma once

#include <cstdint>
#include <string>

#include "files.h"
#include "device/src/memory/state.h"

namespace singularity {

constexpr uint64_t kSnapshotMagic = 0x50414e53474e4953ull;  // "SINGSNAP" in the file
constexpr uint32_t kSnapshotVersion = 1;

struct SnapshotHeader {
  uint64_t magic;
  uint32_t version, device_type;
  uint64_t seq, clock_ns, table_bytes, data_offset, file_bytes, checksum;
};
static_assert(sizeof(SnapshotHeader) == 64);

// A snapshot that is written but not yet in its place, so that those of several rings appear together.
class Snapshot {
 public:
  struct Options {
    bool durable = false;
    bool reuse = false;  // the memory of the spare that an earlier `commit` kept
  };
  // Throws FileError; then nothing is left behind.
  Snapshot(const State& state, uint64_t clock_ns, const std::string& path, Options options);
  // `spare`: the snapshot that it replaces stays in the place of the temporary file.
  void commit(uint64_t spare = 0);
  uint64_t bytes() const { return bytes_; }

 private:
  static uint64_t expected_bytes(const State& state);
  NewFile file_;
  bool durable_;
  uint64_t bytes_ = 0;
};

struct Restored {
  uint64_t bytes = 0, clock_ns = 0;
};

// Fills an empty state. `room` bytes at most may be allocated (0: no limit). Throws FileError,
// StateError, Refused when it is too large for the device.
Restored load_snapshot(State& state, const std::string& path, uint64_t room);
bool snapshot_exists(const std::string& path);
// The state is unchanged since the snapshot, but records that changed nothing went by.
void advance_snapshot(const std::string& path, uint64_t seq);

}  // namespace singularity
