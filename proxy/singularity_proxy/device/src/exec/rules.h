// What an operator does to identities, as far as its name and schema tell.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/src/ranks/identity.h"

namespace singularity {

// Of one argument.
enum Effect : uint8_t {
  kReads = 0,
  kWrites = 1,      // its storage holds other bytes afterwards
  kOverwrites = 2,  // with kWrites: a tensor that is all of its storage keeps nothing of what was there
  kOutArgument = 4, // with kOverwrites: `out=`, true only if the operator leaves the tensor its size
};

struct Rules {
  Identity function;             // of name and overload
  std::vector<uint8_t> effects;  // by argument; empty: it writes nothing
  bool unique = false;           // the bytes of its results do not follow from its arguments

  uint8_t effect(size_t argument) const { return argument < effects.size() ? effects[argument] : uint8_t{kReads}; }
};

// Called once per definition of an operator.
Rules rules_of(const std::string& name, const std::string& overload, const c10::OperatorHandle& handle);
// Of a graph that torch.compile captured: which arguments it writes, and no more.
Rules rules_of_graph(const std::vector<bool>& writes);


}  // namespace singularity
