// LSTM and GRU choose fused cells on "cuda"; a cpu device has none. The same cells in ordinary,
// differentiable operators: registered for autograd as well, so no backward of their own is needed.
// Formulas: torch.nn.LSTMCell and torch.nn.GRUCell.
#include <ATen/ATen.h>

#include "worker/src/calls/ship.h"

namespace singularity {
namespace {

using at::Tensor;

Tensor plus_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cell,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const Tensor gates = plus_bias(input_gates, input_bias) + plus_bias(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const Tensor next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, gates};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                                    const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  const auto in = plus_bias(input_gates, input_bias).chunk(3, 1);
  const auto rec = plus_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (in[0] + rec[0]).sigmoid(), update = (in[1] + rec[1]).sigmoid();
  const Tensor candidate = (in[2] + reset * rec[2]).tanh();
  return {(hidden - candidate) * update + candidate, input_gates};
}

}  // namespace

void install_recurrent_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
}

}  // namespace singularity
