// Whether worker and proxy mean the same by an operator: they may run different versions of PyTorch.
#pragma once

#include <ATen/core/function_schema.h>
#include <torch/version.h>

#include <cstdint>
#include <sstream>
#include <string>

namespace singularity {

// Of the operator's name, its arguments with types and defaults, and its results.
inline uint64_t schema_hash(const c10::FunctionSchema& schema) {
  std::ostringstream text;
  text << schema;
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : text.str()) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash ? hash : 1;
}

}  // namespace singularity
