#include "contribution.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <sstream>

#include "device/src/exec/reader.h"
#include "wire/exchange.h"

namespace singularity {
namespace {

constexpr uint64_t kPartAlignment = 64;
constexpr uint32_t kMaxContributedTensors = 1 << 20;

uint64_t aligned(uint64_t n) { return (n + kPartAlignment - 1) & ~(kPartAlignment - 1); }

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return "sum";
    case Reduction::avg: return "avg";
    case Reduction::product: return "product";
    case Reduction::min: return "min";
    case Reduction::max: return "max";
    case Reduction::band: return "band";
    case Reduction::bor: return "bor";
    case Reduction::bxor: return "bxor";
    case Reduction::premul_sum: return "premul_sum";
  }
  return "unknown reduction";
}

constexpr bool reduces(Collective what) { return is_reduced(what) || what == Collective::reduce_scatter; }

constexpr const char* name_of(FoldOrder order) { return order == FoldOrder::fast ? "fast" : "bitwise"; }

void put_call(Buffer& head, const Signature& s, const std::string& failure) {
  head.put<uint32_t>(static_cast<uint32_t>(failure.size()));
  head.put<uint32_t>(static_cast<uint32_t>(s.dtype));
  head.put<uint32_t>(static_cast<uint32_t>(s.order));
  head.put<int64_t>(static_cast<int64_t>(s.what));
  head.put<int64_t>(static_cast<int64_t>(s.reduction));
  head.put<double>(s.factor);
  head.put<int64_t>(s.root);
  head.put<uint32_t>(static_cast<uint32_t>(s.in.size()));
  head.put<uint32_t>(static_cast<uint32_t>(s.out.size()));
  for (const int64_t n : s.in) head.put(n);
  for (const int64_t n : s.out) head.put(n);
  head.put_bytes(failure.data(), failure.size());
}

void put_head(const Contribution& c, Buffer& head) {
  put_call(head, c.signature, c.failure);
  head.put<uint32_t>(static_cast<uint32_t>(c.parts.size()));
  head.put<uint32_t>(static_cast<uint32_t>(c.with.size()));
  for (const Caller& other : c.with) {
    head.put<uint32_t>(other.rank);
    put_call(head, other.signature, other.failure);
  }
}

void get_call(Reader& in, Signature& s, std::string& failure) {
  const auto failure_bytes = in.get<uint32_t>(), dtype = in.get<uint32_t>(), order = in.get<uint32_t>();
  TORCH_CHECK(dtype <= static_cast<uint32_t>(c10::ScalarType::Undefined), "unknown dtype ", dtype);
  TORCH_CHECK(order <= static_cast<uint32_t>(FoldOrder::fast), "unknown order of reductions ", order);
  s.dtype = static_cast<c10::ScalarType>(dtype);
  s.order = static_cast<FoldOrder>(order);
  s.what = static_cast<Collective>(in.get<int64_t>());
  s.reduction = static_cast<Reduction>(in.get<int64_t>());
  s.factor = in.get<double>();
  s.root = in.get<int64_t>();
  const auto inputs = in.get<uint32_t>(), outputs = in.get<uint32_t>();
  TORCH_CHECK(inputs <= kMaxContributedTensors && outputs <= kMaxContributedTensors, "a contribution of ", inputs, " and ", outputs, " tensors");
  for (uint32_t i = 0; i < inputs; i++) s.in.push_back(in.get<int64_t>());
  for (uint32_t i = 0; i < outputs; i++) s.out.push_back(in.get<int64_t>());
  failure.assign(in.bytes(failure_bytes), failure_bytes);
}

std::string sizes_text(const std::vector<int64_t>& sizes) {
  if (sizes.size() == 1) return std::to_string(sizes[0]);
  std::string text = "[";
  for (size_t i = 0; i < sizes.size() && i < 8; i++) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + (sizes.size() > 8 ? ", ...]" : "]");
}

