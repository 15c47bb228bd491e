// What went wrong in an operation, as it travels to the worker.
#pragma once

#include <c10/util/Exception.h>

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

// A compiled graph that compiles to something else here than its results were described as. It may
// compile as before in the next process.
struct OtherForm : c10::ValueError {
  using c10::ValueError::ValueError;
};

struct Failure {
  Status status = Status::runtime_error;
  std::string text;          // as torch would say it
  std::string origin;        // of a MissingStorage: the first failure, reported before
  bool repeatable = true;    // false: depends on the memory or the compiler there is at that moment
};

Failure describe(const std::exception_ptr& error);

}  // namespace singularity
