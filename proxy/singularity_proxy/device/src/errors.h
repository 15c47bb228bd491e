// What went wrong in an operation, as it travels to the worker.
#pragma once

#include <exception>
#include <string>

#include "wire/records.h"

namespace singularity {

// A tensor that an earlier operation failed to make. `origin` names that operation and its error.
struct MissingStorage : std::exception {
  explicit MissingStorage(std::string what_happened);
  const char* what() const noexcept override { return text.c_str(); }
  std::string origin, text;
};

struct Failure {
  Status status = Status::runtime_error;
  std::string text;          // as torch would say it
  std::string origin;        // of a MissingStorage: the first failure, reported before
  bool repeatable = true;    // false: depends on what else uses the memory at that moment
};

Failure describe(const std::exception_ptr& error);

}  // namespace singularity
