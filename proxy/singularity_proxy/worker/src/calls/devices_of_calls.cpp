#include "devices_of_calls.h"

#include <set>

namespace singularity {
namespace {

bool ends(const std::string& text, const char* with) {
  const std::string tail(with);
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

std::string base_name(const c10::OperatorHandle& handle) {
  const std::string& name = handle.schema().name();
  return name.substr(name.find("::") + 2);
}

}  // namespace

std::string functional_name(const c10::OperatorHandle& handle) {
  std::string base = base_name(handle);
  if (base.size() > 1 && base.back() == '_' && !ends(base, "__")) base.pop_back();
  return base;
}

bool checked_by_iterator(const c10::OperatorHandle& handle) {
  // Of native_functions.yaml: several tensors, `device_check: NoCheck`, and not tagged as pointwise.
  static const std::set<std::string> kIterators = {
      "bernoulli", "binary_cross_entropy", "copysign", "fill", "floor_divide", "index", "_index_put_impl", "index_put",
      "_unsafe_index", "_unsafe_index_put", "where", "heaviside", "rsub", "masked_fill", "index_fill", "eq", "ne", "ge",
      "le", "gt", "lt", "__irshift__", "mse_loss", "smooth_l1_loss", "glu", "poisson", "binomial", "normal", "lerp",
      "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid_forward", "softplus",
      "softshrink", "threshold", "std", "var"};
  // Tagged as pointwise, and yet compared by their wrapper.
  static const std::set<std::string> kWrapped = {"clamp", "clamp_min", "clamp_max", "gcd", "lcm", "logaddexp", "logaddexp2"};
  const std::string base = functional_name(handle);
  if (base.rfind("_foreach", 0) == 0 || base.rfind("_fused", 0) == 0) return true;
  if (kWrapped.count(base)) return false;
  return kIterators.count(base) || handle.hasTag(at::Tag::pointwise);
}

bool sizes_its_outputs(const c10::OperatorHandle& handle) {
  // Of native_functions.yaml: structured, `device_check: NoCheck`, and not pointwise.
  static const std::set<std::string> kReductions = {"all", "any", "aminmax", "cumprod", "cumsum", "max", "mean", "min",
                                                    "norm", "prod", "renorm", "sum"};
  return kReductions.count(base_name(handle)) > 0;
}

std::string wrapper_name(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  const std::string base = base_name(handle), overload = schema.overload_name();
  const auto& arguments = schema.arguments();
  const std::string function = !arguments.empty() && arguments.back().is_out() ? base + "_out" : base;
  // Structured kernels have generated functional variants, and another way of naming their wrappers.
  const auto functional = c10::Dispatcher::singleton().findSchema({schema.name(), ""});
  const bool structured =
      handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      (functional && functional->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
  if (structured) return "wrapper_CUDA_" + function + (overload.empty() ? "" : "_" + overload);
  return "wrapper_CUDA_" + overload + "_" + function;
}

bool may_stay_on_host(const std::string& op, const std::string& argument) {
  const auto has = [&](const char* part) { return op.find(part) != std::string::npos; };
  if (argument == "indices") return has("::index") || has("::_index_put") || has("::_unsafe_index");
  if (argument == "scalars") return has("::_foreach");
  if (argument == "lengths" || argument == "batch_sizes") return has("_packed_sequence") || has("lstm") || has("rnn") || has("gru");
  if (has("ctc_loss")) return ends(argument, "_lengths") || argument == "targets";
  return argument == "tensor_indices_or_sections";
}

}  // namespace singularity
