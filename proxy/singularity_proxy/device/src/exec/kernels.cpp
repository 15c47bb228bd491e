#include "kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace singularity {
namespace {

using torch::jit::Stack;

// The arguments begin at `first`.
using Check = void (*)(const c10::IValue* first);

// Of (self, dim, normalization, ...). The kernels count with as many dimensions as they are given, and
// mark each of them in a list that is as long as the tensor has dimensions.
void check_dimensions(const c10::IValue* first) {
  const int64_t rank = first[0].toTensor().dim();
  std::vector<bool> seen(static_cast<size_t>(rank));
  for (const int64_t dim : first[1].toDimVector()) {
    TORCH_CHECK_INDEX(dim >= 0 && dim < rank, "Dimension out of range (a transform of a tensor of ", rank,
                      " dimensions got dimension ", dim, ")");
    TORCH_CHECK(!seen[static_cast<size_t>(dim)], "dim ", dim, " appears multiple times in the list of dims");
    seen[static_cast<size_t>(dim)] = true;
  }
}

// Of (self, dim, normalization, last_dim_size, ...). A smaller result passes for the half of a complex
// one, while the transform writes the whole.
void check_real_result(const c10::IValue* first) {
  check_dimensions(first);
  const auto dims = first[1].toDimVector();
  if (dims.empty()) return;
  const int64_t given = first[0].toTensor().size(dims.back()), wanted = first[3].toInt();
  TORCH_CHECK_VALUE(wanted >= given, "a transform of ", given, " complex numbers does not make ", wanted, " real ones");
}

struct Checked {
  const char* name;
  Check check;
};
constexpr Checked kChecked[] = {
    {"aten::_fft_r2c", &check_dimensions},
    {"aten::_fft_c2c", &check_dimensions},
    {"aten::_fft_c2r", &check_real_result},
};
constexpr c10::DispatchKey kDevices[] = {c10::DispatchKey::CPU, c10::DispatchKey::CUDA};

class Before final : public c10::OperatorKernel {
 public:
  Before(Check check, c10::SafeKernelFunction kernel) : check_(check), kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    check_(stack->data() + (stack->size() - op.schema().arguments().size()));
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  const Check check_;
  const c10::SafeKernelFunction kernel_;
};

// Torch warns when a kernel takes the place of another one.
class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void check_arguments_of_kernels() {
  // Never ended: nothing takes the kernels out again.
  static auto& registered = *new std::vector<c10::RegistrationHandleRAII>();
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const Checked& one : kChecked)
    for (const char* overload : {"", "out"}) {
      const auto op = dispatcher.findSchemaOrThrow(one.name, overload);
      for (const c10::DispatchKey key : kDevices) {
        if (!op.hasKernelForDispatchKey(key)) continue;
        auto before = std::make_unique<Before>(one.check, op.getComputedKernelForDispatchKey(key));
        registered.push_back(dispatcher.registerImpl(op.operator_name(), key,
                                                     c10::KernelFunction::makeFromBoxedFunctor(std::move(before)),
                                                     std::nullopt, nullptr, "checked by the device proxy"));
      }
    }
}

}  // namespace singularity
