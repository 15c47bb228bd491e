#include "operators.h"

#include <algorithm>
#include <map>
#include <set>

#include "devices_of_calls.h"
#include "ship.h"

namespace singularity {

std::mutex cache_mutex;

std::vector<Operator*>& operators() {
  static auto& all = *new std::vector<Operator*>();
  return all;
}

Operator* add_graph(std::string packed, uint16_t arguments, int device) {
  auto* op = new Operator();
  const std::lock_guard<std::mutex> guard(cache_mutex);
  auto place = std::find(operators().begin(), operators().end(), nullptr);
  if (place == operators().end()) place = operators().insert(place, nullptr);
  *place = op;
  op->index = static_cast<uint32_t>(place - operators().begin());
  op->name = kGraphName;
  op->overload = std::move(packed);
  op->arguments = arguments;
  op->graph_device = device;
  op->is_value.assign(arguments, 0);
  op->is_host.assign(arguments, 1);
  return op;
}

void free_graph(Operator& op) { channel(op.graph_device).free_storage({kGraphId | op.index, nullptr, 0}); }

namespace {

// "Tensor_Tensor" of "Tensor_Tensor_out".
std::string without_out(const std::string& overload) {
  const size_t end = overload.rfind("_out");
  return end != std::string::npos && end + 4 == overload.size() ? overload.substr(0, end) : overload;
}

}  // namespace

Operator* add_operator(const c10::OperatorHandle& handle) {
  static const std::set<std::string> kValuesDecideShape = {"aten::arange", "aten::range", "aten::linspace",
                                                           "aten::logspace"};
  // CUDA looks at their numbers before it begins: in the key a number that was not there before is waited
  // for, and a wrong one raised at its own line.
  static const std::set<std::string> kChecksNumbers = {
      "_foreach_pow", "bernoulli",  "cauchy",      "celu",           "_cdist_forward", "elu_backward", "exponential",
      "geometric",  "hardtanh",    "histc",          "huber_loss",     "huber_loss_backward", "leaky_relu_backward",
      "log_normal", "multi_margin_loss", "native_dropout", "normal",   "norm",         "pow",
      "renorm",     "rrelu_with_noise", "smooth_l1_loss", "smooth_l1_loss_backward", "softshrink", "std",
      "std_mean",   "uniform",     "var",            "var_mean"};
  // Their failure must be raised at their own line: nothing later would notice it.
  static const std::set<std::string> kMustNotFailLate = {
      "aten::_linalg_check_errors", "aten::_assert_async", "aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig"};
  // CUDA reads values of their tensors on the host, and refuses some: it waits for the GPU as well.
  static const std::set<std::string> kReadsValues = {
      "aten::cholesky", "aten::cholesky_inverse", "aten::fake_quantize_per_channel_affine_cachemask", "aten::histc",
      "aten::multinomial", "aten::segment_reduce"};
  static const std::set<std::string> kOverloadsThatReadValues = {
      "aten::linspace.Tensor_Tensor", "aten::linspace.Tensor_Scalar", "aten::linspace.Scalar_Tensor",
      "aten::logspace.Tensor_Tensor", "aten::logspace.Tensor_Scalar", "aten::logspace.Scalar_Tensor",
      "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"};
  // The same, of one argument.
  static const std::map<std::string, std::string> kReadArgument = {
      {"index_fill", "value"}, {"masked_fill", "value"}, {"searchsorted", "sorter"}};
  // In place, and yet the result may be larger.
  static const std::set<std::string> kResizesItsInput = {"aten::addbmm_"};
  auto* op = new Operator();
  const auto& schema = handle.schema();
  op->handle = handle;
  op->index = static_cast<uint32_t>(operators().size());
  op->name = schema.name();
  op->overload = schema.overload_name();
  op->schema = &schema;
  op->arguments = static_cast<uint16_t>(schema.arguments().size());
  const std::string functional = functional_name(handle);
  op->numbers_in_key = kValuesDecideShape.count(op->name) || kChecksNumbers.count(functional);
  const auto read = kReadArgument.find(functional);
  for (const auto& a : schema.arguments()) {
    auto type = a.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const auto index = static_cast<int16_t>(op->is_value.size());
    if (a.name() == "dtype") op->dtype_argument = index;
    if (read != kReadArgument.end() && a.name() == read->second && type->kind() == c10::TypeKind::TensorType)
      op->read_argument = index;
    op->is_value.push_back(!op->numbers_in_key && (type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType));
    if (a.alias_info() && a.alias_info()->isWrite()) op->written.push_back(static_cast<uint16_t>(index));
    op->is_host.push_back(may_stay_on_host(op->name, a.name()));
    if (a.is_out()) op->has_out = true;
    op->takes_guests |= op->is_host.back() || (session_device_count() > 1 && type->kind() == c10::TypeKind::GeneratorType);
  }
  bool all_aliases = true;
  for (const auto& r : schema.returns()) {
    int alias = -1;
    if (r.alias_info() && r.alias_info()->isWrite())
      for (size_t i = 0; i < schema.arguments().size(); i++) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == r.alias_info()->beforeSets()) alias = static_cast<int>(i);
      }
    op->result_alias.push_back(alias);
    all_aliases = all_aliases && alias >= 0;
  }
  op->in_place = all_aliases && schema.is_mutable() && !op->has_out && !kResizesItsInput.count(op->name);
  if (schema.returns().empty() && op->has_out) {  // _foreach_*.out, unbind_copy.int_out: their out= lists
    op->no_results = true;
    for (size_t i = 0; i < schema.arguments().size(); i++)
      if (schema.arguments()[i].is_out()) op->result_alias.push_back(static_cast<int>(i));
  }
  op->always_sync = handle.hasTag(at::Tag::data_dependent_output) || handle.hasTag(at::Tag::dynamic_output_shape) ||
                    kMustNotFailLate.count(op->name) || kReadsValues.count(op->name) ||
                    kOverloadsThatReadValues.count(op->name + "." + without_out(op->overload));
  op->is_composed = !op->takes_guests && handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
                    !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  op->constant_result = op->name == "aten::_fused_sdp_choice";
  operators().push_back(op);
  return op;
}

}  // namespace singularity
