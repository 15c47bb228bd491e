#include "rules.h"

#include <algorithm>
#include <mutex>
#include <string_view>

namespace singularity {
namespace {

// Write every element of their first argument (a tensor, or each of a list) and read none.
constexpr std::string_view kFullWriters[] = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_",
                                             "aten::_foreach_zero_"};
// Results hold what the memory held before, or leave a part of it as it was.
constexpr std::string_view kUndefined[] = {"empty", "resize", "new_empty"};
// Change arguments that their schemas say nothing about.
struct Hidden {
  std::string_view name;
  std::string_view arguments[2];
};
constexpr Hidden kHidden[] = {
    {"aten::native_batch_norm", {"running_mean", "running_var"}},
    {"aten::cudnn_batch_norm", {"running_mean", "running_var"}},
    {"aten::miopen_batch_norm", {"running_mean", "running_var"}},
    {"aten::_batch_norm_impl_index", {"running_mean", "running_var"}},
    {"aten::batch_norm", {"running_mean", "running_var"}},
    {"aten::instance_norm", {"running_mean", "running_var"}},
};

template <class List>
bool holds(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}
bool is_undefined(std::string_view name) {
  return std::any_of(std::begin(kUndefined), std::end(kUndefined),
                     [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}
bool is_hidden(std::string_view name, std::string_view argument) {
  return std::any_of(std::begin(kHidden), std::end(kHidden),
                     [&](const Hidden& h) { return h.name == name && holds(h.arguments, argument); });
}
Identity of_text(const std::string& name, const std::string& overload) {
  Mixer mixer;
  mixer.add_bytes(name.data(), name.size());
  mixer.add_bytes(overload.data(), overload.size());
  return mixer.identity();
}

}  // namespace

Rules rules_of(const std::string& name, const std::string& overload, const c10::OperatorHandle& handle) {
  Rules rules;
  rules.function = of_text(name, overload);
  const bool undefined = is_undefined(name);
  rules.unique = undefined || handle.hasTag(at::Tag::nondeterministic_seeded) ||
                 handle.hasTag(at::Tag::nondeterministic_bitwise);
  const auto& arguments = handle.schema().arguments();
  bool writes = false;
  rules.effects.resize(arguments.size(), kReads);
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto* alias = arguments[i].alias_info();
    if (!(alias && alias->isWrite()) && !is_hidden(name, arguments[i].name())) continue;
    writes = true;
    rules.effects[i] = kWrites;
    if (i == 0 && holds(kFullWriters, name)) rules.effects[i] |= kOverwrites;
    if (arguments[i].is_out() && !undefined) rules.effects[i] |= kOverwrites | kOutArgument;
  }
  if (!writes) rules.effects.clear();
  return rules;
}

Rules rules_of_graph(const std::vector<bool>& writes) {
  Rules rules;
  rules.unique = true;
  for (const bool one : writes) rules.effects.push_back(one ? kWrites : kReads);
  if (std::find(writes.begin(), writes.end(), true) == writes.end()) rules.effects.clear();
  return rules;
}

}  // namespace singularity
