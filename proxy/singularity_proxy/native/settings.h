// torch's process-wide settings that decide what operators compute: the default dtype, deterministic
// algorithms, precision of float32 matrix products, choices between libraries and attention kernels.
// User code sets them in the worker; operators run in the proxy. So the worker sends them, in order
// with the operators (Kind::settings), and the proxy computes each ring's operators under its own.
#pragma once

#include <array>
#include <cstdint>

namespace singularity {

// One byte per setting, in the order of settings.cpp: its value + 1, or 0 where it is not known.
struct Settings {
  std::array<uint8_t, 56> bytes{};
  bool operator==(const Settings&) const = default;
  auto operator<=>(const Settings&) const = default;
};
static_assert(sizeof(Settings) == 56);

Settings current_settings();  // of this process
// Makes them this process's. What its torch has no use for (a library it was built without) is left
// as it is, as are bytes that are no setting.
void apply_settings(const Settings& settings);

}  // namespace singularity
