#include "graphs.h"

#include "errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

namespace singularity {
namespace {

namespace py = pybind11;

constexpr size_t kMaxChecked = 512;  // then they are looked at again
PyObject* graph_maker = nullptr;

// What Python raised, as the exception that the operator of the same error would have thrown.
[[noreturn]] void rethrow(py::error_already_set& error) {
  std::string text = py::str(error.value());
  const auto is = [&](const py::handle& type) { return error.matches(type); };
  const py::module_ torch = py::module_::import("torch");
  const bool memory = is(torch.attr("OutOfMemoryError")) || is(PyExc_MemoryError);
  const bool linalg = is(torch.attr("linalg").attr("LinAlgError")), index = is(PyExc_IndexError);
  const bool value = is(PyExc_ValueError), type = is(PyExc_TypeError);
  TORCH_CHECK_WITH(OutOfMemoryError, !memory, text);
  TORCH_CHECK_LINALG(!linalg, text);
  TORCH_CHECK_INDEX(!index, text);
  TORCH_CHECK_VALUE(!value, text);
  TORCH_CHECK_TYPE(!type, text);
  TORCH_CHECK(false, text);
}

template <class Work>
auto with_python(const Work& work) {
  const py::gil_scoped_acquire gil;
  try {
    return work();
  } catch (py::error_already_set& error) {
    rethrow(error);
  }
}

py::list as_list(const torch::jit::Stack& stack) {
  py::list list;
  for (const c10::IValue& v : stack) {
    if (v.isTensor()) list.append(py::cast(v.toTensor()));
    else if (v.isInt()) list.append(py::int_(v.toInt()));
    else TORCH_CHECK_VALUE(false, "a graph takes tensors and sizes, not a ", v.tagKind());
  }
  return list;
}

}  // namespace

void set_graph_maker(PyObject* make) {
  Py_INCREF(make);
  graph_maker = make;
}

Graph::~Graph() {
  if (!graph_ || !Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  Py_XDECREF(run_);
  Py_XDECREF(graph_);
}

std::string Graph::compile() {
  return with_python([&] {
    if (!graph_) {
      TORCH_CHECK(graph_maker, "this device proxy cannot compile graphs");
      py::object made = py::handle(graph_maker)(py::bytes(packed_), device_.str());
      draws_ = made.attr("draws").cast<bool>();
      for (const py::handle& writes : py::list(made.attr("writes"))) writes_.push_back(writes.cast<bool>());
      graph_ = made.release().ptr();
    }
    std::string answer = py::handle(graph_).attr("compile")().cast<std::string>();
    if (!run_) run_ = py::object(py::handle(graph_).attr("run")).release().ptr();
    return answer;
  });
}

void Graph::prepare() {
  if (!run_) compile();
}

void Graph::run(torch::jit::Stack& stack, std::string key) {
  with_python([&] {
    py::list arguments = as_list(stack);
    const py::object form = arguments.attr("pop")();  // the worker puts it behind the graph's own
    if (!checked_.count(key)) {
      if (!py::handle(graph_).attr("has_form")(form).cast<bool>())
        throw OtherForm({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                        "a compiled graph was moved to a device proxy where it compiles to something else; "
                        "call torch._dynamo.reset() to compile it again");
      py::handle(graph_).attr("check")(arguments);
      if (checked_.size() >= kMaxChecked) checked_.clear();
      checked_.insert(std::move(key));
    }
    stack.clear();
    const py::sequence results = py::handle(run_)(arguments);
    for (const py::handle& result : results) {
      py::detail::make_caster<at::Tensor> tensor;
      if (tensor.load(result, /*convert=*/false)) stack.emplace_back(py::detail::cast_op<at::Tensor&>(tensor));
      else if (result.is_none()) stack.emplace_back();
      else stack.emplace_back(result.cast<int64_t>());
    }
  });
}

}  // namespace singularity
