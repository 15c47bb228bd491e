#include "nested.h"

#include <ATen/ATen.h>
#include <ATen/NestedTensorImpl.h>

namespace singularity {
namespace {

using at::Tensor;

// A nested tensor of sequences [length, features] as one of [sequences, longest, features].
struct Padded {
  explicit Padded(const Tensor& nested) : sizes(at::native::get_nested_sizes(nested)), values(nested.to_padded_tensor(0.0)) {
    TORCH_CHECK(values.dim() == 3, "expected a nested tensor of sequences, got one of ", values.dim(), " dimensions");
  }
  // True where a sequence has ended. Sizes are known on the host.
  Tensor mask() const {
    const Tensor position = at::arange(values.size(1), sizes.options());
    return (position.unsqueeze(0) >= sizes.select(1, 0).unsqueeze(1)).to(values.device());
  }
  Tensor nested(const Tensor& padded) const { return at::_nested_from_padded(padded, sizes); }

  const Tensor sizes;
  const Tensor values;
};

constexpr int64_t kKeyPaddingMask = 1;  // of the operators' mask_type

void refuse_mask(const std::optional<Tensor>& mask) {
  TORCH_CHECK(!mask || !mask->defined(), "NestedTensor with mask is not supported yet");
}

// What stands in the padding is computed too, and dropped at the end.
Tensor encoder_layer(const Tensor& source, int64_t features, int64_t heads, const Tensor& qkv_weight, const Tensor& qkv_bias,
                     const Tensor& proj_weight, const Tensor& proj_bias, bool gelu, bool norm_first, double eps,
                     const Tensor& norm_weight_1, const Tensor& norm_bias_1, const Tensor& norm_weight_2,
                     const Tensor& norm_bias_2, const Tensor& ffn_weight_1, const Tensor& ffn_bias_1,
                     const Tensor& ffn_weight_2, const Tensor& ffn_bias_2, const std::optional<Tensor>& mask,
                     std::optional<int64_t>) {
  refuse_mask(mask);
  const Padded padded(source);
  return padded.nested(at::_transformer_encoder_layer_fwd(
      padded.values, features, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, gelu, norm_first, eps, norm_weight_1,
      norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, padded.mask(),
      kKeyPaddingMask));
}

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                int64_t features, int64_t heads, const Tensor& qkv_weight,
                                                const Tensor& qkv_bias, const Tensor& proj_weight,
                                                const Tensor& proj_bias, const std::optional<Tensor>& mask,
                                                bool need_weights, bool average, std::optional<int64_t>) {
  refuse_mask(mask);
  TORCH_CHECK(!need_weights, "NestedTensor with need_weights is not supported yet");
  const Padded padded(query);
  const bool same_key = key.is_same(query), same_value = value.is_same(key);
  const Padded keys = same_key ? padded : Padded(key);
  // The kernel knows self-attention by the identity of its arguments.
  const Tensor values = same_value ? keys.values : Padded(value).values;
  const auto result = at::_native_multi_head_attention(padded.values, keys.values, values, features, heads, qkv_weight,
                                                       qkv_bias, proj_weight, proj_bias, keys.mask(), need_weights,
                                                       average, kKeyPaddingMask);
  return {padded.nested(std::get<0>(result)), std::get<1>(result)};
}

// sdp::SDPBackend::math: made of operators that nested tensors have.
int64_t nested_attention_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                                std::optional<double>, bool) {
  return 0;
}

}  // namespace

bool install_nested_kernel(torch::Library& library, const std::string& name) {
  if (name == "_transformer_encoder_layer_fwd") library.impl(name.c_str(), &encoder_layer);
  else if (name == "_native_multi_head_attention") library.impl(name.c_str(), &multi_head_attention);
  else if (name == "_fused_sdp_choice") library.impl(name.c_str(), &nested_attention_choice);
  else return false;
  return true;
}

}  // namespace singularity
