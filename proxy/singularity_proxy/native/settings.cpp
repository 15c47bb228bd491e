#include "native/settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

namespace singularity {
namespace {

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Some settings exist in some versions of torch only, and some have numbers in one version and texts
// in another. Everything below asks the type it is given, so one source fits all.

template <class Type>
Type precision_name(std::initializer_list<const char*> names, uint8_t number) {
  if constexpr (std::is_enum_v<Type>) return static_cast<Type>(number);
  else return Type(*(names.begin() + number));
}
const std::initializer_list<const char*> kBackends = {"generic", "cuda", "mkldnn"};
const std::initializer_list<const char*> kOperations = {"all", "conv", "rnn", "matmul"};
const std::initializer_list<const char*> kPrecisions = {"none", "ieee", "tf32", "bf16"};

template <class C, class Backend, class Operation, class Precision, class F>
void float32_precisions(C& c, void (C::*set)(Backend, Operation, Precision), F& field) {
  using B = std::remove_cvref_t<Backend>;
  using O = std::remove_cvref_t<Operation>;
  using P = std::remove_cvref_t<Precision>;
  for (uint8_t backend : {1, 2})
    for (uint8_t operation : {1, 2, 3}) {
      const B b = precision_name<B>(kBackends, backend);
      const O o = precision_name<O>(kOperations, operation);
      field(
          4,
          [&]() -> uint8_t {
            const auto now = c.float32Precision(b, o);
            if constexpr (std::is_enum_v<P>) return static_cast<uint8_t>(now);
            else return static_cast<uint8_t>(std::find(kPrecisions.begin(), kPrecisions.end(), now) - kPrecisions.begin());
          },
          [&](uint8_t v) { (c.*set)(b, o, precision_name<P>(kPrecisions, v)); });
    }
}

template <class Reduction, class F, class Set>
void reduced_precision(F& field, Reduction now, Set set) {  // of matrix products: an enumeration, once a bool
  const auto number = [&] {
    if constexpr (std::is_same_v<Reduction, bool>) return static_cast<uint8_t>(now ? 0 : 1);
    else return static_cast<uint8_t>(now);
  };
  field(3, number, [&](uint8_t v) { set(v == 0, v != 2); });
}

constexpr size_t kAttentionKernels = 8;  // places for the order they are tried in; torch 2.13 has 5

// Calls field(number of values, get, set) for each setting, always in the same order and as often in
// every version of torch: a worker's may be another than the proxy's, and the place is the name.
template <class C, class F>
void each_setting(C& c, F field) {
  const auto flag = [&](auto get, auto set) {
    field(2, [&] { return static_cast<uint8_t>(get()); }, [&](uint8_t v) { set(v != 0); });
  };
  const auto absent = [&] { field(0, [] { return uint8_t{0}; }, [](uint8_t) {}); };
  field(
      static_cast<uint8_t>(c10::ScalarType::Undefined),
      [] { return static_cast<uint8_t>(c10::get_default_dtype_as_scalartype()); },
      [](uint8_t v) {
        const auto dtype = static_cast<c10::ScalarType>(v);
        if (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16)
          c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
      });
  field(
      4, [&] { return static_cast<uint8_t>(c.deterministicAlgorithms() | c.deterministicAlgorithmsWarnOnly() << 1); },
      [&](uint8_t v) { c.setDeterministicAlgorithms(v & 1, v & 2); });
  flag([&] { return c.deterministicFillUninitializedMemory(); }, [&](bool v) { c.setDeterministicFillUninitializedMemory(v); });
  flag([&] { return c.userEnabledCuDNN(); }, [&](bool v) { c.setUserEnabledCuDNN(v); });
  flag([&] { return c.benchmarkCuDNN(); }, [&](bool v) { c.setBenchmarkCuDNN(v); });
  flag([&] { return c.deterministicCuDNN(); }, [&](bool v) { c.setDeterministicCuDNN(v); });
  field(254, [&] { return static_cast<uint8_t>(std::clamp(c.benchmarkLimitCuDNN(), 0, 253)); },
        [&](uint8_t v) { c.setBenchmarkLimitCuDNN(v); });
  flag([&] { return c.userEnabledMkldnn(); }, [&](bool v) { c.setUserEnabledMkldnn(v); });
  flag([&] { return c.deterministicMkldnn(); }, [&](bool v) { c.setDeterministicMkldnn(v); });
  flag([&] { return c.userEnabledNNPACK(); }, [&](bool v) { c.setUserEnabledNNPACK(v); });
  flag([&] { return c.userEnabledFlashSDP(); }, [&](bool v) { c.setSDPUseFlash(v); });
  flag([&] { return c.userEnabledMemEfficientSDP(); }, [&](bool v) { c.setSDPUseMemEfficient(v); });
  flag([&] { return c.userEnabledMathSDP(); }, [&](bool v) { c.setSDPUseMath(v); });
  flag([&] { return c.userEnabledCuDNNSDP(); }, [&](bool v) { c.setSDPUseCuDNN(v); });
  flag([&] { return c.allowFP16BF16ReductionMathSDP(); }, [&](bool v) { c.setAllowFP16BF16ReductionMathSDP(v); });
  if constexpr (requires { c.userEnabledOverrideableSDP(); })
    flag([&] { return c.userEnabledOverrideableSDP(); }, [&](bool v) { c.setSDPUseOverrideable(v); });
  else absent();
  if constexpr (requires { c.userEnabledFA3SDP(); })
    flag([&] { return c.userEnabledFA3SDP(); }, [&](bool v) { c.setSDPUseFA3(v); });
  else absent();
  // The order in which attention kernels are tried: one setting of several bytes.
  const auto order = c.sDPPriorityOrder();
  std::vector<int64_t> wanted;
  for (const auto backend : order) {
    const auto now = static_cast<uint8_t>(backend);
    uint8_t asked = now;
    field(static_cast<uint8_t>(order.size()), [&] { return now; }, [&](uint8_t v) { asked = v; });
    wanted.push_back(asked);
  }
  for (size_t i = order.size(); i < kAttentionKernels; i++) absent();
  std::vector<int64_t> sorted = wanted;
  std::sort(sorted.begin(), sorted.end());
  bool each_once = true, changed = false;
  for (size_t i = 0; i < sorted.size(); i++) {
    each_once = each_once && sorted[i] == static_cast<int64_t>(i);
    changed = changed || wanted[i] != static_cast<int64_t>(order[i]);
  }
  if (each_once && changed) c.setSDPPriorityOrder(wanted);
  field(3, [&] { return static_cast<uint8_t>(c.linalgPreferredBackend()); },
        [&](uint8_t v) { c.setLinalgPreferredBackend(static_cast<at::LinalgBackend>(v)); });
  field(3, [&] { return static_cast<uint8_t>(c.blasPreferredBackend()); },
        [&](uint8_t v) { c.setBlasPreferredBackend(static_cast<at::BlasBackend>(v)); });
  reduced_precision(field, c.allowFP16ReductionCuBLAS(), [&](bool reduced, bool split) {
    if constexpr (requires { c.setAllowFP16ReductionCuBLAS(reduced, split); }) c.setAllowFP16ReductionCuBLAS(reduced, split);
    else c.setAllowFP16ReductionCuBLAS(reduced);
  });
  reduced_precision(field, c.allowBF16ReductionCuBLAS(), [&](bool reduced, bool split) {
    if constexpr (requires { c.setAllowBF16ReductionCuBLAS(reduced, split); }) c.setAllowBF16ReductionCuBLAS(reduced, split);
    else c.setAllowBF16ReductionCuBLAS(reduced);
  });
  flag([&] { return c.allowFP16AccumulationCuBLAS(); }, [&](bool v) { c.setAllowFP16AccumulationCuBLAS(v); });
  if constexpr (requires { c.cudnnDepthwiseKernel(); })
    field(3, [&] { return static_cast<uint8_t>(c.cudnnDepthwiseKernel()); }, [&](uint8_t v) {
      c.setCuDNNDepthwiseKernel(static_cast<decltype(c.cudnnDepthwiseKernel())>(v));
    });
  else absent();
  // The older way to ask for TF32 first, then the newer one, which is finer. Asking in the older way
  // after a user mixed both is an error; then only the newer one is told.
  field(3, [&] { return static_cast<uint8_t>(c.float32MatmulPrecision()); }, [&](uint8_t v) {
    c.setFloat32MatmulPrecision(v == 0 ? "highest" : v == 1 ? "high" : "medium");
  });
  flag([&] { return c.allowTF32CuDNN(); }, [&](bool v) { c.setAllowTF32CuDNN(v); });
  float32_precisions(c, &C::setFloat32Precision, field);
}

}  // namespace

Settings current_settings() {
  Settings settings;
  size_t at = 0;
  each_setting(at::globalContext(), [&](uint8_t values, auto get, auto) {
    uint8_t now = values;
    try {
      now = get();
    } catch (const c10::Error&) {
    }
    settings.bytes.at(at++) = now < values ? static_cast<uint8_t>(now + 1) : 0;
  });
  return settings;
}

void apply_settings(const Settings& settings) {
  Quiet quiet;  // the worker has shown the warnings already
  c10::WarningUtils::WarningHandlerGuard silent(&quiet);
  size_t at = 0;
  each_setting(at::globalContext(), [&](uint8_t values, auto get, auto set) {
    const uint8_t wanted = settings.bytes.at(at++);
    if (wanted == 0 || wanted > values) return;
    try {
      if (get() == wanted - 1) return;
    } catch (const c10::Error&) {
    }
    try {
      set(static_cast<uint8_t>(wanted - 1));
    } catch (const c10::Error&) {  // of a library that is not in this build: nothing looks at it
    }
  });
}

}  // namespace singularity
