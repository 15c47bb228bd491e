// Arguments of a call that a record cannot carry, and that CUDA takes all the same.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include "operators.h"

namespace singularity {

// Brings them to the device of the call: host tensors of more bytes than a record has room for, and the
// state of another virtual device's generator, which draws here and goes back.
class Guests {
 public:
  Guests(const Operator& op, torch::jit::Stack& stack);
  void go_home();  // after the call

 private:
  at::Generator owner_, guest_;
};

}  // namespace singularity