std::string differs(const Signature& one, uint32_t a, const Signature& other, uint32_t b) {
  return "rank " + std::to_string(a) + " called " + describe(one) + " and rank " + std::to_string(b) + " called " +
         describe(other) + "; all ranks must make the same call, with tensors of the same dtype and of sizes that fit";
}

// Whether two ranks' calls fit, as far as tensors go from `one` (rank a) to `other` (rank b).
bool fits(const Signature& one, uint32_t a, const Signature& other, uint32_t b) {
  switch (one.what) {
    case Collective::all_reduce:
    case Collective::reduce: return one.in == other.in;
    case Collective::broadcast: return one.out == other.out;
    case Collective::all_gather: return one.in.at(0) == other.out.at(a);
    case Collective::reduce_scatter: return one.in.at(b) == other.out.at(0);
    case Collective::all_to_all: return one.in.at(b) == other.out.at(a);
    case Collective::gather: return b != one.root || one.in.at(0) == other.out.at(a);
    case Collective::scatter: return a != one.root || one.in.at(b) == other.out.at(0);
    default: return true;
  }
}

}  // namespace

const char* name_of(Collective what) {
  switch (what) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce: return "reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_to_all: return "all_to_all";
    case Collective::gather: return "gather";
    case Collective::scatter: return "scatter";
    case Collective::barrier: return "barrier";
    case Collective::send: return "send";
    case Collective::recv: return "recv";
  }
  return "unknown collective";
}

std::string describe(const Signature& s) {
  std::string text = name_of(s.what);
  if (reduces(s.what)) text += std::string("(") + name_of(s.reduction) + ")";
  const bool received = s.in.empty();
  if (!s.in.empty() || !s.out.empty())
    text += " of " + sizes_text(received ? s.out : s.in) + " " + c10::toString(s.dtype);
  if (s.root >= 0 && !is_message(s.what)) text += " with root " + std::to_string(s.root);
  return text;
}

void check(const Signature& s, uint32_t rank, uint32_t size) {
  const bool has_root = s.what == Collective::reduce || s.what == Collective::broadcast || s.what == Collective::gather ||
                        s.what == Collective::scatter || is_message(s.what);
  const bool root = s.root == rank;
  size_t in = 1, out = 1;
  switch (s.what) {
    case Collective::all_reduce: break;
    case Collective::reduce: out = root; break;
    case Collective::broadcast: in = root; break;
    case Collective::all_gather: out = size; break;
    case Collective::reduce_scatter: in = size; break;
    case Collective::all_to_all: in = out = size; break;
    case Collective::gather: out = root ? size : 0; break;
    case Collective::scatter: in = root ? size : 0; break;
    case Collective::barrier: in = out = 0; break;
    case Collective::send: out = 0; break;
    case Collective::recv: in = 0; break;
    default: TORCH_CHECK(false, "unknown collective ", static_cast<int64_t>(s.what));
  }
  TORCH_CHECK(s.reduction >= Reduction::sum && s.reduction <= Reduction::premul_sum, "unknown reduction ",
              static_cast<int64_t>(s.reduction));
  TORCH_CHECK(!has_root || (s.root >= 0 && s.root < size), name_of(s.what), " with rank ", s.root, " in a group of ", size);
  TORCH_CHECK(s.in.size() == in && s.out.size() == out, name_of(s.what), " in a group of ", size, " came with ",
              s.in.size(), " inputs and ", s.out.size(), " outputs instead of ", in, " and ", out);
  if (s.what == Collective::all_reduce || (s.what == Collective::reduce && root) || (s.what == Collective::broadcast && root))
    TORCH_CHECK(s.in[0] == s.out[0], name_of(s.what), " of ", s.in[0], " elements into ", s.out[0]);
}

