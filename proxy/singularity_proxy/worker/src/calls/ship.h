// Shipping operators: one boxed kernel for all of ATen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <string>

#include "worker/src/ring/channel.h"

namespace singularity {

struct Operator;

// Registers for `handle` and returns its entry; `ship` then executes a call of it.
Operator* add_operator(const c10::OperatorHandle& handle);
void ship(Operator& op, torch::jit::Stack* stack);
torch::CppFunction shipped_kernel(Operator* op);
// The one for a cpu device of an operator that CUDA computes in half precision (widened.cpp); else none.
std::optional<torch::CppFunction> widened_kernel(const std::string& name, Operator* op);
// A graph that torch.compile captured (worker/compile.py), as an operator of `arguments` tensors and
// sizes on one virtual device; `compile_graph` lets the proxy compile it and returns its JSON answer.
Operator* add_graph(std::string packed, uint16_t arguments, int device);
std::string compile_graph(Operator& op);
// Nothing calls the graph any more. From any thread, without a lock: the entry lives on until its
// channel tells the proxy, with the storages that died (`forget_graph`, under `Locked`).
void free_graph(Operator& op);
void forget_graph(Channel& channel, uint32_t index);
constexpr uint64_t kGraphId = 1ull << 62;  // in Freed::id: not a storage but the operator of this number

// Takes the CUDA dispatch key: guard, allocator, hooks and a kernel for every ATen operator. Called
// once by the import hook, after torch._C is loaded. Returns figures (operators shipped, kept, ms).
std::map<std::string, double> install();
// Recurrent cells in ordinary operators, for physical devices that have no fused ones (rnn.cpp).
void install_recurrent_cells(torch::Library& library);

// The device of a call: of its first device tensor, or of its device= argument, or the current one.
Channel& channel_of(c10::ArrayRef<c10::IValue> arguments);
uint64_t generator_id(const at::Generator& generator, const Channel& channel);

}  // namespace singularity