std::string disagreement(const std::vector<const Signature*>& of_ranks) {
  const Signature& first = *of_ranks[0];
  const auto n = static_cast<uint32_t>(of_ranks.size());
  for (uint32_t r = 1; r < n; r++) {
    const Signature& s = *of_ranks[r];
    if (s.order != first.order)
      return "rank 0 wants collectives to be " + std::string(name_of(first.order)) + " and rank " + std::to_string(r) +
             " wants them " + name_of(s.order) + "; all ranks of a group must be started with the same SINGULARITY_COLLECTIVES";
    if (s.what != first.what || (reduces(s.what) && s.reduction != first.reduction) || s.root != first.root ||
        s.dtype != first.dtype)
      return differs(first, 0, s, r);
  }
  for (uint32_t a = 0; a < n; a++)
    for (uint32_t b = 0; b < n; b++)
      if (!fits(*of_ranks[a], a, *of_ranks[b], b)) return differs(*of_ranks[a], a, *of_ranks[b], b);
  return "";
}

bool can_be_added(const Signature& one, const Signature& other) {
  return one.what == other.what && one.order == other.order && one.reduction == other.reduction && one.dtype == other.dtype &&
         one.in == other.in;
}

std::string disagreement(const Signature& sent, uint32_t from, const Signature& wanted, uint32_t to) {
  return sent.dtype == wanted.dtype && sent.in == wanted.out ? "" : differs(sent, from, wanted, to);
}

uint64_t packed_bytes(const Contribution& c) {
  Buffer head;
  put_head(c, head);
  uint64_t bytes = aligned(head.size());
  for (const at::Tensor& part : c.parts) bytes = aligned(bytes + part.nbytes());
  return bytes;
}

std::vector<at::Tensor> pack_head(const Contribution& c, char* to) {
  Buffer head;
  put_head(c, head);
  std::memcpy(to, head.data(), head.size());
  uint64_t position = aligned(head.size());
  std::vector<at::Tensor> places;
  for (const at::Tensor& part : c.parts) {
    places.push_back(at::from_blob(to + position, part.sizes(), at::TensorOptions().dtype(part.dtype())));
    position = aligned(position + part.nbytes());
  }
  return places;
}

void pack(const Contribution& c, char* to) {
  const std::vector<at::Tensor> places = pack_head(c, to);
  for (size_t i = 0; i < places.size(); i++)
    if (c.parts[i].nbytes()) places[i].copy_(c.parts[i]);
}

Contribution unpack(const char* from, uint64_t bytes, const std::function<void(void*)>& keep) {
  Reader in(from, from + bytes);
  Contribution c;
  const Signature& s = c.signature;
  get_call(in, c.signature, c.failure);
  const auto parts = in.get<uint32_t>(), others = in.get<uint32_t>();
  TORCH_CHECK(others < kMaxRanks, "a sum of ", others, " ranks");
  for (uint32_t i = 0; i < others; i++) {
    Caller& other = c.with.emplace_back();
    other.rank = in.get<uint32_t>();
    get_call(in, other.signature, other.failure);
  }
  TORCH_CHECK(parts == 0 || parts == s.in.size(), "a contribution of ", parts, " tensors instead of ", s.in.size());
  c.borrowed = true;
  if (parts == 0) return c;
  for (const int64_t n : s.in) {
    const uint64_t skip = aligned(static_cast<uint64_t>(in.at() - from)) - static_cast<uint64_t>(in.at() - from);
    in.bytes(std::min<uint64_t>(skip, in.left()));
    TORCH_CHECK(n >= 0 && s.dtype != c10::ScalarType::Undefined && static_cast<uint64_t>(n) <= in.left() / c10::elementSize(s.dtype),
                "a contribution is shorter than it says");
    auto* at = const_cast<char*>(in.bytes(static_cast<size_t>(n) * c10::elementSize(s.dtype)));
    c.parts.push_back(at::from_blob(at, {n}, keep, at::TensorOptions().dtype(s.dtype)));
  }
  return c;
}

}  // namespace singularity
